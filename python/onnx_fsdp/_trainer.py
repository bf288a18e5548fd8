"""`Trainer`: one rank in this process, whose caller brings each batch."""

import ctypes
import os
import typing

import numpy

from ._library import CALLS, EvaluationRow, StepRow, check
from ._settings import Arrays, Request


class Step(float):
    """The loss of an update, before it, with the other numbers of its row: step, grad_norm, lr, step_ms."""

    step: int
    grad_norm: float
    lr: float
    step_ms: float


class Evaluation(typing.NamedTuple):
    loss: float
    accuracy: typing.Optional[float]  # None where the model has none


class _Parameters:
    """Keeps the memory of parameters that arrays refer to."""

    def __init__(self, handle):
        self.handle = handle

    def __del__(self):
        CALLS["parameters_close"](self.handle)


class Trainer:
    """Trains `model`, an update a call. Under torchrun, mpirun or srun each process is a rank and makes the same calls
    with its own rows. `with` or `close` ends it; a process has one at a time.

        trainer = Trainer("model.onnx", loss="cross_entropy", lr=1e-3)
        for batch in batches:
            loss = trainer.step({"image": batch.x, "labels": batch.y})
        trainer.save("trained.onnx")
    """

    def __init__(self, model, **options):
        self._handle = ctypes.c_void_p()
        request = Request(model, options=options)
        check(CALLS["trainer_open"](request.settings, ctypes.byref(self._handle)))

    def step(self, batch):
        """One update; returns its loss."""
        arrays, row = Arrays(batch), StepRow(ctypes.sizeof(StepRow))
        check(CALLS["trainer_step"](self._handle, arrays.list, len(arrays), row))
        loss = Step(row.loss)
        loss.step, loss.grad_norm, loss.lr, loss.step_ms = row.step, row.grad_norm, row.lr, row.step_ms
        return loss

    def evaluate(self, rows):
        """Loss and accuracy of any number of rows."""
        arrays, row = Arrays(rows), EvaluationRow(ctypes.sizeof(EvaluationRow))
        check(CALLS["trainer_evaluate"](self._handle, arrays.list, len(arrays), row))
        return Evaluation(row.loss, None if row.accuracy != row.accuracy else row.accuracy)

    def save(self, path):
        """Writes the trained ONNX file."""
        check(CALLS["trainer_save"](self._handle, os.fsencode(path)))

    def parameters(self):
        """The trained parameters by name, where they lie: read-only views that change with every step, until a batch of
        another number of rows moves them. Copy what has to stay."""
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
        """Leaves the other ranks."""
        if self._handle:
            CALLS["trainer_close"](self._handle)
            self._handle = ctypes.c_void_p()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()
