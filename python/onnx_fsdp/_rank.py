"""A rank of a `Trainer(nproc_per_node=N)`: the program that _ranks.py starts. It makes the calls in the caller's
messages, and ends when its socket closes."""

import mmap
import multiprocessing.connection
import os
import select
import threading

import numpy

from ._trainer import OneRank


def _end_with(descriptor):
    """Ends this process when the caller's process ends, even during a call."""
    caller = select.poll()
    caller.register(descriptor, select.POLLHUP)
    caller.poll()
    os._exit(0)


class _Memory:
    """The caller's arrays."""

    def __init__(self, descriptor):
        self._descriptor, self._map = descriptor, b""

    def columns(self, deal):
        if os.fstat(self._descriptor).st_size > len(self._map):
            self._map = mmap.mmap(self._descriptor, 0, prot=mmap.PROT_READ)
        return {name: numpy.ndarray(shape, dtype, self._map, offset) for name, dtype, shape, offset in deal}


def main(socket, memory):
    """Serves the caller's messages. `socket` and `memory` are file descriptors."""
    threading.Thread(target=_end_with, args=(socket,), daemon=True).start()
    caller, arrays, trainer = multiprocessing.connection.Connection(socket), _Memory(memory), None
    while True:
        try:
            name, *arguments = caller.recv()
        except (EOFError, OSError):
            os._exit(0)
        value, error = None, None
        try:
            if name == "open":
                trainer = OneRank(*arguments)
            elif name == "step":
                value = trainer.step(arrays.columns(*arguments))
            elif name == "evaluate":
                value = trainer.evaluate(arrays.columns(*arguments))
            elif name == "save":
                trainer.save(*arguments)
            else:
                break
        except Exception as caught:
            error = caught
        caller.send((value, error))
    if trainer is not None:
        trainer.close()
