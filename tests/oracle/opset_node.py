"""Models of one node, for opsets.py: a case, its random arrays, and ONNX Runtime's result."""
import collections
import os
import zlib

os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402

NEWEST = 28
onnxruntime.set_default_logger_severity(4)

VERSIONS = collections.defaultdict(list)
for _schema in onnx.defs.get_all_schemas_with_history():
    if _schema.domain == "":
        VERSIONS[_schema.name].append(_schema.since_version)
VERSIONS = {name: sorted(set(v for v in versions if v <= NEWEST)) for name, versions in VERSIONS.items()}


class Case:
    """One node. An input is an array, None if it is omitted, or ("init", array) for an initializer."""

    def __init__(self, op, name, inputs, attributes=None, since=1, until=NEWEST, outputs=1, like=None, note=None, wrong=None,
                 refused=None, exact=False, skip_outputs=()):
        self.op, self.name, self.inputs, self.attributes = op, name, inputs, attributes or {}
        self.since, self.until, self.outputs, self.like = since, until, outputs, like
        self.note = note  # goes into the table
        self.wrong = wrong  # why ONNX Runtime's result breaks the standard; the result of `like` does not
        self.refused = refused  # a part of the refusal's message
        self.exact = exact  # `like` is the expected value, since ONNX Runtime's is rounded where it is 0
        self.skip_outputs = skip_outputs  # not compared, since the standard leaves them open


CASES = []  # filled by opset_cases.py


def case(*args, **kwargs):
    CASES.append(Case(*args, **kwargs))


class Draw:
    """Draws arrays that depend only on the name."""

    def __init__(self, name):
        self.random = np.random.RandomState(zlib.crc32(name.encode()))

    def f(self, *shape):
        return self.random.randn(*shape).astype(np.float32)

    def u(self, *shape):
        return self.random.uniform(0.1, 0.9, shape).astype(np.float32)

    def i(self, low, high, *shape):
        return self.random.randint(low, high, shape).astype(np.int64)

    def b(self, *shape):
        return self.random.rand(*shape) > 0.5


def init(array):
    return ("init", array)


def array_of(entry):
    return np.asarray(entry[1] if isinstance(entry, tuple) else entry)


def ints(*values):
    return np.array(values, np.int64)


def floats(*values):
    return np.array(values, np.float32)


def newer(opset, op=None, attributes=None, inputs=None):
    """Returns a function for ONNX Runtime's result of a node with the same meaning in a newer opset."""

    def run(c, arrays):
        made = Case(op or c.op, c.name, inputs(arrays) if inputs else [None if a is None else a for a in arrays],
                    c.attributes if attributes is None else attributes, outputs=c.outputs)
        return run_ort(model_of(made, opset), feeds_of(made))

    return run


def model_of(c, opset):
    names, infos, tensors = [], [], []
    for k, entry in enumerate(c.inputs):
        if entry is None:
            names.append("")
            continue
        name = "in%d" % k
        names.append(name)
        array = np.asarray(array_of(entry))
        info = helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        if isinstance(entry, tuple):
            tensors.append(numpy_helper.from_array(array, name))
        else:
            infos.append(info)
    outs = ["out%d" % k for k in range(c.outputs)]
    node = helper.make_node(c.op, names, outs, name="it", **c.attributes)
    graph = helper.make_graph([node], "one", infos, [helper.make_value_info(n, onnx.TypeProto()) for n in outs], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8 if opset < 21 else 10 if opset < 24 else 11
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
        for out, known in zip(model.graph.output, inferred.graph.output):
            out.CopyFrom(known)
    except Exception:  # pylint: disable=broad-except
        pass
    return model


def feeds_of(c):
    return {"in%d" % k: np.asarray(e) for k, e in enumerate(c.inputs) if e is not None and not isinstance(e, tuple)}


def run_ort(model, feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)
