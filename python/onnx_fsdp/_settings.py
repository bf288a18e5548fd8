"""Python's values as the structs of onnx_fsdp.h. The memory that they point to lives as long as the returned object."""

import ctypes
import numbers
import os

import numpy

from ._library import CALLS, Array, InputError, Option, Settings

# ONNX's numbers (TensorProto.DataType) of numpy's types.
_DTYPES = {"float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
           "float64": 11, "uint32": 12, "uint64": 13}


def _text(value):
    if isinstance(value, (bool, numpy.bool_)):
        return "on" if value else "off"
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return repr(float(value))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _words(name, value):
    """Returns the texts of an option, one for each occurrence."""
    if isinstance(value, (list, tuple)):
        texts = [_text(one) for one in value]
        return texts if CALLS["option_count"](name.encode()) == 2 else [",".join(texts)]
    return [_text(value)]


def checked(name, values):
    """Returns a column's values as an array that the library accepts."""
    array = numpy.asarray(values)
    if array.dtype.name not in _DTYPES or not array.dtype.isnative:
        raise InputError(f"array '{name}': expected one of {', '.join(_DTYPES)}, found {array.dtype.str}")
    if array.ndim == 0:
        raise InputError(f"array '{name}': expected a first axis of samples, found a scalar")
    return array


class Arrays:
    """A mapping from column names to arrays, in the library's form. An array in C order is not copied."""

    def __init__(self, columns):
        self.kept = []
        self.list = (Array * len(columns))()
        for place, (name, values) in zip(self.list, columns.items()):
            array = numpy.ascontiguousarray(checked(name, values))
            dims = (ctypes.c_int64 * array.ndim)(*array.shape)
            self.kept += [array, dims]
            place.name, place.dtype, place.rank = str(name).encode(), _DTYPES[array.dtype.name], array.ndim
            place.dims, place.data = dims, array.ctypes.data

    def __len__(self):
        return len(self.list)


class Request:
    """onnx_fsdp_settings."""

    def __init__(self, model, data=None, eval_data=None, prints=False, options=None):
        said = dict(options or {})
        for name, value in (("data", data), ("eval_data", eval_data)):
            if value is not None and not hasattr(value, "items"):
                said[name] = value  # a folder, a YAML file or a word
        words = [(name.replace("_", "-"), text) for name, value in said.items() if value is not None
                 for text in _words(name.replace("_", "-"), value)]
        self.options = (Option * len(words))(*[Option(name.encode(), text.encode()) for name, text in words])
        self.arrays = [Arrays(value if hasattr(value, "items") else {}) for value in (data, eval_data)]
        train, evaluation = self.arrays
        self.settings = Settings(ctypes.sizeof(Settings), os.fsencode(model), self.options, len(words), train.list,
                                 len(train), evaluation.list, len(evaluation), int(prints))
