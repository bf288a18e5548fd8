"""Graphs that ONNX Runtime can evaluate at any weights, for finite differences.

`Probe(model, names, feeds, loss)` evaluates a file's loss with given values for some initializers. Float16 becomes
float32, as in fsdp-run's computation. Rounding has a zero derivative, so differences of a quantized file do not show
the straight-through gradient. Each rounding is replaced by a form with this gradient: the integers are
q = clip(x / scale + zero_point) + r. The constant r is the rounding error at the file's weights. There this graph has
the file's outputs, and its derivative is the straight-through gradient. Integers between nodes are stored as floats.
"""
import math
import signal
import time

import numpy as np
import onnx
import onnx.reference
import onnx.reference.op_run
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

ort.set_default_logger_severity(4)
RANGES = {TensorProto.INT8: (-128, 127), TensorProto.UINT8: (0, 255), TensorProto.INT16: (-32768, 32767),
          TensorProto.UINT16: (0, 65535), TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15)}
NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
LEAST = 1e-30   # for a variance under a root
SLOWEST = 1.0   # seconds: for a slower first call of onnx's reference, ONNX Runtime in float32 is preferred
LONGEST = 8     # seconds until such a call is broken off


def attributes(node):
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def quantized(model):
    return any(n.op_type.startswith(("QuantizeLinear", "DequantizeLinear", "QLinear", "QGemm", "DynamicQuantize", "MatMulInteger",
                                     "ConvInteger", "QAttention", "QEmbed")) for n in model.graph.node)


def has_narrow(model):
    return any(t.data_type in NARROW for t in model.graph.initializer)


def widened(model, narrow=NARROW, wide=TensorProto.FLOAT):
    """Returns the model with float32 in place of float16 and bfloat16, or with other given types."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    dtype = helper.tensor_dtype_to_np_dtype(wide)

    def tensor(t):
        if t.data_type in narrow:
            t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(dtype), t.name))

    def graph(nodes, values=(), initializers=()):
        for t in initializers:
            tensor(t)
        for v in values:
            if v.type.tensor_type.elem_type in narrow:
                v.type.tensor_type.elem_type = wide
        for node in nodes:
            for a in node.attribute:
                if a.name in ("to", "dtype", "stash_type") and a.i in narrow:
                    a.i = wide
                if a.HasField("t"):
                    tensor(a.t)
                if a.HasField("g"):
                    graph(a.g.node, [*a.g.input, *a.g.output, *a.g.value_info], a.g.initializer)
    g = model.graph
    graph(g.node, [*g.input, *g.output, *g.value_info], g.initializer)
    for f in model.functions:
        graph(f.node)
    return model


ERF = """<ir_version: 8, opset_import: ["" : 17]> erf (double[N] x) => (double[N] y) {
  p = Constant<value = double {0.3275911}>() one = Constant<value = double {1.0}>()
  c1 = Constant<value = double {0.254829592}>() c2 = Constant<value = double {-0.284496736}>()
  c3 = Constant<value = double {1.421413741}>() c4 = Constant<value = double {-1.453152027}>()
  c5 = Constant<value = double {1.061405429}>()
  size = Abs(x) sign = Sign(x) a = Mul(p, size) b = Add(one, a) t = Div(one, b)
  h5 = Mul(c5, t) h4 = Add(c4, h5) g4 = Mul(h4, t) h3 = Add(c3, g4) g3 = Mul(h3, t) h2 = Add(c2, g3) g2 = Mul(h2, t)
  h1 = Add(c1, g2) g1 = Mul(h1, t) square = Mul(x, x) minus = Neg(square) e = Exp(minus) tail = Mul(g1, e)
  rest = Sub(one, tail) y = Mul(sign, rest) }"""


def doubled(model):
    """Returns the model in float64: its differences have less rounding. ONNX Runtime has no Erf in double, and onnx's
    reference rounds Erf to float32. Formula 7.1.26 from Abramowitz and Stegun replaces it (error 1.5e-7)."""
    model = widened(model, (TensorProto.FLOAT, *NARROW), TensorProto.DOUBLE)
    body = onnx.parser.parse_model(ERF).graph.node
    made = []

    def erf(x, y):
        for node in body:
            copy = onnx.NodeProto.FromString(node.SerializeToString())
            copy.input[:] = [x if n == "x" else f"{y}.erf.{n}" for n in node.input]
            copy.output[:] = [y if n == "y" else f"{y}.erf.{n}" for n in node.output]
            made.append(copy)

    for node in model.graph.node:
        x, y = (node.input or [""])[0], node.output[0]
        if node.op_type == "Erf":
            erf(x, y)
        elif node.op_type == "Gelu" and attributes(node).get("approximate", b"none") == b"none":
            for name, value in (("root", math.sqrt(0.5)), ("half", 0.5), ("one", 1.0)):
                made.append(helper.make_node("Constant", [], [f"{y}.{name}"], value=numpy_helper.from_array(np.float64(value))))
            made.append(helper.make_node("Mul", [x, y + ".root"], [y + ".scaled"]))
            erf(y + ".scaled", y + ".error")
            made += [helper.make_node("Add", [y + ".error", y + ".one"], [y + ".sum"]),
                     helper.make_node("Mul", [x, y + ".half"], [y + ".halved"]),
                     helper.make_node("Mul", [y + ".halved", y + ".sum"], [y])]
        else:
            made.append(node)
    del model.graph.node[:]
    model.graph.node.extend(made)
    return model


def with_pairs(model):
    """Splits QLinear operators and QGemm: dequantize, the operator on floats, quantize."""
    def dequantize(out, q, scale, zero, axis=None):
        name = f"{out}.{q}.float"
        node = helper.make_node("DequantizeLinear", [q, scale, zero] if zero else [q, scale], [name])
        if axis is not None:
            node.attribute.append(helper.make_attribute("axis", axis))
        made.append(node)
        return name

    def finish(node, kind, inputs, scale, zero, domain="", attrs=None):
        out = node.output[0]
        made.append(helper.make_node(kind, inputs, [out + ".float"], domain=domain,
                                     **(attributes(node) if attrs is None else attrs)))
        made.append(helper.make_node("QuantizeLinear", [out + ".float", scale, zero], [out]))

    made = []
    for node in model.graph.node:
        i, kind, out = list(node.input), node.op_type, node.output[0]
        if kind == "QLinearConv":
            x = dequantize(out, *i[:3])
            w = dequantize(out, *i[3:6], axis=0)
            inputs = [x, w]
            if len(i) > 8 and i[8]:
                made.append(helper.make_node("Mul", [i[1], i[4]], [out + ".bias_scale"]))
                made.append(helper.make_node("DequantizeLinear", [i[8], out + ".bias_scale"], [out + ".bias"], axis=0))
                inputs.append(out + ".bias")
            finish(node, "Conv", inputs, i[6], i[7])
        elif kind == "QLinearMatMul":
            finish(node, "MatMul", [dequantize(out, *i[:3]), dequantize(out, *i[3:6], axis=1)], i[6], i[7])
        elif kind == "QGemm":
            a = attributes(node)
            inputs = [dequantize(out, *i[:3]), dequantize(out, *i[3:6], axis=0 if a.get("transB") else 1)]
            if len(i) > 6 and i[6]:
                made.append(helper.make_node("Mul", [i[1], i[4]], [out + ".bias_scale"]))
                made.append(helper.make_node("DequantizeLinear", [i[6], out + ".bias_scale"], [out + ".bias"], axis=0))
                inputs.append(out + ".bias")
            if len(i) > 7 and i[7]:
                finish(node, "Gemm", inputs, i[7], i[8])
            else:
                made.append(helper.make_node("Gemm", inputs, [out], **a))
        elif kind in ("QLinearAdd", "QLinearMul"):
            finish(node, kind[7:], [dequantize(out, *i[:3]), dequantize(out, *i[3:6])], i[6], i[7])
        elif kind in ("QLinearSigmoid", "QLinearLeakyRelu", "QLinearGlobalAveragePool", "QLinearAveragePool", "QLinearSoftmax",
                      "QLinearReduceMean"):
            a = attributes(node)
            a.pop("channels_last", None)
            a.pop("opset", None)
            finish(node, kind[7:], [dequantize(out, *i[:3])], i[3], i[4], attrs=a)
        elif kind == "QLinearConcat":
            parts = [dequantize(out, *i[k:k + 3]) for k in range(2, len(i), 3)]
            finish(node, "Concat", parts, i[0], i[1])
        elif kind == "QLinearWhere":
            finish(node, "Where", [i[0], dequantize(out, *i[1:4]), dequantize(out, *i[4:7])], i[7], i[8])
        else:
            made.append(node)
    del model.graph.node[:]
    model.graph.node.extend(made)
    return model


def session(model):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def values(model, names, feeds):
    """Returns the values of the named tensors for the feeds."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    del copy.graph.output[:]
    copy.graph.output.extend(helper.make_empty_tensor_value_info(n) for n in names)
    s = session(copy)
    wanted = {i.name for i in s.get_inputs()}
    return dict(zip(names, s.run(names, {k: v for k, v in feeds.items() if k in wanted})))


def straight_through(model, feeds):
    """Returns the quantized model with floats for integers and constant rounding errors, and {integer initializer:
    (scale, zero point)}. Both values broadcast against the initializer."""
    model = with_pairs(onnx.ModelProto.FromString(model.SerializeToString()))
    initializers = {t.name: t for t in model.graph.initializer}
    constants = {n.output[0]: n for n in model.graph.node if n.op_type == "Constant"}
    needed = set()
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
            needed.update(x for x in [*node.input, *node.output] if x and x not in initializers and x not in constants)
        if node.op_type in ("QuantizeLinear", "DequantizeLinear", "MatMulInteger", "ConvInteger", "DynamicQuantizeLSTM", "Floor"):
            needed.update(x for x in node.input if x and x not in initializers and x not in constants)
        if node.op_type == "DynamicQuantizeLSTM":
            needed.add(node.output[0])
    inner = sorted(needed - {i.name for i in model.graph.input})
    known = values(model, inner, feeds) if inner else {}
    known.update({n: numpy_helper.to_array(t) for n, t in initializers.items()})
    known.update({k: v for k, v in feeds.items()})
    for name, node in constants.items():
        known[name] = numpy_helper.to_array(node.attribute[0].t) if node.attribute[0].HasField("t") else None
    made, extra, floats, masters = [], {}, set(), {}
    pairs = {n.output[0]: n for n in model.graph.node if n.op_type == "QuantizeLinear"}
    dequantized = {n.output[0] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    to_integers = {n.input[0] for n in model.graph.node if n.op_type == "Cast" and attributes(n)["to"] == TensorProto.INT32}

    def constant(name, array):
        extra[name] = numpy_helper.from_array(np.asarray(array, np.float32), name)
        return name

    def integers(name, array):
        extra[name] = numpy_helper.from_array(np.asarray(array, np.int64), name)
        return name

    def along(scale, rank, axis, shape, block):
        """Returns scale in a shape that broadcasts against the tensor."""
        scale = np.asarray(scale, np.float32)
        if block:
            return np.repeat(scale, block, axis)[tuple(slice(0, n) for n in shape)]
        if scale.size == 1:
            return scale.reshape(())
        return scale.reshape([-1 if k == axis % rank else 1 for k in range(rank)])

    for node in model.graph.node:
        kind, i, out = node.op_type, list(node.input), node.output[0]
        if kind in ("QuantizeLinear", "DynamicQuantizeLinear"):
            q = known.get(out)
            x = np.asarray(known[i[0]], np.float32)
            dtype = helper.np_dtype_to_tensor_dtype(q.dtype)
            if kind == "DynamicQuantizeLinear":
                s, z, axis, block = known[node.output[1]], known[node.output[2]], 1, 0
                made.append(helper.make_node("Identity", [constant(node.output[1] + ".c", s)], [node.output[1]]))
                made.append(helper.make_node("Identity", [constant(node.output[2] + ".c", z)], [node.output[2]]))
                floats.add(node.output[2])
            else:
                a = attributes(node)
                axis, block = a.get("axis", 1), a.get("block_size", 0)
                s, z = known[i[1]], (known[i[2]] if len(i) > 2 and i[2] else np.zeros((), q.dtype))
            s, z = along(s, x.ndim, axis, x.shape, block), along(z, x.ndim, axis, x.shape, block)
            low, high = RANGES[dtype]
            soft = np.clip(x / s + z, low - 0.5, high + 0.5)
            r = np.asarray(q, np.float32) - soft
            p = out + ".st"
            made += [helper.make_node("Div", [i[0], constant(p + "s", s)], [p + "d"]),
                     helper.make_node("Add", [p + "d", constant(p + "z", z)], [p + "a"]),
                     helper.make_node("Max", [p + "a", constant(p + "low", low - 0.5)], [p + "m"]),
                     helper.make_node("Min", [p + "m", constant(p + "high", high + 0.5)], [p + "n"]),
                     helper.make_node("Add", [p + "n", constant(p + "r", r)], [out])]
            floats.add(out)
        elif kind == "DequantizeLinear" and i[0] in pairs and list(pairs[i[0]].input[1:]) == i[1:]:
            # In one piece: in units of a large scale (for masked scores) the value itself would be rounded away.
            x = np.asarray(known[pairs[i[0]].input[0]], np.float64)
            q, p = known[i[0]], out + ".pair"
            a = attributes(pairs[i[0]])
            low, high = RANGES[helper.np_dtype_to_tensor_dtype(q.dtype)]
            s, z = (along(v, x.ndim, a.get("axis", 1), x.shape, a.get("block_size", 0)).astype(np.float64)
                    for v in (known[i[1]], known[i[2]] if len(i) > 2 and i[2] else 0))
            low, high = (np.clip(edge, -3e38, 3e38) for edge in ((low - 0.5 - z) * s, (high + 0.5 - z) * s))
            made += [helper.make_node("Max", [pairs[i[0]].input[0], constant(p + "low", low)], [p + "m"]),
                     helper.make_node("Min", [p + "m", constant(p + "high", high)], [p + "n"]),
                     helper.make_node("Add", [p + "n", constant(p + "r", (q - z) * s - np.clip(x, low, high))], [out])]
        elif kind == "DequantizeLinear" and i[0] not in floats and i[0] not in initializers:
            made.append(node)   # integers that a Gather picked from a table: constants
        elif kind == "DequantizeLinear":
            a = attributes(node)
            q = known.get(i[0])
            s = np.asarray(known[i[1]], np.float32)
            picked = [n.op_type for n in model.graph.node if i[0] in n.input]
            if i[0] in initializers and "Gather" in picked:
                made.append(node)
                continue
            z = known[i[2]] if len(i) > 2 and i[2] else np.zeros((), np.float32)
            p = out + ".dq"
            if s.size == 1 or q is None:
                s, z = (s.reshape(()) if s.size == 1 else s), np.asarray(z, np.float32).reshape(() if s.size == 1 else s.shape)
            else:
                shape = np.asarray(q).shape
                s = along(s, len(shape), a.get("axis", 1), shape, a.get("block_size", 0))
                z = along(z, len(shape), a.get("axis", 1), shape, a.get("block_size", 0)) if np.size(z) > 1 else np.float32(z)
            made += [helper.make_node("Sub", [i[0], constant(p + "z", z)], [p + "c"]),
                     helper.make_node("Mul", [p + "c", constant(p + "s", s)], [out])]
            if i[0] in initializers:
                floats.add(i[0])
                masters[i[0]] = (s, z)
        elif kind in ("MatMulInteger", "ConvInteger"):
            p = out + ".mi"
            names = []
            for k in (0, 1):
                z = np.asarray(known[i[2 + k]], np.float32) if len(i) > 2 + k and i[2 + k] else np.float32(0)
                if kind == "ConvInteger" and k == 1 and z.size > 1:
                    z = z.reshape(-1, *[1] * (np.asarray(known[i[1]]).ndim - 1))
                elif z.size == 1:
                    z = z.reshape(())
                made.append(helper.make_node("Sub", [i[k], constant(f"{p}{k}z", z)], [f"{p}{k}"]))
                names.append(f"{p}{k}")
                if i[k] in initializers:
                    floats.add(i[k])
                    s = weight_scale(model, out, known)
                    if kind == "ConvInteger" and s.size > 1:
                        s = s.reshape(-1, *[1] * (np.asarray(known[i[1]]).ndim - 1))
                    masters[i[k]] = (s.reshape(()) if s.size == 1 else s, z)
            made.append(helper.make_node(kind.removesuffix("Integer"), names, [out], **attributes(node)))
            floats.add(out)
        elif kind == "DynamicQuantizeLSTM":
            # The states' rounding errors are inputs besides x, and the part R of W reads them.
            p, (x, w, r, *rest), x_errors, h_errors = out + ".lstm.", i[:8], *lstm_errors(node, known)
            directions, ways = h_errors.shape[1], []
            made.append(helper.make_node("Add", [x, constant(p + "x", x_errors)], [p + "rounded"]))
            made.append(helper.make_node("Concat", [p + "rounded", *(constant(f"{p}h{d}", h_errors[:, d]) for d in range(directions))], [p + "both"],
                                         axis=2))
            for name, k in ((w, 8), (r, 10)):
                s, z = (np.asarray(known[i[n]], np.float32) for n in (k, k + 1))
                s, z = (v.reshape(directions, 1, -1) for v in (s, z))
                floats.add(name)
                masters[name] = (s, z)
                made += [helper.make_node("Sub", [name, constant(name + ".z", z)], [name + ".q"]),
                         helper.make_node("Mul", [name + ".q", constant(name + ".s", s)], [name + ".v"]),
                         helper.make_node("Transpose", [name + ".v"], [name + ".t"], perm=[0, 2, 1])]
            if directions == 2:
                for d in (0, 1):
                    made += [helper.make_node("Slice", [r + ".t", *(integers(f"{p}{d}{n}", [v]) for n, v in (("begin", d), ("end", d + 1), ("axis", 0)))],
                                              [f"{r}.t{d}"]),
                             helper.make_node("Mul", [f"{r}.t{d}", constant(p + "none", 0)], [f"{r}.none{d}"])]
                made += [helper.make_node("Concat", [r + ".t0", r + ".none1"], [r + ".first"], axis=0),
                         helper.make_node("Concat", [r + ".none0", r + ".t1"], [r + ".second"], axis=0)]
                ways = [r + ".first", r + ".second"]
            made.append(helper.make_node("Concat", [w + ".t", *(ways or [r + ".t"])], [w + ".both"], axis=2))
            made.append(helper.make_node("LSTM", [p + "both", w + ".both", r + ".t", *rest], node.output, node.name, **attributes(node)))
        elif kind == "Floor" and out in to_integers:
            x = np.asarray(known[i[0]], np.float32)
            made.append(helper.make_node("Add", [i[0], constant(out + ".r", np.floor(x) - x)], [out]))
            floats.add(out)
        else:
            if kind == "Cast" and i[0] in floats:
                made.append(helper.make_node("Identity", [i[0]], [out]))
                continue
            if kind == "Sqrt" and i[0] in dequantized:   # a variance rounded to 0; differences would take roots of less
                made.append(helper.make_node("Max", [i[0], constant(out + ".least", LEAST)], [out + ".above"]))
                node = helper.make_node("Sqrt", [out + ".above"], [out])
            if any(x in floats for x in i):
                floats.update(node.output)
                if kind == "Pad" and len(i) > 2 and i[2]:
                    i[2] = constant(out + ".border", known[i[2]])
                    node = helper.make_node("Pad", i, [out], **attributes(node))
            made.append(node)
    del model.graph.node[:]
    model.graph.node.extend(made)
    kept = [t for t in model.graph.initializer if t.name not in floats]
    for name in floats:
        if name in initializers:
            extra[name] = numpy_helper.from_array(
                np.asarray(numpy_helper.to_array(initializers[name])).astype(np.float32), name)
    del model.graph.initializer[:]
    model.graph.initializer.extend([*kept, *extra.values()])
    model.graph.ClearField("value_info")
    for value in model.graph.input:
        if value.name in floats:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    return model, masters


def lstm_errors(node, known):
    """Returns the rounding errors of DynamicQuantizeLSTM's x and of the states that R reads [steps, directions,
    batch, hidden]."""
    def errors(x):
        low, high = min(x.min(), 0), max(x.max(), 0)
        scale = np.float32(high - low) / np.float32(255) if high > low else np.float32(1)
        zero = np.rint(-low / scale)
        return ((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale - x).astype(np.float32)

    y, first = np.asarray(known[node.output[0]], np.float32), node.input[5] if len(node.input) > 5 else ""
    if len(node.input) > 4 and node.input[4]:
        raise NotImplementedError("DynamicQuantizeLSTM with lengths of sequences")
    first = np.asarray(known[first], np.float32) if first else np.zeros(y.shape[1:], np.float32)
    read = np.empty_like(y)
    ways = {b"reverse": [1], b"bidirectional": [0, 1]}.get(attributes(node).get("direction", b"forward"), [0])
    for d, backward in enumerate(ways):
        if backward:
            read[:-1, d], read[-1, d] = y[1:, d], first[d]
        else:
            read[1:, d], read[0, d] = y[:-1, d], first[d]
    return errors(np.asarray(known[node.input[0]], np.float32)), np.stack([np.stack([errors(s) for s in step]) for step in read])


def weight_scale(model, product, known):
    """Returns the weight's scale for an integer product: the constant factor in the Mul after it."""
    by_output = {o: n for n in model.graph.node for o in n.output}
    readers = {}
    for n in model.graph.node:
        for x in n.input:
            readers.setdefault(x, []).append(n)
    casts = readers.get(product, [])
    for cast in [*casts, *(after for add in casts if add.op_type == "Add" for after in readers.get(add.output[0], []))]:
        for mul in readers.get(cast.output[0], []):
            for x in mul.input:
                for s in [x, *(by_output[x].input if x in by_output else [])]:
                    if mul.op_type == "Mul" and s in known and s != cast.output[0] and not s.endswith("scale_dynamic"):
                        if s not in by_output or by_output[s].op_type == "Constant":
                            return np.asarray(known[s], np.float32)
    raise ValueError(f"no scale after {product}")


class Input:
    def __init__(self, value):
        self.name = value.name
        self.type = {TensorProto.DOUBLE: "tensor(double)", TensorProto.FLOAT: "tensor(float)"}.get(
            value.type.tensor_type.elem_type, "other")


class BatchNormalization(onnx.reference.op_run.OpRun):
    """Before opset 14, more outputs than Y mean training: X is normalized by its own statistics. ONNX Runtime does
    the same. onnx's reference instead takes the given mean and variance mixed with X's own by the momentum, for any
    outputs."""

    def _run(self, x, scale, bias, mean, var, epsilon=None, momentum=None, training_mode=None, spatial=None):  # noqa: ARG002
        self_made = bool(training_mode) or len(self.onnx_node.output) > 1
        axes = tuple(k for k in range(x.ndim) if k != 1)
        if self_made:
            before, mean, var = (mean, var), x.mean(axes), x.var(axes)
        y = ((x - along_channels(mean, x)) / np.sqrt(along_channels(var, x) + (1e-5 if epsilon is None else epsilon))
             * along_channels(scale, x) + along_channels(bias, x))
        results = [y.astype(x.dtype)]
        if self_made:
            share = 0.9 if momentum is None else momentum
            results += [(b * share + v * (1 - share)).astype(b.dtype) for b, v in zip(before, (mean, var))] + [mean, var]
        return tuple(results[:len(self.onnx_node.output)])


def along_channels(values, x):
    return values.reshape(-1, *[1] * (x.ndim - 2))


class Reference:
    """onnx's reference evaluator with the interface of a session. It has every ONNX operator in double."""

    operators = [BatchNormalization]   # in place of the evaluator's class

    def __init__(self, model):
        self.evaluator = onnx.reference.ReferenceEvaluator(model, new_ops=self.operators)
        self.inputs = [Input(i) for i in model.graph.input]

    def get_inputs(self):
        return self.inputs

    def run(self, names, feeds):
        def late(*_):
            raise TimeoutError(f"onnx's reference took {LONGEST} s")
        before = signal.signal(signal.SIGALRM, late)
        left = signal.alarm(LONGEST)
        try:
            return self.evaluator.run(names, feeds)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
            signal.alarm(left)


class Probe:
    """Evaluates a model's loss with given values for the named initializers, in double if ONNX Runtime or onnx's
    reference can. `loss` takes the prediction's array. `noise` is the measured rounding of a loss; `seconds` the
    processor time of a call."""

    def __init__(self, model, names, feeds, prediction, loss):
        self.prediction, self.loss = prediction, loss
        self.base = {t.name: numpy_helper.to_array(t).astype(np.float32) for t in model.graph.initializer if t.name in names}
        for self.by in ("ONNX Runtime, double", "onnx, double", "ONNX Runtime, float"):
            self.double = "double" in self.by
            try:
                began = time.process_time()
                self.open(doubled(model) if self.double else model, names, feeds)
                if self.by[:4] == "onnx" and (time.process_time() - began > SLOWEST or not math.isfinite(self.at_base)):
                    continue
                break
            except Exception:  # noqa: BLE001: an operator without a kernel for double
                if not self.double:
                    raise
        random, began = np.random.default_rng(0), time.process_time()
        near = [self({n: w * (1 + 1e-7 * random.standard_normal(w.shape)) for n, w in self.base.items()}) for _ in range(4)]
        self.seconds = (time.process_time() - began) / 4
        self.noise = max(2 * float(np.std([self.at_base, *near])), 2e-9 * abs(self.at_base))
        if self.double:
            self.noise = 1e-12 * max(abs(self.at_base), 1)

    def open(self, model, names, feeds):
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        copy.ir_version = max(copy.ir_version, 8)
        inputs = {i.name for i in copy.graph.input}
        for t in copy.graph.initializer:
            if t.name in names and t.name not in inputs:
                copy.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
        rest = [t for t in copy.graph.initializer if t.name not in names]
        del copy.graph.initializer[:]
        copy.graph.initializer.extend(rest)
        self.session = Reference(copy) if self.by[:4] == "onnx" else session(copy)
        self.types = {i.name: np.float64 if i.type == "tensor(double)" else np.float32 for i in self.session.get_inputs()
                      if i.type in ("tensor(float)", "tensor(double)")}
        wanted = {i.name for i in self.session.get_inputs()}
        self.feeds = {k: v.astype(self.types[k]) if k in self.types else v for k, v in feeds.items() if k in wanted}
        self.at_base = self(self.base)

    def __call__(self, weights):
        fed = {k: np.asarray(v, self.types[k]) for k, v in {**self.base, **weights}.items()}
        return self.loss(self.session.run([self.prediction], {**self.feeds, **fed})[0])


def finite(value):
    return value is not None and math.isfinite(value)
