"""`Trainer`: training with batches from the caller; one rank in this process, or separate processes (_ranks.py)."""

import ctypes
import os
import typing

import numpy

from ._library import CALLS, EvaluationRow, InputError, StepRow, check
from ._settings import Arrays, Request


class Step(float):
    """The loss before an update, with the other numbers of its row: step, grad_norm, lr, step_ms, skipped."""

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
    """Keeps the parameters' memory alive while arrays refer to it."""

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
    """Trains `model`: one update for each call of `step`. `with` or `close` ends it.

        trainer = Trainer("model.onnx", loss="cross_entropy", lr=1e-3)
        for batch in batches:
            loss = trainer.step({"image": batch.x, "labels": batch.y})
        trainer.save("trained.onnx")

    By default it is one rank in this process; a process has one at a time. Under torchrun, mpirun or srun each
    process is a rank, and makes the same calls with its own rows. `nproc_per_node` is a number of rank processes
    that the trainer starts; then the caller passes the rows of all ranks.
    """

    def __init__(self, model, *, nproc_per_node=None, **options):
        self._work = None
        if nproc_per_node is None:
            self._work = OneRank(model, options)
        else:
            from ._ranks import Ranks  # its imports take a while
            self._work = Ranks(model, nproc_per_node, options)

    def _open(self, call):
        if self._work is None:
            raise InputError(f"{call}: expected a trainer that is open, found a closed one")
        return self._work

    def step(self, batch):
        """One update; returns its loss."""
        return self._open("step").step(batch)

    def evaluate(self, rows):
        """Returns loss and metrics for any number of rows; with several ranks, for rows that fill whole micro-batches."""
        return self._open("evaluate").evaluate(rows)

    def save(self, path):
        """Writes the trained ONNX file."""
        self._open("save").save(path)

    def parameters(self):
        """Returns the trained parameters by name, as read-only views that change with every step. A batch with
        another number of rows moves them. Copy a value to keep it."""
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
