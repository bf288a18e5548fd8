"""Runs of fsdp-run in separate processes: `train`, `evaluate`, and `start` to read the rows during the run."""

import ctypes
import json

from ._library import CALLS, STOPPED, check
from ._settings import Request

_LOOK_MS = 100  # how long a wait may keep Ctrl-C waiting


class Result:
    """The metrics that a run wrote: rows by kind, as dictionaries with the names in docs/reference/metrics.md."""

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
    """A run in progress: an iterator over its rows. The end of a `with` block kills its remaining processes."""

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
        """Asks the run to stop, as Ctrl-C does: it saves to checkpoint_dir if one is set, and ends."""
        CALLS["run_stop"](self._handle)

    def result(self):
        """Waits for the end and returns the Result."""
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
    """Starts a training run. `data` and `eval_data` map column names to arrays, or are values of --data."""
    return Run("train", Request(model, data, eval_data, prints, options))


def _finished(run, on_row):
    """Returns the result of a run. An exception here (Ctrl-C, or one from `on_row`) stops the run in order, then
    propagates."""
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
    """Returns the row of an evaluation: loss and metrics on `eval_data`, else on the evaluation part of `data`, else
    on all of it."""
    result = _finished(Run("eval", Request(model, data, eval_data, prints, options)), None)
    return result.evaluations[-1]
