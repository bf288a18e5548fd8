"""libonnx_fsdp.so by ctypes: the structs and functions of onnx_fsdp.h, and its statuses as exceptions.

With ctypes one wheel serves every Python from 3.9 on, whatever its ABI; a compiled module would need a wheel for each.
A call costs some microseconds, a negligible part of a training step. Every foreign call releases the GIL.
"""

import ctypes
import importlib.util
import os
import pathlib

# A process that computes between Python's statements must not spin meanwhile (docs/internals/threads.md). libgomp reads this when
# it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if importlib.util.find_spec("onnx_fsdp_cuda"):  # a separate package
    import onnx_fsdp_cuda
    onnx_fsdp_cuda.set_environment()

OK, RUN_ERROR, INPUT_ERROR, STOPPED = range(4)


class InputError(ValueError):
    """A wrong option, file or array. fsdp-run ends with exit status 2 for the same error."""


class RunError(RuntimeError):
    """A failed run: a full disk, a dead rank, NaN. fsdp-run ends with exit status 1 for the same error."""


class Option(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class Array(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
                ("dims", ctypes.POINTER(ctypes.c_int64)), ("data", ctypes.c_void_p)]


class Settings(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("model", ctypes.c_char_p), ("options", ctypes.POINTER(Option)),
                ("option_count", ctypes.c_size_t), ("data", ctypes.POINTER(Array)), ("data_count", ctypes.c_size_t),
                ("eval_data", ctypes.POINTER(Array)), ("eval_data_count", ctypes.c_size_t), ("prints", ctypes.c_int32)]


class StepRow(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("step", ctypes.c_int64), ("loss", ctypes.c_double),
                ("grad_norm", ctypes.c_double), ("lr", ctypes.c_double), ("step_ms", ctypes.c_double),
                ("skipped", ctypes.c_int32)]


class Metric(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_double)]


class EvaluationRow(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("step", ctypes.c_int64), ("loss", ctypes.c_double),
                ("metrics", ctypes.POINTER(Metric)), ("metric_count", ctypes.c_size_t)]


def _find():
    """Returns OFSDP_LIBRARY, else the library in the folder lib next to this file, else its name for the system's
    loader."""
    name = "libonnx_fsdp.so"
    named = os.environ.get("OFSDP_LIBRARY")
    if named:
        return named
    inside = sorted((pathlib.Path(__file__).resolve().parent / "lib").glob(name + "*"))
    return str(inside[0]) if inside else name


def _load():
    library = ctypes.CDLL(_find())
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    settings, handle = ctypes.POINTER(Settings), ctypes.POINTER(ctypes.c_void_p)
    arrays = [pointer, ctypes.POINTER(Array), ctypes.c_size_t]
    functions = {
        "version": (text, []),
        "error": (text, []),
        "option_count": (ctypes.c_int32, [text]),
        "check": (ctypes.c_int, [settings, handle]),
        "plan": (ctypes.c_int, [settings, handle]),
        "plan_page": (ctypes.c_int, [settings, handle]),
        "free": (None, [pointer]),
        "run_start": (ctypes.c_int, [text, settings, handle]),
        "run_next": (ctypes.c_int, [pointer, ctypes.c_int32, ctypes.POINTER(text), ctypes.POINTER(ctypes.c_int32)]),
        "run_stop": (None, [pointer]),
        "run_close": (None, [pointer]),
        "trainer_open": (ctypes.c_int, [settings, handle]),
        "trainer_step": (ctypes.c_int, arrays + [ctypes.POINTER(StepRow)]),
        "trainer_evaluate": (ctypes.c_int, arrays + [ctypes.POINTER(EvaluationRow)]),
        "trainer_save": (ctypes.c_int, [pointer, text]),
        "trainer_parameters": (ctypes.c_int, [pointer, handle]),
        "trainer_close": (None, [pointer]),
        "parameters_count": (ctypes.c_size_t, [pointer]),
        "parameters_at": (Array, [pointer, ctypes.c_size_t]),
        "parameters_close": (None, [pointer]),
    }
    found = {}
    for name, (result, arguments) in functions.items():
        function = getattr(library, "onnx_fsdp_" + name)
        function.restype, function.argtypes = result, arguments
        found[name] = function
    return found


CALLS = _load()
__version__ = CALLS["version"]().decode()


def check(status):
    """Raises the exception for an error status. Returns every other status."""
    if status == INPUT_ERROR:
        raise InputError(CALLS["error"]().decode(errors="replace"))
    if status == RUN_ERROR:
        raise RunError(CALLS["error"]().decode(errors="replace"))
    return status
