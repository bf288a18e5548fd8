"""The ranks of a `Trainer(nproc_per_node=N)`: N processes with a Trainer each (_rank.py), and the messages to them.

A call is a message through a socket to every rank, and a reply from each. Arrays go through shared memory: the caller
writes them once, and the ranks read them in place. Row i of a batch goes to rank i modulo N. fsdp-run deals the samples
of an update in the same way, so the bits are the same as on the command line.

A rank ends when its socket closes: no rank outlives the caller. Ranks detect each other's end within `timeout`, as in
fsdp-run.
"""

import concurrent.futures
import mmap
import multiprocessing
import multiprocessing.connection
import os
import secrets
import subprocess
import sys
import time

import numpy

from ._library import InputError, RunError
from ._settings import checked

_ALIGNMENT = 64
_GRACE = 10.0  # seconds in which ranks may end by themselves, as fsdp-run gives them
_START = "import sys; sys.path[:] = sys.argv[3:]; from onnx_fsdp._rank import main; main(int(sys.argv[1]), int(sys.argv[2]))"


def _environment(rank, ranks, meeting):
    """Returns the environment variables that make a process a rank (docs/internals/launch.md). They override the
    variables from the caller's own launcher."""
    said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "GROUP_RANK": 0,
            "GROUP_WORLD_SIZE": 1, "OFSDP_RENDEZVOUS": meeting, "OFSDP_RESTART": "", "OFSDP_FAILURE_FD": ""}
    return {**os.environ, **{name: str(value) for name, value in said.items()}}


class _Memory:
    """Shared memory that the ranks also map. It grows with the largest batch."""

    def __init__(self):
        self.descriptor = os.memfd_create("onnx_fsdp batch")
        self._map = None

    def write(self, columns, ranks):
        """Writes each rank's rows of the columns. Returns for each rank a list of (name, dtype, shape, offset)."""
        deals, size = [[] for _ in range(ranks)], 0
        for name, array in columns.items():
            shape = (array.shape[0] // ranks, *array.shape[1:])
            for deal in deals:
                deal.append((name, array.dtype.str, shape, size))
                size += -(-array.nbytes // ranks // _ALIGNMENT) * _ALIGNMENT
        if self._map is None or len(self._map) < size:
            os.ftruncate(self.descriptor, max(size, 1))
            self._map = mmap.mmap(self.descriptor, 0)
        for rank, deal in enumerate(deals):
            for (name, dtype, shape, offset) in deal:
                place = numpy.ndarray(shape, dtype, self._map, offset)
                place[...] = columns[name][rank::ranks]
        return deals

    def close(self):
        os.close(self.descriptor)


class Ranks:
    """N ranks, with the methods of a Trainer."""

    def __init__(self, model, ranks, options):
        if isinstance(ranks, bool) or not isinstance(ranks, (int, numpy.integer)) or ranks < 1:
            raise InputError(f"nproc_per_node: expected a number of ranks, at least 1, found {ranks!r}")
        if os.environ.get("WORLD_SIZE", "1") not in ("", "1"):
            raise InputError(f"nproc_per_node: expected none, since this process is one of {os.environ['WORLD_SIZE']} ranks "
                             "already, as WORLD_SIZE says")
        self._count = int(ranks)
        self._memory, self._processes, self._sockets = _Memory(), [], []
        self._failure = None  # after it no rank runs
        # Ctrl-C interrupts the main thread. A call goes on in this one, so that no rank is left without its message.
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "onnx_fsdp ranks")
        try:
            meeting = f"python-{os.getpid()}-{secrets.token_hex(8)}"
            for rank in range(self._count):
                self._start(rank, _environment(rank, self._count, meeting))
            self._call("open", os.fspath(model), options)
        except BaseException:
            self.close()
            raise

    def _start(self, rank, environment):
        ours, theirs = multiprocessing.Pipe()
        self._sockets.append(ours)
        inherited = [theirs.fileno(), self._memory.descriptor]
        path = [folder or os.getcwd() for folder in sys.path]
        # A new session: Ctrl-C in a terminal goes only to the caller.
        self._processes.append(subprocess.Popen(
            [sys.executable, "-c", _START, *map(str, inherited), *path], env=environment, pass_fds=inherited,
            stdin=subprocess.DEVNULL, start_new_session=True))
        theirs.close()

    def step(self, batch):
        return self._call_with_rows("step", batch)

    def evaluate(self, rows):
        return self._call_with_rows("evaluate", rows)

    def save(self, path):
        self._call("save", os.path.abspath(path))

    def parameters(self):
        raise InputError("parameters: expected a trainer in this process, found ranks of its own (nproc_per_node); save "
                         "writes the file")

    def _call_with_rows(self, name, rows):
        columns = {str(column): checked(column, values) for column, values in rows.items()}
        for column, array in columns.items():
            if len(array) % self._count:
                remedy = "; onnx_fsdp.evaluate takes any number" if name == "evaluate" else ""
                raise InputError(f"array '{column}': expected as many rows for each of {self._count} ranks, found {len(array)} "
                                 f"in all, which is no multiple of {self._count}{remedy}")
        return self._call(name, columns)

    def _call(self, *message):
        call = self._pool.submit(self._exchange, message)
        try:
            return call.result()
        except BaseException:
            concurrent.futures.wait([call])  # Ctrl-C: as in a trainer in this process, the call ends first
            raise

    def _exchange(self, message):
        """Sends the message to all ranks. Returns the first rank's value, or raises the error of the call."""
        if self._failure is not None:
            raise self._failure
        name, *arguments = message
        said = [message] * self._count
        if name in ("step", "evaluate"):
            said = [(name, deal) for deal in self._memory.write(*arguments, self._count)]
        for socket, text in zip(self._sockets, said):
            try:
                socket.send(text)
            except OSError:
                pass  # its end shows below
        replies, ended = self._replies()
        errors = [reply[1] for reply in replies if reply is not None and reply[1] is not None]
        # A rank with wrong input reports the reason; the others report that this rank has gone.
        errors.sort(key=lambda error: isinstance(error, RunError))
        if ended and not errors:
            errors.append(RunError(self._end_of(ended[0])))
        if None in replies:
            self._kill()
            self._failure = errors[0]
        if errors:
            raise errors[0]
        return replies[0][0]

    def _replies(self):
        """Returns the replies of all ranks, and a list of the ranks that ended. A reply is None if its rank ended,
        or if it is missing _GRACE seconds after another rank's end or error."""
        replies, waiting, until, ended = [None] * self._count, dict(zip(self._sockets, range(self._count))), None, []
        while waiting:
            left = None if until is None else max(0.0, until - time.monotonic())
            ready = multiprocessing.connection.wait(list(waiting), left)
            if not ready:
                break
            for socket in ready:
                rank = waiting.pop(socket)
                try:
                    replies[rank] = socket.recv()
                except (EOFError, OSError):
                    ended.append(rank)
                if until is None and (replies[rank] is None or replies[rank][1] is not None):
                    until = time.monotonic() + _GRACE
        return replies, ended

    def _end_of(self, rank):
        status = self._processes[rank].wait()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"rank {rank} (process {self._processes[rank].pid}) {how}"

    def _kill(self):
        for process in self._processes:
            process.kill()
            process.wait()

    def close(self):
        """Ends the ranks, and kills every rank that does not end by itself."""
        until = time.monotonic() + _GRACE
        for socket in self._sockets:
            try:
                socket.send(("close",))
            except OSError:
                pass  # it has ended
        for process in self._processes:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._pool.shutdown()
        for socket in self._sockets:
            socket.close()
        self._memory.close()
