"""Runs of fsdp-run in processes of their own: `train`, `evaluate`, and `start` for who wants the rows as they come."""

import ctypes
import json

from ._library import CALLS, STOPPED, check
from ._settings import Request

_LOOK_MS = 100  # how long a wait may keep Ctrl-C waiting


class Result:
    """What a run has written into its metrics: its rows by kind, as dictionaries with the names of docs/reference/metrics.md."""

    def __init__(self, rows):
        self.rows = rows
        self.steps = [row for row in rows if row["kind"] == "step"]
        self.evaluations = [row for row in rows if row["kind"] == "eval"]
        self.end = next((row for row in rows if row["kind"] == "end"), None)

    @property
    def losses(self):
        return [row["loss"] for row in self.steps]

    def __repr__(self):
        last = f", loss {self.losses[-1]:.6g}" if self.steps else ""
        return f"<onnx_fsdp.Result: {len(self.steps)} steps{last}>"


class Run:
    """A run under way: an iterator of its rows. Leaving a `with` block kills what is left of it."""

    def __init__(self, command, request):
        self._handle = ctypes.c_void_p()
        self._rows, self._ended = [], False
        check(CALLS["run_start"](command.encode(), request.settings, ctypes.byref(self._handle)))

    def __iter__(self):
        return self

    def __next__(self):
        while not self._ended:
            row = self._next()
            if row is not None:
                return row
        raise StopIteration

    def _next(self):
        row, ended = ctypes.c_char_p(), ctypes.c_int32()
        status = CALLS["run_next"](self._handle, _LOOK_MS, ctypes.byref(row), ctypes.byref(ended))
        self._ended = ended.value != 0
        self.stopped = check(status) == STOPPED
        if row.value is None:
            return None
        self._rows.append(json.loads(row.value))
        return self._rows[-1]

    def stop(self):
        """Asks it to stop as Ctrl-C does: it saves where checkpoint_dir says, and ends."""
        CALLS["run_stop"](self._handle)

    def result(self):
        """Waits for the end."""
        for _ in self:
            pass
        return Result(self._rows)

    def close(self):
        if self._handle:
            CALLS["run_close"](self._handle)
            self._handle, self._ended = ctypes.c_void_p(), True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()


def start(model, data=None, eval_data=None, *, prints=False, **options):
    """Starts a training run. `data` and `eval_data` are arrays by name of their column, or what --data takes."""
    return Run("train", Request(model, data, eval_data, prints, options))


def _finished(run, on_row):
    """The result of a run. An exception here (Ctrl-C, one of `on_row`) ends the run in order and goes on."""
    with run:
        try:
            for row in run:
                if on_row is not None:
                    on_row(row)
        except BaseException:
            run.stop()
            try:
                run.result()
            except (RuntimeError, ValueError):
                pass  # the first exception is the one to tell
            raise
        return run.result()


def train(model, data=None, eval_data=None, *, on_row=None, prints=False, **options):
    """Trains to the end and returns the Result. `on_row` gets each row; `prints`: fsdp-run's own lines go to stdout."""
    return _finished(start(model, data, eval_data, prints=prints, **options), on_row)


def evaluate(model, data=None, eval_data=None, *, prints=False, **options):
    """The row of an evaluation: loss and metrics on `eval_data`, else on the evaluation part of `data`, else on all of it."""
    result = _finished(Run("eval", Request(model, data, eval_data, prints, options)), None)
    return result.evaluations[-1]
