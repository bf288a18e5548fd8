"""A graph's gradients by PyTorch's autograd. They decide where finite differences cannot.

`gradients(model, names, feeds, prediction, loss)` walks the nodes of a graph and returns the loss and the gradient of
each named initializer. The graph has standard operators; graphs.py converts quantized and float16 files. Raises
NotImplementedError for an operator without a rule here. The module uses no part of fsdp-run.

A graph with pairs (QuantizeLinear, DequantizeLinear) needs no conversion: each pair rounds, with the gradient of
PyTorch's `fake_quantize`. Rounding before the pair decides a value on the border of two integers. A clipped value
has no gradient. `gradients(.., nudge)` moves the scales at random by a float32 rounding.
"""
import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

from graphs import RANGES


def tensor(array):
    array = np.asarray(array)
    return torch.from_numpy(np.array(array.astype(np.float64) if array.dtype.kind == "f" else array))


def whole(values):
    return [int(v) for v in values.reshape(-1).tolist()]


def matched(a, b):
    """Converts both to double if their types differ: a straight-through graph may mix integers and floats."""
    return (a, b) if a.dtype == b.dtype else (a.double(), b.double())


def division(a, b):
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def resized(a, x, scales, sizes, opset):
    """Resize as a matrix along each axis. onnx's reference makes the matrix from the unit matrix."""
    target = whole(sizes) if sizes is not None else [int(np.floor(n * s)) for n, s in zip(x.shape, scales.tolist())]
    for axis, (n, m) in enumerate(zip(x.shape, target)):
        if n == m:
            continue
        words = {k: v for k, v in a.items() if k != "axes"}
        feeds, inputs = {"x": np.eye(n)}, ["x", "", "scales"]
        if sizes is not None:
            feeds["sizes"], inputs = np.array([n, m]), ["x", "", "", "sizes"]
        else:
            feeds["scales"] = np.array([1, float(scales[axis])], np.float32)
        node = helper.make_node("Resize", inputs, ["y"], **words)
        values = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()]
        graph = helper.make_graph([node], "resize", values, [helper.make_empty_tensor_value_info("y")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        x = (x.movedim(axis, -1) @ tensor(onnx.reference.ReferenceEvaluator(model).run(None, feeds)[0])).movedim(-1, axis)
    return x


def attention(a, q, k, v, mask=None, *rest):
    if any(r is not None for r in rest):
        raise NotImplementedError("Attention with a past")
    flat = q.dim() == 3
    if flat:
        heads = (a["q_num_heads"], a["kv_num_heads"], a["kv_num_heads"])
        q, k, v = (t.reshape(*t.shape[:2], n, -1).transpose(1, 2) for t, n in zip((q, k, v), heads))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) * a.get("scale", q.shape[-1] ** -0.5)
    if a.get("softcap", 0):
        scores = a["softcap"] * torch.tanh(scores / a["softcap"])
    if a.get("is_causal", 0):
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    y = scores.softmax(-1) @ v
    return y.transpose(1, 2).flatten(2) if flat else y


def padded(x, pads, spatial, value=0.0):
    """Pads the last axes by ONNX's begins and ends."""
    if not any(pads):
        return x
    return F.pad(x, [p for k in reversed(range(spatial)) for p in (pads[k], pads[k + spatial])], value=value)


def window(a, x):
    spatial = x.dim() - 2
    if a.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise NotImplementedError("auto_pad")
    return spatial, a.get("pads", [0] * 2 * spatial), a.get("strides", [1] * spatial), a.get("dilations", [1] * spatial)


def conv(a, x, w, b=None):
    spatial, pads, strides, dilations = window(a, x)
    return (F.conv1d, F.conv2d, F.conv3d)[spatial - 1](padded(x, pads, spatial), w, b, strides, 0, dilations, a.get("group", 1))


def conv_transpose(a, x, w, b=None):
    spatial, pads, strides, dilations = window(a, x)
    if pads[:spatial] != pads[spatial:] or "output_shape" in a:
        raise NotImplementedError("ConvTranspose with pads that differ")
    return (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[spatial - 1](
        x, w, b, strides, pads[:spatial], a.get("output_padding", 0), a.get("group", 1), dilations)


def pad(a, x, pads, value=None, axes=None):
    if a.get("mode", b"constant") != b"constant":
        raise NotImplementedError("Pad by other values")
    axes, pads, by = whole(axes) if axes is not None else range(x.dim()), whole(pads), [0] * 2 * x.dim()
    for k, axis in enumerate(axes):
        by[axis % x.dim()], by[axis % x.dim() + x.dim()] = pads[k], pads[k + len(axes)]
    return padded(x, by, x.dim(), 0.0 if value is None else float(value))


def scatter_nd(a, x, i, u):
    if a.get("reduction", b"none") != b"none":
        raise NotImplementedError("ScatterND that reduces")
    return x.index_put(tuple(i.unbind(-1)), u)


def max_pool(a, x):
    spatial, pads, strides, dilations = window(a, x)
    return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[spatial - 1](
        padded(x, pads, spatial, -torch.inf), a["kernel_shape"], strides, 0, dilations, bool(a.get("ceil_mode", 0)))


def average_pool(a, x):
    spatial, pads, strides, dilations = window(a, x)
    if any(d != 1 for d in dilations) or any(pads) and not a.get("count_include_pad", 0) or a.get("ceil_mode", 0):
        raise NotImplementedError("AveragePool that counts")
    return (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[spatial - 1](padded(x, pads, spatial), a["kernel_shape"], strides)


def batch_norm(a, outputs, x, scale, bias, mean, var):
    own = bool(a.get("training_mode", 0)) or outputs > 1
    return F.batch_norm(x, None if own else mean, None if own else var, scale, bias, own, 0.0, a.get("epsilon", 1e-5))


def gemm(a, x, y, c=None):
    p = (x.mT if a.get("transA", 0) else x) @ (y.mT if a.get("transB", 0) else y) * a.get("alpha", 1.0)
    return p if c is None else p + c * a.get("beta", 1.0)


def reduced(fold, a, x, axes=None):
    axes = whole(axes) if axes is not None else list(a.get("axes", range(x.dim())))
    return fold(x, axes, bool(a.get("keepdims", 1)))


def sliced(a, x, starts=None, ends=None, axes=None, steps=None):
    starts, ends = (a["starts"], a["ends"]) if starts is None else (whole(starts), whole(ends))   # attributes before opset 10
    axes = whole(axes) if axes is not None else a.get("axes", range(len(starts)))
    steps = whole(steps) if steps is not None else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps):
        x = x.index_select(axis, torch.from_numpy(np.arange(x.shape[axis])[slice(start, end, step)].copy()))
    return x


def split(a, outputs, x, sizes=None):
    axis = a.get("axis", 0)
    parts = whole(sizes) if sizes is not None else a.get("split") or [
        min(-(-x.shape[axis] // outputs), x.shape[axis] - k * -(-x.shape[axis] // outputs)) for k in range(outputs)]
    return x.split(list(parts), axis)


def reshaped(a, x, shape):
    sizes = whole(shape)
    return x.reshape([x.shape[k] if n == 0 and not a.get("allowzero", 0) else n for k, n in enumerate(sizes)])


def unsqueezed(x, axes):
    rank = x.dim() + len(axes)
    for axis in sorted(k % rank for k in axes):
        x = x.unsqueeze(axis)
    return x


def gather_nd(a, x, i):
    if a.get("batch_dims", 0):
        raise NotImplementedError("GatherND with batch_dims")
    return x[tuple(i.unbind(-1))]


def cumulative(a, x, axis):
    axis = int(axis)
    x = x.flip(axis) if a.get("reverse", 0) else x
    y = x.cumsum(axis) - (x if a.get("exclusive", 0) else 0)
    return y.flip(axis) if a.get("reverse", 0) else y


def layer_norm(a, x, scale, bias=None):
    axis = a.get("axis", -1) % x.dim()
    return F.layer_norm(x, x.shape[axis:], scale.expand(x.shape[axis:]), bias, a.get("epsilon", 1e-5))


def rms_norm(a, x, scale):
    axes = list(range(a.get("axis", -1) % x.dim(), x.dim()))
    return x * (x.square().mean(axes, keepdim=True) + a.get("epsilon", 1e-5)).rsqrt() * scale


def cast(a, x):
    to = helper.tensor_dtype_to_np_dtype(a["to"])
    return x.double() if to.kind == "f" else x.to(torch.from_numpy(np.zeros(1, to)).dtype)


def flattened(a, x):
    axis = a.get("axis", 1) % (x.dim() + 1)
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


UNARY = {"Sqrt": torch.sqrt, "Exp": torch.exp, "Log": torch.log, "Neg": torch.neg, "Reciprocal": torch.reciprocal, "Relu": torch.relu,
         "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Erf": torch.erf, "Identity": lambda x: x, "Not": torch.logical_not,
         "Abs": torch.abs, "Sin": torch.sin, "Cos": torch.cos, "Softplus": F.softplus, "Floor": torch.floor, "Sign": torch.sign}
BINARY = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": division, "Pow": torch.pow, "Equal": torch.eq,
          "Greater": torch.gt, "GreaterOrEqual": torch.ge, "Less": torch.lt, "LessOrEqual": torch.le, "And": torch.logical_and,
          "Or": torch.logical_or, "MatMul": torch.matmul}
FOLDS = {"Max": torch.maximum, "Min": torch.minimum}
RULES = {
    "Reshape": reshaped, "Slice": sliced, "Conv": conv, "Gemm": gemm, "MaxPool": max_pool, "AveragePool": average_pool, "Cast": cast,
    "Flatten": flattened, "LayerNormalization": layer_norm, "RMSNormalization": rms_norm, "Attention": attention, "CumSum": cumulative,
    "GatherND": gather_nd, "ScatterND": scatter_nd, "ConvTranspose": conv_transpose, "Pad": pad,
    "Clip": lambda a, x, low=None, high=None: x.clamp(low, high),
    "ReduceL2": lambda a, x, axes=None: reduced(lambda t, d, keep: t.square().sum(d, keep).sqrt(), a, x, axes),
    "Transpose": lambda a, x: x.permute(a.get("perm", list(range(x.dim()))[::-1])),
    "Gelu": lambda a, x: F.gelu(x, approximate=a.get("approximate", b"none").decode()),
    "LeakyRelu": lambda a, x: F.leaky_relu(x, a.get("alpha", 0.01)),
    "Concat": lambda a, *x: torch.cat([t.double() for t in x] if any(t.is_floating_point() for t in x) else x, a["axis"]),
    "Shape": lambda a, x: torch.tensor(x.shape)[a.get("start", 0):a.get("end", None)],
    "Expand": lambda a, x, s: x.expand(torch.broadcast_shapes(x.shape, whole(s))),
    "Where": lambda a, c, x, y: torch.where(c, *matched(x, y)),
    "Unsqueeze": lambda a, x, axes=None: unsqueezed(x, whole(axes) if axes is not None else a["axes"]),
    "Squeeze": lambda a, x, axes=None: x.squeeze(tuple(whole(axes) if axes is not None else a.get("axes", [
        k for k, n in enumerate(x.shape) if n == 1]))),
    "Gather": lambda a, x, i: x.index_select(a.get("axis", 0), (i.reshape(-1) % x.shape[a.get("axis", 0)]).long()).reshape(
        x.shape[:a.get("axis", 0) % x.dim()] + i.shape + x.shape[a.get("axis", 0) % x.dim() + 1:]),
    "Range": lambda a, start, end, step: torch.arange(start.item(), end.item(), step.item(), dtype=start.dtype),
    "ConstantOfShape": lambda a, s: tensor(numpy_helper.to_array(a["value"]) if "value" in a else np.float32(0)).expand(whole(s)),
    "ScatterElements": lambda a, x, i, u: x.scatter(a.get("axis", 0), i % x.shape[a.get("axis", 0)], u),
    "ReduceMean": lambda a, x, axes=None: reduced(torch.mean, a, x, axes),
    "ReduceSum": lambda a, x, axes=None: reduced(torch.sum, a, x, axes),
    "GridSample": lambda a, x, grid: F.grid_sample(
        x, grid, {"linear": "bilinear", "cubic": "bicubic"}.get(mode := a.get("mode", b"linear").decode(), mode),
        a.get("padding_mode", b"zeros").decode(), bool(a.get("align_corners", 0))),
    "GlobalAveragePool": lambda a, x: x.mean(tuple(range(2, x.dim())), keepdim=True),
    "InstanceNormalization": lambda a, x, s, b: F.instance_norm(x, weight=s, bias=b, eps=a.get("epsilon", 1e-5)),
    "DequantizeLinear": lambda a, q, s, z=None: (q.double() - (0 if z is None else z.double())) * s,   # for one scale
}


def softmax(logarithm):
    """Before opset 13 the given axis and all axes after it are one axis."""
    def rule(a, x, opset):
        axis = a.get("axis", -1 if opset >= 13 else 1) % x.dim()
        y = x if opset >= 13 else x.reshape(*x.shape[:axis], -1)
        return (y.log_softmax(axis) if logarithm else y.softmax(axis)).reshape(x.shape)
    return rule


SOFTMAXES = {"Softmax": softmax(False), "LogSoftmax": softmax(True)}


def fused_conv(a, x, w, b=None, z=None):
    if a.get("activation", b"Relu") != b"Relu":
        raise NotImplementedError("FusedConv with another activation than Relu")
    y = conv(a, x, w, b) if z is None else conv(a, x, w, b) + z
    return F.relu(y) if "activation" in a else y


FUSED = {   # in com.microsoft
    "FusedConv": fused_conv,
    "BiasGelu": lambda a, x, b: F.gelu(x + b),
    "FusedMatMul": lambda a, x, y: a.get("alpha", 1.0) * ((x.mT if a.get("transA", 0) else x) @ (y.mT if a.get("transB", 0) else y)),
}


class Rounded(torch.autograd.Function):
    """Rounds a value to its integer and returns the float that the integer represents."""

    @staticmethod
    def forward(ctx, x, scale, zero, low, high):
        q = torch.round(x / scale) + zero
        ctx.save_for_backward((q >= low) & (q <= high))
        return (q.clamp(low, high) - zero) * scale

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.saved_tensors[0], None, None, None, None


class Pairs:
    """The values of QuantizeLinear and DequantizeLinear in a graph that keeps them. An integer is stored as the
    float that it represents."""

    def __init__(self, model, known, names):
        self.types = {t.name: t.data_type for t in model.graph.initializer}
        self.known, self.names, self.weights = known, names, {}

    def operands(self, node, shape):
        axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
        if any(a.name == "block_size" and a.i for a in node.attribute) or len(node.input) < 3:
            raise NotImplementedError(f"{node.op_type} of blocks or without a zero point")
        return [self.known[i].double() if self.known[i].numel() == 1 else
                self.known[i].double().reshape([-1 if k == axis % len(shape) else 1 for k in range(len(shape))])
                for i in node.input[1:3]]

    def computed(self, node):
        x = self.known[node.input[0]]
        scale, zero = (t.reshape(()) if t.numel() == 1 else t for t in self.operands(node, x.shape))
        if node.op_type == "QuantizeLinear":
            return Rounded.apply(x, scale, zero, *RANGES[self.types[node.input[2]]])
        if x.is_floating_point():
            return x
        value = (x.double() - zero) * scale
        if node.input[0] not in self.names:
            return value
        return self.weights.setdefault(node.input[0], value.detach().requires_grad_())


def computed(node, inputs, opset):
    a = {x.name: helper.get_attribute_value(x) for x in node.attribute}
    kind = node.op_type
    if node.domain == "com.microsoft" and kind in FUSED:
        return (FUSED[kind](a, *inputs),)
    if node.domain not in ("", "ai.onnx"):
        raise NotImplementedError(f"{node.domain}.{kind}")
    if kind == "Constant":
        value = a.get("value")
        return (tensor(numpy_helper.to_array(value) if value is not None else np.array(next(iter(a.values())))),)
    if kind in UNARY:
        return (UNARY[kind](*inputs),)
    if kind in BINARY:
        return (BINARY[kind](*matched(*inputs)),)
    if kind in FOLDS:
        y = inputs[0]
        for x in inputs[1:]:
            y = FOLDS[kind](*matched(y, x))
        return (y,)
    if kind == "Split":
        return split(a, len(node.output), *inputs)
    if kind == "BatchNormalization":
        return (batch_norm(a, len(node.output), *inputs),)
    if kind == "Resize":
        return (resized(a, inputs[0], *(inputs[2:] + [None, None])[:2], opset),)
    if kind in SOFTMAXES:
        return (SOFTMAXES[kind](a, *inputs, opset),)
    if kind == "DequantizeLinear" and inputs[1].numel() > 1:
        raise NotImplementedError(f"{kind} along an axis")
    if kind not in RULES:
        raise NotImplementedError(kind)
    results = RULES[kind](a, *inputs)
    return results if isinstance(results, tuple) else (results,)


def sorted_nodes(graph, known):
    """Yields nodes after the nodes that make their inputs: some tools write them in another order."""
    left = list(graph.node)
    while left:
        later = []
        for node in left:
            if all(not i or i in known for i in node.input):
                known.update(node.output)
                yield node
            else:
                later.append(node)
        if len(later) == len(left):
            raise NotImplementedError(f"{later[0].name}: an input that nothing makes")
        left = later


def gradients(model, names, feeds, prediction, loss, nudge=None):
    """Returns (loss, {name: gradient}). `loss` is run.py's Loss; only its kind and labels are read. The gradient is
    0 if the loss does not depend on the initializer. An integer weight has the gradient of its float. `nudge`: a
    random generator."""
    opset = max(i.version for i in model.opset_import if i.domain in ("", "ai.onnx"))
    known = {t.name: tensor(numpy_helper.to_array(t)) for t in model.graph.initializer}
    known.update({k: tensor(v) for k, v in feeds.items()})
    weights = {n: known[n].requires_grad_() for n in names if n in known and known[n].is_floating_point()}
    for name, value in known.items():
        if nudge is not None and name.endswith("_scale"):
            known[name] = value * (1 + 3e-7 * tensor(nudge.standard_normal(value.shape)))
    pairs = Pairs(model, known, names)
    for node in sorted_nodes(model.graph, set(known)):
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.input[1] in pairs.types and (
                known[node.input[0]].is_floating_point() or node.input[0] in pairs.types):
            known[node.output[0]] = pairs.computed(node)
            continue
        results = computed(node, [known[i] if i else None for i in node.input], opset)
        known.update({o: r for o, r in zip(node.output, results) if o})
    output = known[prediction]
    if loss.kind == "cross_entropy":
        value = F.cross_entropy(output.reshape(-1, output.shape[-1]), torch.from_numpy(loss.labels.reshape(-1)).long())
    else:
        value = (output - tensor(getattr(loss, "target", loss.labels))).square().mean()
    weights.update(pairs.weights)
    found = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
    return float(value.detach()), {n: np.zeros(w.shape) if g is None else g.numpy() for (n, w), g in zip(weights.items(), found)}
