"""The cases of opsets.py: the meaning of each operator in each of its versions."""
import numpy as np
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from opset_node import NEWEST, Draw, case, feeds_of, floats, init, ints, model_of, newer

SAME = newer(13)  # the unchanged node, in opset 13


def without(*names):
    """Returns the node in opset 13 form, without attributes that only the older version has."""

    def run(c, arrays):
        return newer(13, attributes={k: v for k, v in c.attributes.items() if k not in names})(c, arrays)

    return run


def reference(c, arrays):
    """Returns the result of onnx's reference."""
    return ReferenceEvaluator(model_of(c, NEWEST)).run(None, feeds_of(c))


# --- elementwise, one input ---

for name, low, high in [
        ("Abs", -2, 2), ("Acos", -.9, .9), ("Acosh", 1.1, 3), ("Asin", -.9, .9), ("Asinh", -2, 2), ("Atan", -2, 2),
        ("Atanh", -.9, .9), ("Ceil", -3, 3), ("Cos", -3, 3), ("Cosh", -2, 2), ("Elu", -2, 2), ("Erf", -2, 2), ("Exp", -2, 2),
        ("Floor", -3, 3), ("HardSigmoid", -4, 4), ("HardSwish", -4, 4), ("Identity", -2, 2), ("LeakyRelu", -2, 2),
        ("Log", .1, 3), ("Mish", -2, 2), ("Neg", -2, 2), ("Reciprocal", .3, 2), ("Relu", -2, 2), ("Round", -3, 3),
        ("Sigmoid", -2, 2), ("Sign", -2, 2), ("Sin", -3, 3), ("Sinh", -2, 2), ("Softplus", -2, 2), ("Softsign", -2, 2),
        ("Sqrt", .1, 3), ("Swish", -2, 2), ("Tan", -1, 1), ("Tanh", -2, 2), ("ThresholdedRelu", -2, 2), ("Celu", -2, 2),
        ("Gelu", -2, 2), ("Shrink", -2, 2)]:
    x = Draw(name).random.uniform(low, high, (2, 3, 5)).astype(np.float32)
    SWISH = (lambda c, a: a[0] / (1 + np.exp(-a[0]))) if name == "Swish" else SAME
    case(name, "plain", [x], like=SWISH)
for name, attributes in [("Elu", {"alpha": 1.7}), ("HardSigmoid", {"alpha": .3, "beta": .4}), ("LeakyRelu", {"alpha": .2}),
                         ("ThresholdedRelu", {"alpha": .5}), ("Celu", {"alpha": .7}), ("Gelu", {"approximate": "tanh"}),
                         ("Shrink", {"lambd": .4, "bias": .1})]:
    case(name, "attributes", [Draw(name).f(3, 5)], attributes, like=SAME)
for name in ["Abs", "Ceil", "Elu", "Exp", "Floor", "HardSigmoid", "LeakyRelu", "Log", "Neg", "Reciprocal", "Relu", "Sigmoid",
             "Sqrt", "Tanh", "Clip"]:
    case(name, "consumed_inputs", [Draw(name).u(3, 5)], {"consumed_inputs": [0]}, until=5,
         like=without("consumed_inputs") if name != "Clip" else lambda c, a: a[0])
X = Draw("Selu").f(3, 5)
case("Selu", "defaults", [X], until=5, note="alpha 1.6732, gamma 1.0507",
     like=lambda c, a: np.where(a[0] > 0, 1.0507 * a[0], 1.0507 * 1.6732 * (np.exp(a[0]) - 1)).astype(np.float32))
case("Selu", "newer defaults", [X], since=6, like=SAME)
case("Selu", "attributes", [X], {"alpha": 1.5, "gamma": 1.2}, like=SAME)
case("Not", "plain", [Draw("Not").b(3, 4)], like=lambda c, a: ~a[0])
case("IsNaN", "plain", [floats(1, np.nan, -np.inf)])
case("IsInf", "plain", [floats(1, np.nan, -np.inf, np.inf)], {"detect_negative": 0})
case("Clip", "attributes", [Draw("Clip").f(3, 5)], {"min": -.5, "max": .7}, until=10, like=lambda c, a: a[0].clip(-.5, .7))
case("Clip", "min", [Draw("Clip").f(3, 5)], {"min": -.5}, until=10, like=lambda c, a: a[0].clip(-.5, None))
case("Clip", "max", [Draw("Clip").f(3, 5)], {"max": .5}, until=10, like=lambda c, a: a[0].clip(None, .5))
case("Clip", "float64", [Draw("Clip").f(3, 5).astype(np.float64)], {"min": -.5, "max": .7}, until=10,
     like=lambda c, a: a[0].clip(np.float32(-.5), np.float32(.7)))
case("Clip", "inputs", [Draw("Clip").f(3, 5), np.float32(-.5), np.float32(.7)], since=11)
case("Clip", "max alone", [Draw("Clip").f(3, 5), None, np.float32(.7)], since=11)
case("BitwiseNot", "plain", [ints(1, 2, -5)])
case("PRelu", "one slope", [Draw("PRelu").f(2, 3, 4), floats(.3)], like=lambda c, a: np.where(a[0] > 0, a[0], a[0] * a[1]))
for slope in (init, lambda a: a):
    case("PRelu", "channels " + ("stored" if slope is init else "fed"), [Draw("PRelu").f(2, 4, 4, 4), slope(floats(.1, .2, .5, 2))],
         until=6, note="a slope a channel",
         like=lambda c, a: np.where(a[0] > 0, a[0], a[0] * a[1].reshape(1, 4, 1, 1)))
case("PRelu", "channels of a matrix", [Draw("PRelu").f(2, 4), floats(.1, .2, .5, 2)],
     like=lambda c, a: np.where(a[0] > 0, a[0], a[0] * a[1]))
case("PRelu", "last axis", [Draw("PRelu").f(2, 4, 4, 4), init(floats(.1, .2, .5, 2))], since=7)
case("PRelu", "consumed_inputs", [Draw("PRelu").f(2, 3), floats(.3)], {"consumed_inputs": [0, 0]}, until=5,
     like=lambda c, a: np.where(a[0] > 0, a[0], a[0] * a[1]))

# --- elementwise, several inputs ---

PAIRS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power, "And": np.logical_and,
         "Or": np.logical_or, "Xor": np.logical_xor, "Equal": np.equal, "Greater": np.greater, "Less": np.less}
for name, function in PAIRS.items():
    D = Draw(name)

    def two(a, b, name=name, d=D):
        if name in ("And", "Or", "Xor"):
            return d.b(*a), d.b(*b)
        if name == "Equal":
            return d.i(0, 3, *a).astype(np.int32), d.i(0, 3, *b).astype(np.int32)
        return d.u(*a), d.u(*b)

    def by(shape=None, function=function):
        return lambda c, a: function(a[0], a[1] if shape is None else a[1].reshape(shape))

    case(name, "same shapes", two((2, 3), (2, 3)), like=by())
    case(name, "numpy", two((2, 3, 1), (3, 4)), since=7)
    for label, b, axis, shape in [("channels", (3,), 1, (3, 1, 1)), ("two axes", (3, 4), 1, (3, 4, 1)), ("first", (2, 3), 0, (2, 3, 1, 1)),
                                  ("equal sizes", (3,), 1, (3, 1, 1)), ("last", (5,), 3, (5,)), ("minus one", (5,), -1, (5,)),
                                  ("one", (1,), 0, (1,)), ("no axis", (4, 5), None, (4, 5)), ("scalar", (), None, ())]:
        a = (2, 3, 3, 3) if label == "equal sizes" else (2, 3, 4, 5)
        pair = two(a, b)
        attributes = {"broadcast": 1}
        if axis is not None:
            attributes["axis"] = axis
        for kind, wrap in [("", lambda v: v), (" stored", init)]:
            case(name, "axis " + label + kind, [pair[0], wrap(pair[1])], attributes, until=6, note="broadcast=1, axis", like=by(shape))
    case(name, "axis beyond", [two((2, 3), (4,))[0], two((2, 3), (3, 4))[1]], {"broadcast": 1, "axis": 1}, until=6,
         refused="node 'it' (%s) of opset" % name)
for name in ["Add", "Sub", "Mul", "Div"]:
    D = Draw(name)
    case(name, "consumed_inputs", [D.u(2, 3), D.u(2, 3)], {"consumed_inputs": [0, 0]}, until=5,
         like=lambda c, a: PAIRS[c.op](a[0], a[1]))
    case(name, "int32", [D.i(1, 9, 2, 3).astype(np.int32), D.i(1, 4, 3).astype(np.int32)], since=7)
case("Div", "int64 negative", [ints(-7, 7, -8), ints(2, -2, 3)], since=7)
case("Pow", "types", [Draw("Pow").u(2, 3), ints(1, 2, 3)], since=12)
case("Equal", "float32", [floats(1, 2, 3), floats(1, 5, 3)], since=11)
case("Greater", "int64", [ints(1, 2, 3), ints(1, 1, 4)], since=9)
case("Less", "int64", [ints(1, 2, 3), ints(1, 1, 4)], since=9)
case("GreaterOrEqual", "plain", [floats(1, 2, 3), floats(1, 5, 3)])
case("LessOrEqual", "plain", [floats(1, 2, 3), floats(1, 5, 3)])
for name in ["BitwiseAnd", "BitwiseOr", "BitwiseXor"]:
    case(name, "plain", [ints(1, 6, 12), ints(3, 5, 10)])
case("BitShift", "left", [np.array([1, 2, 3], np.uint32), np.array([1, 2, 3], np.uint32)], {"direction": "LEFT"})
case("BitShift", "right", [np.array([16, 32, 7], np.uint32), np.array([1, 2, 3], np.uint32)], {"direction": "RIGHT"})
case("Mod", "ints", [ints(-7, 7, 8), ints(3, -3, 3)])
case("Mod", "fmod", [floats(-7.5, 7.5, 8), floats(3, -3, 3)], {"fmod": 1})
SEVERAL = {"Sum": lambda a: sum(a), "Mean": lambda a: sum(a) / np.float32(len(a)), "Max": lambda a: np.maximum.reduce(a),
           "Min": lambda a: np.minimum.reduce(a)}
for name, function in SEVERAL.items():
    D = Draw(name)
    case(name, "three", [D.f(2, 3), D.f(2, 3), D.f(2, 3)], like=lambda c, a: SEVERAL[c.op](a))
    case(name, "one", [D.f(2, 3)], like=lambda c, a: a[0])
    case(name, "broadcast", [D.f(2, 3, 1), D.f(3, 4)], since=8)
    case(name, "consumed_inputs", [D.f(2, 3), D.f(2, 3)], {"consumed_inputs": [0, 0]}, until=5, like=lambda c, a: SEVERAL[c.op](a))
case("Max", "int64", [ints(1, 5, 3), ints(2, 2, 2)], since=12)
case("Min", "int64", [ints(1, 5, 3), ints(2, 2, 2)], since=12)
case("Where", "plain", [Draw("Where").b(2, 3), Draw("Where").f(2, 3), Draw("Where").f(3)])

# --- Cast and constants ---

for to, dtype in [("FLOAT", np.float32), ("INT32", np.int32), ("INT64", np.int64), ("BOOL", np.bool_), ("DOUBLE", np.float64),
                  ("UINT8", np.uint8), ("FLOAT16", np.float16)]:
    X = floats(0, 1.5, 2.75, 200)
    case("Cast", to, [X], {"to": to}, until=5, note="`to` is a name", like=lambda c, a, dtype=dtype: a[0].astype(dtype))
    case("Cast", "number " + to, [X], {"to": int(getattr(TensorProto, to))}, since=6,
         like=lambda c, a, dtype=dtype: a[0].astype(dtype))
case("Cast", "lower case", [floats(0, 1.5)], {"to": "int32"}, until=5, like=lambda c, a: a[0].astype(np.int32))
case("Cast", "no such name", [floats(0, 1.5)], {"to": "FLOTA"}, until=5, refused="node 'it' (Cast) of opset")
case("CastLike", "plain", [floats(0, 1.5), ints(1)])
case("ConstantOfShape", "plain", [init(ints(2, 3))])
case("EyeLike", "plain", [Draw("EyeLike").f(3, 4)], {"k": 1})
case("Range", "ints", [init(np.array(1, np.int64)), init(np.array(10, np.int64)), init(np.array(3, np.int64))])
case("Shape", "plain", [Draw("Shape").f(2, 3, 4)], like=lambda c, a: ints(2, 3, 4))
case("Shape", "part", [Draw("Shape").f(2, 3, 4)], {"start": 1, "end": -1}, since=15)
case("Size", "plain", [Draw("Size").f(2, 3, 4)], like=lambda c, a: np.array(24, np.int64))

# --- products ---

D = Draw("Gemm")
case("MatMul", "plain", [D.f(3, 4), D.f(4, 5)], like=lambda c, a: a[0] @ a[1])
case("MatMul", "batch", [D.f(2, 3, 4), D.f(4, 5)], like=lambda c, a: a[0] @ a[1])
GEMM = lambda c, a: (c.attributes.get("alpha", 1) * (a[0].T if c.attributes.get("transA") else a[0]) @  # noqa: E731
                     (a[1].T if c.attributes.get("transB") else a[1]) + c.attributes.get("beta", 1) * a[2]).astype(np.float32)
case("Gemm", "same shape", [D.f(3, 4), D.f(4, 5), D.f(3, 5)], like=GEMM)
for label, shape in [("row", (5,)), ("one", (1,)), ("row of a matrix", (1, 5))]:
    case("Gemm", "broadcast " + label, [D.f(3, 4), D.f(4, 5), init(D.f(*shape))], {"broadcast": 1}, until=6, like=GEMM)
    case("Gemm", label, [D.f(3, 4), D.f(4, 5), init(D.f(*shape))], since=7)
case("Gemm", "attributes", [D.f(4, 3), D.f(5, 4), D.f(3, 5)], {"alpha": .5, "beta": 2., "transA": 1, "transB": 1}, like=GEMM)
case("Gemm", "column", [D.f(3, 4), D.f(4, 5), D.f(3, 1)], since=7)
case("Gemm", "two inputs", [D.f(3, 4), D.f(4, 5)], since=11)
case("Einsum", "plain", [D.f(3, 4), D.f(4, 5)], {"equation": "ij,jk->ki"})
case("Det", "plain", [D.f(2, 3, 3)])

# --- reductions ---

for name in ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
             "ReduceSumSquare"]:
    last = 12 if name == "ReduceSum" else 17
    X = Draw(name).u(2, 3, 4)
    for label, attributes in [("all", {}), ("axes", {"axes": [1]}), ("two axes", {"axes": [0, 2], "keepdims": 0}),
                              ("all, no axes left", {"keepdims": 0})]:
        case(name, label, [X], attributes, until=last, like=newer(12))
    case(name, "negative", [X], {"axes": [-1]}, since=11, until=last)
    case(name, "input", [X, init(ints(0, -1))], {"keepdims": 0}, since=last + 1)
    case(name, "empty", [X, init(ints())], {"noop_with_empty_axes": 1}, since=last + 1)
    case(name, "no axes", [X], since=last + 1)
for name in ["ArgMax", "ArgMin"]:
    X = Draw(name).i(0, 3, 2, 5, 4).astype(np.float32)
    case(name, "plain", [X], {"axis": 1}, like=newer(11))
    case(name, "keepdims", [X], {"axis": 2, "keepdims": 0}, like=newer(11))
    case(name, "last", [X], {"axis": 1, "select_last_index": 1}, since=12)
X = Draw("CumSum").f(3, 4)
case("CumSum", "plain", [X, init(np.array(1, np.int64))], {"exclusive": 1, "reverse": 1})
case("CumProd", "plain", [X, init(np.array(1, np.int64))], like=lambda c, a: np.cumprod(a[0], 1))

# --- normalization over an axis ---


def coerced(function):
    def run(c, a):
        axis = c.attributes.get("axis", 1)
        rows = int(np.prod(a[0].shape[:axis] if axis >= 0 else a[0].shape[:axis + a[0].ndim]))
        return function(a[0].reshape(rows, -1)).reshape(a[0].shape)

    return run


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def hardmax(x):
    y = np.zeros_like(x)
    y[np.arange(len(x)), x.argmax(-1)] = 1
    return y


for name, function in [("Softmax", softmax), ("LogSoftmax", lambda x: np.log(softmax(x))), ("Hardmax", hardmax)]:
    X = Draw(name).f(2, 3, 4, 5)
    case(name, "default", [X], until=12, note="rows are the axes before `axis`", like=coerced(function))
    case(name, "newer default", [X], since=13)
    for axis in (0, 1, 2, 3):
        case(name, "axis %d" % axis, [X], {"axis": axis}, like=coerced(function), until=12)
        case(name, "newer axis %d" % axis, [X], {"axis": axis}, since=13)
    for axis in (-1, -2, -4):
        case(name, "axis minus %d" % -axis, [X], {"axis": axis}, since=11, until=12)
    case(name, "matrix", [Draw(name).f(3, 4)], like=coerced(function))
D = Draw("BatchNormalization")
S, B, M, V = D.u(3), D.f(3), D.f(3), D.u(3)


def batch_norm(c, a):
    shape = (1, -1) + (1,) * (a[0].ndim - 2)
    eps = c.attributes.get("epsilon", 1e-5)
    s, b, m, v = (p.reshape(shape) if p.ndim == 1 else p[None] for p in a[1:])
    return ((a[0] - m) / np.sqrt(v + eps) * s + b).astype(np.float32)


def batch_norm_training(c, a):
    axes = (0,) + tuple(range(2, a[0].ndim))
    mean, var = a[0].mean(axes), a[0].var(axes)
    k = c.attributes.get("momentum", .9)
    y = batch_norm(c, [a[0], a[1], a[2], mean, var])
    return [y, a[3] * k + mean * (1 - k), a[4] * k + var * (1 - k)] + [mean, var][:c.outputs - 3]


X = D.f(4, 3, 5, 2)
for stored in (init, lambda a: a):
    kind = " stored" if stored is init else " fed"
    P = [stored(p) for p in (S, B, M, V)]
    case("BatchNormalization", "plain" + kind, [X] + P, since=7, like=batch_norm)
    case("BatchNormalization", "epsilon" + kind, [X] + P, {"epsilon": .01}, since=7, like=batch_norm)
    case("BatchNormalization", "is_test" + kind, [X] + P, {"is_test": 1, "consumed_inputs": [0, 0, 0, 1, 1]}, until=5, like=batch_norm)
    case("BatchNormalization", "is_test 6" + kind, [X] + P, {"is_test": 1}, since=6, until=6, like=batch_norm)
    case("BatchNormalization", "no is_test" + kind, [X] + P, since=6, until=6, like=batch_norm, note="one output: inference")
P = [S, B, M, V]
case("BatchNormalization", "training of one output", [X] + P, {"is_test": 0}, since=6, until=6, refused="node 'it' (BatchNormalization) of opset 6")
case("BatchNormalization", "training", [X] + P, {"is_test": 0, "momentum": .8}, since=6, until=6, outputs=5, skip_outputs=(3, 4),
     like=batch_norm_training)
case("BatchNormalization", "two meanings", [X] + P, {"is_test": 1}, since=6, until=6, outputs=5, skip_outputs=(1, 2, 3, 4),
     like=lambda c, a: [batch_norm(c, a)] + [a[3]] * 4)
case("BatchNormalization", "five outputs", [X] + P, since=7, until=13, outputs=5, skip_outputs=(3, 4), like=batch_norm_training)
case("BatchNormalization", "training_mode", [X] + P, {"training_mode": 1}, since=14, outputs=3, like=batch_norm_training)
for spatial in (0, 1):
    shape = (3, 5, 2) if spatial == 0 else (3,)
    P = [init(D.u(*shape)), D.f(*shape), D.f(*shape), D.u(*shape)]
    extra = {"consumed_inputs": [0, 0, 0, 1, 1]}
    case("BatchNormalization", "spatial %d old" % spatial, [X] + P, {"spatial": spatial, "is_test": 1, **extra}, until=5, like=batch_norm)
    case("BatchNormalization", "spatial %d" % spatial, [X] + P, {"spatial": spatial}, since=7, until=8, like=batch_norm)
D = Draw("GroupNormalization")
X = D.f(2, 6, 4, 3)


def group_norm(c, a):
    groups = c.attributes["num_groups"]
    x = a[0].reshape(a[0].shape[0], groups, -1)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + c.attributes.get("epsilon", 1e-5))
    s, b = (np.repeat(p, a[0].shape[1] // len(p)).reshape((1, -1) + (1,) * (a[0].ndim - 2)) for p in a[1:])
    return (x.reshape(a[0].shape) * s + b).astype(np.float32)


for stored in (init, lambda a: a):
    kind = " stored" if stored is init else " fed"
    case("GroupNormalization", "by group" + kind, [X, stored(D.u(3)), stored(D.f(3))], {"num_groups": 3}, until=20, like=group_norm,
         note="scale and bias of a group")
    case("GroupNormalization", "by channel" + kind, [X, stored(D.u(6)), stored(D.f(6))], {"num_groups": 3, "epsilon": .01}, since=21, like=group_norm)
D = Draw("InstanceNormalization")
case("InstanceNormalization", "plain", [D.f(2, 3, 4, 5), D.u(3), D.f(3)], {"epsilon": 1e-3}, like=newer(13))
case("LRN", "plain", [D.f(2, 5, 3, 3)], {"size": 3, "alpha": .01, "beta": .6, "bias": 1.5}, like=SAME)
case("LRN", "defaults", [D.f(2, 5, 3, 3)], {"size": 3}, like=SAME)
case("LpNormalization", "l1", [D.f(2, 3, 4)], {"p": 1, "axis": 1}, like=lambda c, a: a[0] / np.abs(a[0]).sum(1, keepdims=True))
case("LpNormalization", "defaults", [D.f(2, 3, 4)], like=lambda c, a: a[0] / np.sqrt((a[0] ** 2).sum(-1, keepdims=True)))
case("MeanVarianceNormalization", "plain", [D.f(2, 3, 4, 5)], {"axes": [0, 2, 3]})
case("LayerNormalization", "plain", [D.f(2, 3, 4), D.u(4), D.f(4)], {"epsilon": 1e-3})
case("RMSNormalization", "plain", [D.f(2, 3, 4), D.u(4)], {"epsilon": 1e-3})

# --- Dropout: in inference ---

X = Draw("Dropout").f(3, 4)
case("Dropout", "is_test", [X], {"is_test": 1, "ratio": .3, "consumed_inputs": [0]}, until=5, like=lambda c, a: a[0])
case("Dropout", "is_test 6", [X], {"is_test": 1, "ratio": .3}, since=6, until=6, like=lambda c, a: a[0])
case("Dropout", "defaults", [X], until=6, like=lambda c, a: a[0], note="off unless is_test=0 is written")
case("Dropout", "newer defaults", [X], since=7)
case("Dropout", "ratio", [X], {"ratio": .3}, since=7, until=11)
case("Dropout", "ratio and mask", [X], {"ratio": .3}, since=7, until=9, outputs=2, like=lambda c, a: [a[0], np.ones_like(a[0])],
     skip_outputs=(), note="the mask has the data's type", wrong="gives a mask of 0 in inference")
case("Dropout", "mask", [X], {"ratio": .3}, since=10, until=11, outputs=2, skip_outputs=(1,), like=lambda c, a: a[0])
case("Dropout", "inputs", [X, init(np.float32(.4)), init(np.array(False))], since=12, outputs=2)

# --- convolutions and pools ---

D = Draw("Conv")
X, W = D.f(2, 4, 7, 8), D.f(6, 2, 3, 3)
OLD = newer(11)
for label, attributes in [("plain", {"group": 2}), ("pads", {"group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1], "dilations": [1, 2]}),
                          ("same upper", {"group": 2, "auto_pad": "SAME_UPPER", "strides": [2, 3]}),
                          ("same lower", {"group": 2, "auto_pad": "SAME_LOWER", "strides": [2, 3]}),
                          ("valid", {"group": 2, "auto_pad": "VALID", "kernel_shape": [3, 3]})]:
    case("Conv", label, [X, init(W), init(D.f(6))], attributes, like=OLD)
W = D.f(4, 3, 3, 3)
for label, attributes in [("plain", {}), ("pads", {"pads": [1, 0, 1, 1], "strides": [2, 2], "output_padding": [1, 1]}),
                          ("group", {"group": 2}), ("output_shape", {"output_shape": [15, 17], "strides": [2, 2]}),
                          ("same upper", {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
                          ("same lower", {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
                          ("output_shape upper", {"output_shape": [14, 16], "strides": [2, 2], "auto_pad": "SAME_UPPER"})]:
    case("ConvTranspose", label, [X, init(W)], attributes, since=7)
    if "output_shape" not in label and "same" not in label:
        case("ConvTranspose", "old " + label, [X, init(W)], attributes, until=6, like=OLD)
for name in ["MaxPool", "AveragePool", "LpPool"]:
    for label, attributes in [("plain", {"kernel_shape": [3, 2]}), ("pads", {"kernel_shape": [3, 3], "pads": [1, 0, 1, 2], "strides": [2, 2]}),
                              ("same upper", {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 3]}),
                              ("same lower", {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "strides": [2, 3]}),
                              ("valid", {"kernel_shape": [3, 2], "auto_pad": "VALID", "strides": [2, 2]})]:
        if name == "LpPool":
            case(name, label, [X], {"p": 3, **attributes}, since=2, like=OLD)
            case(name, "float p " + label, [X], {"p": 3., **attributes}, until=1, note="`p` is a float",
                 like=newer(11, attributes={"p": 3, **attributes}))
        else:
            case(name, label, [X], attributes, like=OLD)
    first = 18 if name == "LpPool" else 10
    for label, attributes in [("ceil", {"kernel_shape": [3, 3], "strides": [2, 3], "ceil_mode": 1}),
                              ("ceil pads", {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}),
                              ("window in the padding", {"kernel_shape": [2, 2], "strides": [3, 4], "pads": [1, 1, 1, 1], "ceil_mode": 1})]:
        case(name, label, [X], attributes, since=first)
    case(name, "dilations", [X], {"kernel_shape": [2, 3], "dilations": [2, 2]}, since={"LpPool": 18, "MaxPool": 10, "AveragePool": 19}[name])
case("LpPool", "broken p", [X], {"p": 2.5, "kernel_shape": [2, 2]}, until=1, refused="node 'it' (LpPool) of opset 1")
case("GlobalLpPool", "plain", [X], {"p": 3}, since=2, like=OLD)
case("GlobalLpPool", "float p", [X], {"p": 3.}, until=1, note="`p` is a float", like=newer(11, attributes={"p": 3}))
case("GlobalLpPool", "defaults", [X], like=OLD)
case("GlobalAveragePool", "plain", [X], like=OLD)
case("GlobalMaxPool", "plain", [X], like=OLD)
for label, attributes in [("included", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
                          ("excluded", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]})]:
    case("AveragePool", label, [X], attributes, since=7)
case("AveragePool", "included ceil", [X], {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1, "count_include_pad": 1}, since=10)
case("MaxPool", "indices", [X], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, since=8, outputs=2)
case("MaxPool", "storage_order", [X], {"kernel_shape": [3, 3], "storage_order": 1}, since=8, outputs=2)
case("MaxUnpool", "plain", [floats(5, 6, 7, 8).reshape(1, 1, 2, 2), ints(5, 7, 13, 15).reshape(1, 1, 2, 2)], {"kernel_shape": [2, 2], "strides": [2, 2]})

# --- moving elements ---

D = Draw("moves")
X = D.f(2, 3, 4)
case("Concat", "default axis", [X, D.f(2, 2, 4)], until=3, note="axis 1 by default", like=lambda c, a: np.concatenate(a, 1))
case("Concat", "axis", [X, D.f(2, 3, 5)], {"axis": 2}, like=lambda c, a: np.concatenate(a, 2))
case("Concat", "negative", [X, D.f(2, 3, 5)], {"axis": -1}, since=11)
case("Expand", "plain", [D.f(3, 1), init(ints(2, 1, 4))])
case("Flatten", "default", [X], like=lambda c, a: a[0].reshape(2, 12))
case("Flatten", "axis 0", [X], {"axis": 0}, like=lambda c, a: a[0].reshape(1, 24))
case("Flatten", "axis 2", [X], {"axis": 2}, like=lambda c, a: a[0].reshape(6, 4))
case("Flatten", "negative", [X], {"axis": -1}, since=11)
I = D.i(0, 3, 2, 2)  # noqa: E741
case("Gather", "plain", [X, I], {"axis": 1}, like=lambda c, a: np.take(a[0], a[1], 1))
case("Gather", "default", [X, D.i(0, 2, 3)], like=lambda c, a: np.take(a[0], a[1], 0))
case("Gather", "negative", [X, -1 - I], {"axis": 1}, since=11)
case("GatherElements", "plain", [X, D.i(0, 3, 2, 2, 4)], {"axis": 1})
case("GatherND", "plain", [X, D.i(0, 2, 3, 2)])
case("GatherND", "batch_dims", [X, D.i(0, 3, 2, 2, 1)], {"batch_dims": 1}, since=12)
U = D.f(2, 2, 4)
J = np.stack([np.stack([D.random.permutation(3)[:2] for _ in range(4)], 1) for _ in range(2)]).astype(np.int64)
case("Scatter", "plain", [X, J, U], {"axis": 1}, until=10)
case("ScatterElements", "plain", [X, J, U], {"axis": 1})
case("ScatterElements", "add", [X, D.i(0, 3, 2, 2, 4), U], {"axis": 1, "reduction": "add"}, since=16)
case("ScatterElements", "max", [X, D.i(0, 3, 2, 2, 4), U], {"axis": 1, "reduction": "max"}, since=18)
case("ScatterND", "plain", [X, ints(1, 0).reshape(2, 1), D.f(2, 3, 4)])
case("ScatterND", "mul", [X, ints(1, 1).reshape(2, 1), D.f(2, 3, 4)], {"reduction": "mul"}, since=16)
case("ScatterND", "min", [X, ints(1, 1).reshape(2, 1), D.f(2, 3, 4)], {"reduction": "min"}, since=18)
case("TensorScatter", "plain", [D.f(2, 4, 3), D.f(2, 1, 3), ints(1, 3)], {"axis": 1})
MODES = {"constant": {}, "value": {"value": 1.5}, "reflect": {"mode": "reflect"}, "edge": {"mode": "edge"}}


def pad(c, a):
    pads = np.array(c.attributes["pads" if "pads" in c.attributes else "paddings"]).reshape(2, -1).T
    mode = c.attributes.get("mode", "constant")
    more = {"constant_values": c.attributes.get("value", 0)} if mode == "constant" else {}
    return np.pad(a[0], pads, mode, **more)


for label, attributes in MODES.items():
    case("Pad", label, [X], {"pads": [0, 1, 2, 1, 0, 1], **attributes}, since=2, until=10, like=pad)
    case("Pad", "alike " + label, [X], {"paddings": [1, 1, 1, 1, 1, 1], **attributes}, until=1, like=pad)
case("Pad", "ambiguous", [X], {"paddings": [0, 1, 2, 1, 0, 1]}, until=1, refused="node 'it' (Pad) of opset 1",
     note="refused where the text and its example disagree about the order")
case("Pad", "negative", [X], {"pads": [0, -1, 2, 1, 0, -1]}, since=2, until=10, like=lambda c, a: np.pad(a[0][:, 1:, :-1], ((0, 1), (0, 0), (2, 0))))
case("Pad", "float64", [X.astype(np.float64)], {"pads": [0, 1, 2, 1, 0, 1], "value": 1.5}, since=2, until=10, like=pad)
case("Pad", "inputs", [X, init(ints(0, 1, 2, 1, 0, 1)), init(np.float32(1.5))], since=11)
case("Pad", "no value", [X, init(ints(0, 1, 2, 1, 0, 1))], since=11)
case("Pad", "reflect input", [X, init(ints(0, 1, 2, 1, 0, 1))], {"mode": "reflect"}, since=11)
case("Pad", "axes", [X, init(ints(1, 2, 0, 1)), None, init(ints(2, 0))], since=18)
case("Pad", "wrap", [X, init(ints(0, 1, 2, 1, 0, 1))], {"mode": "wrap"}, since=19)
case("Reshape", "attribute", [X], {"shape": [0, -1]}, until=4, note="`shape` is an attribute", like=lambda c, a: a[0].reshape(2, 12))
case("Reshape", "consumed_inputs", [X], {"shape": [4, 6], "consumed_inputs": [0]}, until=4, like=lambda c, a: a[0].reshape(4, 6))
case("Reshape", "input", [X, init(ints(0, -1))], since=5, like=lambda c, a: a[0].reshape(2, 12))
case("Reshape", "allowzero", [np.zeros((0, 3), np.float32), init(ints(3, 0))], {"allowzero": 1}, since=14)
case("Slice", "attributes", [X], {"starts": [1, -3], "ends": [10, -1], "axes": [1, 2]}, until=9, like=lambda c, a: a[0][:, 1:10, -3:-1])
case("Slice", "no axes", [X], {"starts": [0, 1], "ends": [1, 3]}, until=9, like=lambda c, a: a[0][0:1, 1:3])
case("Slice", "inputs", [X, init(ints(1, 0)), init(ints(3, 4)), init(ints(1, 2)), init(ints(1, 2))], since=10)
case("Slice", "backward", [X, init(ints(-1)), init(ints(-100)), init(ints(2)), init(ints(-2))], since=10)
Z = D.f(2, 6, 3)
HALVES = lambda c, a: np.split(a[0], 2, 1)  # noqa: E731
case("Split", "equal", [Z], {"axis": 1}, until=12, outputs=2, like=HALVES)
case("Split", "attribute", [Z], {"axis": 1, "split": [1, 5]}, until=12, outputs=2, like=lambda c, a: np.split(a[0], [1], 1))
case("Split", "input", [Z, init(floats(1, 5))], {"axis": 1}, until=1, outputs=2, note="sizes of the data's type", like=lambda c, a: np.split(a[0], [1], 1))
case("Split", "no axis", [Z], until=1, outputs=2, refused="node 'it' (Split) of opset 1", note="refused without axis, which has no default")
case("Split", "default axis", [Z], since=2, until=12, outputs=2, like=lambda c, a: np.split(a[0], 2, 0))
case("Split", "sizes", [Z, init(ints(2, 4))], {"axis": 1}, since=13, outputs=2)
case("Split", "equal 13", [Z], {"axis": 1}, since=13, until=17, outputs=2)
case("Split", "num_outputs", [Z], {"axis": 1, "num_outputs": 4}, since=18, outputs=4)
Y = D.f(2, 1, 3, 1)
case("Squeeze", "all", [Y], like=lambda c, a: a[0].squeeze())
case("Squeeze", "attribute", [Y], {"axes": [1]}, until=12, like=lambda c, a: a[0].squeeze(1))
case("Squeeze", "negative", [Y], {"axes": [-1]}, since=11, until=12)
case("Squeeze", "input", [Y, init(ints(1, -1))], since=13)
case("Unsqueeze", "attribute", [X], {"axes": [0, 3]}, until=12, like=lambda c, a: a[0].reshape(1, 2, 3, 1, 4))
case("Unsqueeze", "input", [X, init(ints(0, -1))], since=13)
case("Tile", "axis", [X, init(floats(3)), init(floats(1))], until=5, note="`tiles` along `axis`", like=lambda c, a: np.tile(a[0], (1, 3, 1)))
case("Tile", "repeats", [X, init(ints(2, 1, 3))], since=6, like=lambda c, a: np.tile(a[0], (2, 1, 3)))
case("Transpose", "default", [X], like=lambda c, a: a[0].transpose())
case("Transpose", "perm", [X], {"perm": [1, 2, 0]}, like=lambda c, a: a[0].transpose(1, 2, 0))
case("Trilu", "upper", [D.f(3, 4)], {"upper": 1})
case("Trilu", "lower", [D.f(3, 4), init(np.array(-1, np.int64))], {"upper": 0})
Q = D.f(2, 8, 2, 3)
case("DepthToSpace", "default", [Q], {"blocksize": 2}, like=SAME)
case("DepthToSpace", "CRD", [Q], {"blocksize": 2, "mode": "CRD"}, since=11)
case("SpaceToDepth", "default", [D.f(2, 3, 4, 6)], {"blocksize": 2}, like=SAME)
case("ReverseSequence", "plain", [D.f(4, 3), ints(2, 4, 1)], {"time_axis": 0, "batch_axis": 1})
case("CenterCropPad", "plain", [D.f(5, 4), init(ints(3, 7))])
case("Compress", "plain", [D.f(3, 4), init(np.array([True, False, True]))], {"axis": 0})
case("NonZero", "plain", [init(floats(0, 2, 0, 3))])
case("Unique", "plain", [init(floats(3, 1, 3, 2))])
case("Col2Im", "plain", [D.f(1, 4, 6), init(ints(3, 4)), init(ints(2, 2))])
T = D.random.permutation(24).reshape(2, 3, 4).astype(np.float32)
case("TopK", "attribute", [T], {"k": 2}, until=9, outputs=2, like=newer(11, inputs=lambda a: [a[0], init(ints(2))], attributes={}))
case("TopK", "attribute axis", [T], {"k": 2, "axis": 1}, until=9, outputs=2, like=newer(11, inputs=lambda a: [a[0], init(ints(2))], attributes={"axis": 1}))
case("TopK", "input", [T, init(ints(2))], {"axis": 1}, since=10, outputs=2)
case("TopK", "smallest", [T, init(ints(2))], {"largest": 0}, since=11, outputs=2)
case("OneHot", "plain", [D.i(0, 4, 2, 3), init(ints(4)), init(floats(-1, 3))])
case("OneHot", "axis", [D.i(0, 4, 2, 3), init(ints(4)), init(floats(-1, 3))], {"axis": 1})
case("OneHot", "outside", [ints(0, 7, 2), init(ints(4)), init(floats(-1, 3))])
case("OneHot", "negative", [ints(0, -1, 2), init(ints(4)), init(floats(-1, 3))], since=11)

# --- Resize and Upsample ---

X = D.f(1, 2, 4, 5)


def enlarge(c, a):
    """Nearest or linear from the corner, by the text of Upsample; scales are at least 1."""
    scales = c.attributes.get("scales") or [1, 1, c.attributes["height_scale"], c.attributes["width_scale"]]
    y = a[0].astype(np.float64)
    for axis, scale in enumerate(np.float32(scales)):
        size = y.shape[axis]
        at = np.arange(int(np.floor(size * scale))) / scale
        left = np.floor(at).astype(int)
        ratio = (at - left) if c.attributes.get("mode", "nearest") != "nearest" else 0 * at
        shape = [1] * y.ndim
        shape[axis] = -1
        ratio = ratio.reshape(shape)
        y = np.take(y, left, axis) * (1 - ratio) + np.take(y, np.minimum(left + 1, size - 1), axis) * ratio
    return y.astype(np.float32)


for mode in ("nearest", "bilinear"):
    case("Upsample", "two scales " + mode, [X], {"height_scale": 2., "width_scale": 3., "mode": mode}, until=6,
         note="height_scale, width_scale; bilinear", like=enlarge)
case("Upsample", "two scales", [X], {"height_scale": 1.5, "width_scale": 2.}, until=6, like=enlarge)
for mode in ("nearest", "linear"):
    for label, scales in [("whole", [1, 1, 2, 3]), ("broken", [1, 1, 1.5, 1.7])]:
        case("Upsample", "attribute %s %s" % (mode, label), [X], {"scales": np.float32(scales).tolist(), "mode": mode}, since=7, until=8, like=enlarge,
             note="from the corner, rounded down")
        for kind, wrap in [("stored", init), ("fed", lambda v: v)]:
            case("Upsample", "input %s %s %s" % (mode, label, kind), [X, wrap(floats(*scales))], {"mode": mode}, since=9, until=9)
            case("Resize", "10 %s %s %s" % (mode, label, kind), [X, wrap(floats(*scales))], {"mode": mode}, since=10, until=10,
                 note="opset 10: from the corner; nearest is down where axes grow, up where they shrink")
    for label, scales in [("smaller", [1, 1, .6, .5]), ("mixed", [1, 1, .6, 1.7])]:
        for kind, wrap in [("stored", init), ("fed", lambda v: v)]:
            case("Resize", "10 %s %s %s" % (mode, label, kind), [X, wrap(floats(*scales))], {"mode": mode}, since=10, until=10)
for mode in ("nearest", "linear", "cubic"):
    for transform in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"):
        for label, scales in [("larger", [1, 1, 2, 3]), ("smaller", [1, 1, .5, .6])]:
            case("Resize", "%s %s %s" % (mode, transform, label), [X, None, init(floats(*scales))],
                 {"mode": mode, "coordinate_transformation_mode": transform}, since=13)
    case("Resize", "sizes %s" % mode, [X, None, None, init(ints(1, 2, 7, 3))], {"mode": mode}, since=13)
    case("Resize", "11 sizes %s" % mode, [X, init(floats()), init(floats()), init(ints(1, 2, 7, 3))], {"mode": mode}, since=11)
    case("Resize", "11 scales %s" % mode, [X, init(floats()), init(floats(1, 1, 2, 1.5))], {"mode": mode}, since=11)
for transform in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"):
    more = {"like": reference, "wrong": "takes the length of the output, which is whole"} if transform == "align_corners" else {}
    case("Resize", "broken scales " + transform, [X, init(floats()), init(floats(1, 1, 1.3, 1.5))],
         {"mode": "linear", "coordinate_transformation_mode": transform}, since=11, **more)
for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
    case("Resize", "nearest " + rounding, [X, init(floats()), init(floats(1, 1, 2, 1.5))], {"nearest_mode": rounding}, since=11)
for rounding in ("round_prefer_floor", "floor"):
    for label, scales in [("larger", (1, 1, 2, 1.5)), ("smaller", (1, 1, .5, .6))]:
        case("Resize", "tf_half_pixel_for_nn %s %s" % (rounding, label), [X, init(floats()), init(floats(*scales))],
             {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": rounding}, since=11, until=12)
case("Resize", "tf_half_pixel_for_nn up", [X, init(floats()), init(floats(1, 1, 2, 1.5))],
     {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "nearest_mode": "ceil"}, since=11, until=12, refused="node 'it' (Resize) of opset 12",
     note="tf_half_pixel_for_nn refused where it rounds up")
case("Resize", "tf_crop_and_resize", [X, init(floats(0, 0, .1, .2, 1, 1, .8, 1.2)), init(floats()), init(ints(1, 2, 3, 4))],
     {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear", "extrapolation_value": 7.}, since=11)
case("Resize", "cubic attributes", [X, init(floats()), init(floats(1, 1, 2, 1.5))], {"mode": "cubic", "cubic_coeff_a": -.5, "exclude_outside": 1}, since=11)
case("Resize", "antialias", [X, None, init(floats(1, 1, .5, .6))], {"mode": "linear", "antialias": 1}, since=18)
case("Resize", "axes", [X, None, init(floats(.5, 2))], {"mode": "linear", "axes": [3, 2]}, since=18)
case("Resize", "not_larger", [X, None, None, init(ints(7, 3))], {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}, since=18)
case("Resize", "half_pixel_symmetric", [X, None, init(floats(1, 1, 1.7, .7))], {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}, since=19)
G = D.random.uniform(-1.2, 1.2, (1, 3, 2, 2)).astype(np.float32)
for old, new in [("bilinear", "linear"), ("nearest", "nearest"), ("bicubic", "cubic")]:
    for padding in ("zeros", "border", "reflection"):
        case("GridSample", "%s %s" % (old, padding), [X, G], {"mode": old, "padding_mode": padding, "align_corners": 1}, until=19)
        case("GridSample", "newer %s %s" % (new, padding), [X, G], {"mode": new, "padding_mode": padding}, since=20)
case("GridSample", "default", [X, G])

# --- recurrent ---

D = Draw("recurrent")
SEQ, N, I, H = 4, 2, 3, 5  # noqa: E741
for name, gates in [("RNN", 1), ("GRU", 3), ("LSTM", 4)]:
    for direction in ("forward", "reverse", "bidirectional"):
        dirs = 2 if direction == "bidirectional" else 1
        P = [D.f(SEQ, N, I), init(D.f(dirs, gates * H, I)), init(D.f(dirs, gates * H, H)), init(D.f(dirs, 2 * gates * H))]
        outputs = 3 if name == "LSTM" else 2
        BASE = {"hidden_size": H, "direction": direction}
        case(name, direction, P, BASE, since=7, outputs=outputs)
        for sequence in (0, 1):
            case(name, "output_sequence %d %s" % (sequence, direction), P, {"output_sequence": sequence, **BASE}, until=6, outputs=outputs,
                 note="output_sequence", like=newer(13, attributes=BASE))
    P = [D.f(SEQ, N, I), init(D.f(1, gates * H, I)), init(D.f(1, gates * H, H))]
    case(name, "clip", P, {"hidden_size": H, "clip": .3}, since=7, outputs=2)
    case(name, "initial", P + [None, None, D.f(1, N, H)], {"hidden_size": H}, since=7, outputs=2)
case("GRU", "linear_before_reset", P[:1] + [init(D.f(1, 3 * H, I)), init(D.f(1, 3 * H, H)), init(D.f(1, 6 * H))], {"hidden_size": H, "linear_before_reset": 1}, since=7, outputs=2)
case("GRU", "linear_before_reset 3", P[:1] + [init(D.f(1, 3 * H, I)), init(D.f(1, 3 * H, H)), init(D.f(1, 6 * H))], {"hidden_size": H, "linear_before_reset": 1},
     since=3, until=6, outputs=2, like=newer(13))

# --- losses, attention, quantization, others ---

D = Draw("losses")
case("SoftmaxCrossEntropyLoss", "plain", [D.f(4, 5), D.i(0, 5, 4)])
case("SoftmaxCrossEntropyLoss", "ignore", [D.f(4, 5, 2), D.i(0, 5, 4, 2), D.u(5)], {"ignore_index": 2, "reduction": "sum"})
case("NegativeLogLikelihoodLoss", "plain", [D.f(4, 5), D.i(0, 5, 4)])
case("NegativeLogLikelihoodLoss", "weights", [D.f(4, 5, 2), D.i(0, 5, 4, 2), D.u(5)], {"ignore_index": 2})
Q, K, V = D.f(2, 4, 3, 8), D.f(2, 2, 5, 8), D.f(2, 2, 5, 8)
case("Attention", "plain", [Q, K, V])
case("Attention", "causal", [Q, K, V], {"is_causal": 1})
case("Attention", "bias", [Q, K, V, D.f(3, 5)], {"softcap": 2., "scale": .3})
case("Attention", "mask", [Q, K, V, np.array([[1, 0, 1, 1, 0], [1, 1, 1, 0, 1], [0, 1, 1, 1, 1]], bool)])
case("Attention", "past", [Q, K, V, None, D.f(2, 2, 4, 8), D.f(2, 2, 4, 8)], {"is_causal": 1}, outputs=3)
case("RotaryEmbedding", "plain", [D.f(2, 4, 3, 8), D.f(10, 4), D.f(10, 4), D.i(0, 10, 2, 3)])


def dft(axis):
    def run(c, a):
        made = np.fft.fft(a[0][..., 0].astype(np.float64), axis=axis)
        if c.attributes.get("onesided"):
            made = np.take(made, range(made.shape[axis] // 2 + 1), axis)
        return np.stack([made.real, made.imag], -1).astype(np.float32)

    return run


X = D.f(2, 5, 4, 1)
case("DFT", "axis", [X], {"axis": 1}, until=19, exact=True, like=dft(1))
case("DFT", "default", [X], until=19, exact=True, like=dft(1))
case("DFT", "onesided", [X], {"axis": 2, "onesided": 1}, until=19, exact=True, like=dft(2))
case("DFT", "input", [X, None, init(np.array(1, np.int64))], since=20, exact=True, like=dft(1))
case("DFT", "newer default", [X], since=20, exact=True, like=dft(2))
case("DequantizeLinear", "one scale", [init(D.i(-9, 9, 3, 4).astype(np.int8)), init(np.float32(.5)), init(np.int8(2))])
case("DequantizeLinear", "axis", [init(D.i(-9, 9, 3, 4).astype(np.int8)), init(D.u(3)), init(D.i(-2, 2, 3).astype(np.int8))], {"axis": 0}, since=13)
case("DequantizeLinear", "blocks", [init(D.i(-9, 9, 3, 4).astype(np.int8)), init(D.u(3, 2)), init(D.i(-2, 2, 3, 2).astype(np.int8))], {"axis": 1, "block_size": 2}, since=21)
