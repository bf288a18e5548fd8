"""`Trainer`: training whose caller brings each batch; one rank in this process, or ranks of its own (_ranks.py)."""

import ctypes
import os
import typing

import numpy

from ._library import CALLS, EvaluationRow, InputError, StepRow, check
from ._settings import Arrays, Request


class Step(float):
    """The loss of an update, before it, with the other numbers of its row: step, grad_norm, lr, step_ms, skipped."""

    step: int
    grad_norm: float
    lr: float
    step_ms: float
    skipped: bool  # float16: the gradients were not finite, nothing was updated


class Evaluation(typing.NamedTuple):
    loss: typing.Optional[float]  # None: no label was kept
    metrics: typing.Dict[str, typing.Optional[float]]  # by their names in eval_metrics; None where the data have none

    @property
    def accuracy(self):
        return self.metrics.get("accuracy")


class _Parameters:
    """Keeps the memory of parameters that arrays refer to."""

    def __init__(self, handle):
        self.handle = handle

    def __del__(self):
        CALLS["parameters_close"](self.handle)


class OneRank:
    """A trainer in this process."""

    def __init__(self, model, options):
        self._handle = ctypes.c_void_p()
        request = Request(model, options=options)
        check(CALLS["trainer_open"](request.settings, ctypes.byref(self._handle)))

    def step(self, batch):
        arrays, row = Arrays(batch), StepRow(ctypes.sizeof(StepRow))
        check(CALLS["trainer_step"](self._handle, arrays.list, len(arrays), row))
        loss = Step(row.loss)
        loss.step, loss.grad_norm, loss.lr, loss.step_ms = row.step, row.grad_norm, row.lr, row.step_ms
        loss.skipped = bool(row.skipped)
        return loss

    def evaluate(self, rows):
        arrays, row = Arrays(rows), EvaluationRow(ctypes.sizeof(EvaluationRow))
        check(CALLS["trainer_evaluate"](self._handle, arrays.list, len(arrays), row))
        metrics = {one.name.decode(): one.value if one.value == one.value else None
                   for one in row.metrics[:row.metric_count]}
        return Evaluation(row.loss if row.loss == row.loss else None, metrics)

    def save(self, path):
        check(CALLS["trainer_save"](self._handle, os.fsencode(path)))

    def parameters(self):
        handle = ctypes.c_void_p()
        check(CALLS["trainer_parameters"](self._handle, ctypes.byref(handle)))
        keeper, found = _Parameters(handle), {}
        for index in range(CALLS["parameters_count"](handle)):
            one = CALLS["parameters_at"](handle, index)
            shape = one.dims[:one.rank]
            memory = (ctypes.c_float * int(numpy.prod(shape, dtype=int))).from_address(one.data)
            memory.keeper = keeper  # the array's base is this object
            values = numpy.frombuffer(memory, dtype=numpy.float32).reshape(shape)
            values.flags.writeable = False
            found[one.name.decode()] = values
        return found

    def close(self):
        CALLS["trainer_close"](self._handle)


class Trainer:
    """Trains `model`, an update a call. `with` or `close` ends it.

        trainer = Trainer("model.onnx", loss="cross_entropy", lr=1e-3)
        for batch in batches:
            loss = trainer.step({"image": batch.x, "labels": batch.y})
        trainer.save("trained.onnx")

    It is one rank in this process, which has one at a time. Under torchrun, mpirun or srun each process is a rank and makes
    the same calls with its own rows. With `nproc_per_node` the ranks are so many processes of the trainer's own, and the
    caller brings the rows of all.
    """

    def __init__(self, model, *, nproc_per_node=None, **options):
        self._work = None
        if nproc_per_node is None:
            self._work = OneRank(model, options)
        else:
            from ._ranks import Ranks  # what it imports takes a while
            self._work = Ranks(model, nproc_per_node, options)

    def _open(self, call):
        if self._work is None:
            raise InputError(f"{call}: expected a trainer that is open, found a closed one")
        return self._work

    def step(self, batch):
        """One update; returns its loss."""
        return self._open("step").step(batch)

    def evaluate(self, rows):
        """Loss and metrics of any number of rows."""
        return self._open("evaluate").evaluate(rows)

    def save(self, path):
        """Writes the trained ONNX file."""
        self._open("save").save(path)

    def parameters(self):
        """The trained parameters by name, where they lie: read-only views that change with every step, until a batch of
        another number of rows moves them. Copy what has to stay."""
        return self._open("parameters").parameters()

    def close(self):
        """Leaves or ends the other ranks."""
        work, self._work = self._work, None
        if work is not None:
            work.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()
