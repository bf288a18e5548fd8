#!/usr/bin/env python3
"""Writes tests/fixtures/quantized: small quantized files from ONNX Runtime's own tools, data, and the losses of
training.

    make_quantized.py [FOLDER [NAME]]      NAME: only this file; needs numpy, onnx, onnxruntime and torch

Each folder has model.onnx, data/x.npy, data/labels.npy and losses.txt: the losses of SGD (lr 0.02, momentum 0.9,
batches of 8 in order). A PyTorch program that walks the graph's nodes computes them. An integer between two nodes is
stored as the float that it represents. Each pair of QuantizeLinear and DequantizeLinear is one rounding with a
straight-through gradient. Integer weights are float masters. `learned.txt`, in some folders, has the losses with
trained scales (lr 0.002: a larger one makes some of them negative).
"""
import math
import pathlib
import sys

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static)

RANGES = {TensorProto.INT8: (-128, 127), TensorProto.UINT8: (0, 255), TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15),
          TensorProto.INT16: (-32768, 32767), TensorProto.UINT16: (0, 65535)}
STEPS, BATCH, RATE, SCALES_RATE, MOMENTUM = 6, 8, 0.02, 0.002, 0.9


class Round(torch.autograd.Function):
    """Rounding as in LSQ, with gradients for x and scale; the zero point is fixed."""

    @staticmethod
    def forward(ctx, x, s, z, lo, hi, count):
        q = torch.round(x / s) + z
        ctx.save_for_backward(x, s, z)
        ctx.rest = (lo, hi, count)
        return (q.clamp(lo, hi) - z) * s

    @staticmethod
    def backward(ctx, dy):
        x, s, z = ctx.saved_tensors
        lo, hi, count = ctx.rest
        r = torch.round(x / s)
        q = r + z
        inside = (q >= lo) & (q <= hi)
        slope = torch.where(inside, r - x / s, torch.where(q > hi, hi - z, lo - z))
        ds = (dy * slope).sum_to_size(s.shape) / math.sqrt(count * hi)
        return dy * inside, ds, None, None, None, None


def spread(v, shape, axis, block):
    """Returns a scale or zero point in a shape that broadcasts; with blocks, in the tensor's own shape."""
    if v.numel() == 1:
        return v.reshape(())
    if block:
        return v.repeat_interleave(block, dim=axis).narrow(axis, 0, shape[axis])
    if len(shape) == 1:
        return v
    if v.dim() == 2:   # an LSTM's gates
        return v.unsqueeze(1)
    dims = [1] * len(shape)
    dims[axis] = -1
    return v.reshape(dims)


class Walker:
    def __init__(self, model, learned=False):
        self.graph = model.graph
        self.learned = learned
        self.protos = {t.name: t for t in model.graph.initializer}
        self.arrays = {n: torch.from_numpy(np.array(numpy_helper.to_array(t).astype(
            np.float32 if t.data_type != TensorProto.INT64 else np.int64))) for n, t in self.protos.items()}
        self.types = {n: t.data_type for n, t in self.protos.items()}
        self.params = {}
        self.deq = {}
        x = torch.zeros(BATCH, *[d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim][1:])
        self.scales, self.zeros = set(), set()
        self.run(x)
        for n, t in self.protos.items():
            if t.data_type == TensorProto.FLOAT and n not in self.scales | self.zeros and self.arrays[n].dim() > 0:
                self.param(n, self.arrays[n])
        if learned:
            for n in self.scales:
                self.param(n, self.arrays[n])

    def param(self, name, value):
        if name not in self.params:
            self.params[name] = value.clone().requires_grad_()
        return self.params[name]

    def get(self, name):
        return self.params.get(name, self.arrays.get(name))

    def fake(self, x, scale, zero, axis=1, block=0, weight=False, kind=None):
        self.scales.add(scale)
        s = self.get(scale)
        z = self.arrays[zero] if zero else torch.zeros_like(self.arrays[scale])
        lo, hi = RANGES[kind or (self.types[zero] if zero else TensorProto.UINT8)]
        count = x.numel() / s.numel() / (1 if weight else x.shape[0])
        return Round.apply(x, spread(s, x.shape, axis, block), spread(z, x.shape, axis, block), lo, hi, count)

    def weight(self, name, scale, zero, axis, block=0):
        """Returns the value of an integer weight, from its master."""
        q = self.arrays[name]
        s = spread(self.arrays[scale], q.shape, axis, block)
        z = spread(self.arrays[zero], q.shape, axis, block) if zero else 0
        self.scales.add(scale)
        master = self.param(name, (q - z) * s)
        if self.types[name] == TensorProto.INT32:
            return master
        return self.fake(master, scale, zero, axis, block, True, self.types[name])

    def multiplied(self, cast, values):
        """Returns the value of an integer weight that Cast, optional Sub, and Mul dequantize. The value is also
        their output."""
        reader = lambda name: next(m for m in self.graph.node if name in m.input)  # noqa: E731
        node, z = reader(cast.output[0]), torch.zeros(())
        if node.input[1] == cast.output[0] and node.op_type == "Sub":
            return self.arrays[cast.input[0]]
        made = [cast]
        if node.op_type == "Sub":
            self.zeros.add(node.input[1])
            zero = next((m.input[0] for m in self.graph.node if node.input[1] in m.output), node.input[1])
            z = self.arrays[zero]
            made.append(node)
            node = reader(node.output[0])
        scale = next(t for t in node.input if t != made[-1].output[0])
        self.scales.add(scale)
        q, s = self.arrays[cast.input[0]], self.get(scale)
        master = self.param(cast.input[0], (q - z) * self.arrays[scale])
        y = Round.apply(master, s, z, *RANGES[self.types[cast.input[0]]], q.numel() / s.numel())
        values.update({m.output[0]: y for m in made + [node]})
        return y

    def operand(self, values, name, scale, zero, axis=0):
        self.scales.add(scale)
        return values[name] if name in values else self.weight(name, scale, zero, axis)

    @staticmethod
    def dynamic(x):
        """Returns x rounded by its own range, and the step."""
        lo, hi = x.detach().min().clamp(max=0), x.detach().max().clamp(min=0)
        s = (hi - lo) / 255 if hi > lo else torch.ones(())
        return Round.apply(x, s, torch.round(-lo / s), 0, 255, 1), s

    def lstm(self, x, i, hidden, ways):
        x, outputs = self.dynamic(x)[0], []
        w, r = self.weight(i[1], i[8], i[9], 0), self.weight(i[2], i[10], i[11], 0)
        for d, backward in enumerate(ways):
            bias = self.get(i[3])[d].reshape(2, -1).sum(0)
            h = c = torch.zeros(x.shape[1], hidden)
            steps = [None] * len(x)
            for t in (range(len(x) - 1, -1, -1) if backward else range(len(x))):
                gi, go, gf, gc = (x[t] @ w[d] + self.dynamic(h)[0] @ r[d] + bias).split(hidden, 1)
                c = torch.sigmoid(gf) * c + torch.sigmoid(gi) * torch.tanh(gc)
                h = steps[t] = torch.sigmoid(go) * torch.tanh(c)
            outputs.append(torch.stack(steps))
        return torch.stack(outputs, 1)

    def bias(self, name, a, b):
        return self.param(name, self.arrays[name] * (self.arrays[a] * self.arrays[b])) if name else None

    def run(self, x):
        v = {self.graph.input[0].name: x}
        for n in self.graph.node:
            a = {i.name: helper.get_attribute_value(i) for i in n.attribute}
            i = list(n.input) + [""] * 9
            get = lambda name: v[name] if name in v else self.get(name)  # noqa: E731
            op = n.op_type
            if n.name.startswith("bias."):   # ConvInteger has handled these
                continue
            if op == "QuantizeLinear":
                y = self.fake(get(i[0]), i[1], i[2], a.get("axis", 1), a.get("block_size", 0))
            elif op == "DequantizeLinear":
                self.scales.add(i[1])
                y = v[i[0]] if i[0] in v else self.weight(i[0], i[1], i[2], a.get("axis", 1), a.get("block_size", 0))
            elif op == "Cast" and self.types.get(i[0]) in RANGES:
                y = self.multiplied(n, v)
            elif n.output[0] in v:
                continue
            elif op in ("Conv", "QLinearConv"):
                pads = a.get("pads", [0, 0, 0, 0])
                if op == "Conv":
                    t, w, b = get(i[0]), get(i[1]), get(i[2]) if i[2] else None
                else:
                    t, w, b = v[i[0]], self.operand(v, i[3], i[4], i[5]), self.bias(i[8], i[1], i[4])
                y = F.conv2d(t, w, b, a.get("strides", [1, 1]), pads[:2], a.get("dilations", [1, 1]), a.get("group", 1))
                y = self.fake(y, i[6], i[7]) if op == "QLinearConv" else y
            elif op in ("Gemm", "QGemm"):
                if op == "Gemm":
                    w, b = get(i[1]), get(i[2])
                else:
                    w, b = self.operand(v, i[3], i[4], i[5], 0 if a.get("transB") else 1), self.bias(i[6], i[1], i[4])
                y = get(i[0]) @ (w.T if a.get("transB") else w) + b
                y = self.fake(y, i[7], i[8]) if op == "QGemm" and i[7] else y
            elif op == "MatMul":
                y = get(i[0]) @ get(i[1])
            elif op == "QLinearMatMul":
                y = self.fake(v[i[0]] @ self.operand(v, i[3], i[4], i[5], -1), i[6], i[7])
            elif op in ("QLinearAdd", "QLinearMul"):
                l, r = self.operand(v, i[0], i[1], i[2]), self.operand(v, i[3], i[4], i[5])
                y = self.fake(l + r if op == "QLinearAdd" else l * r, i[6], i[7])
            elif op == "QLinearSigmoid":
                y = self.fake(torch.sigmoid(v[i[0]]), i[3], i[4])
            elif op == "QLinearLeakyRelu":
                y = self.fake(F.leaky_relu(v[i[0]], a["alpha"]), i[3], i[4])
            elif op == "QLinearSoftmax":
                y = self.fake(torch.softmax(v[i[0]], a["axis"]), i[3], i[4])
            elif op == "QLinearAveragePool":
                y = self.fake(F.avg_pool2d(v[i[0]], a["kernel_shape"], a["strides"]), i[3], i[4])
            elif op == "QLinearReduceMean":
                y = self.fake(v[i[0]].mean(a["axes"], keepdim=True), i[3], i[4])
            elif op == "QLinearConcat":
                y = self.fake(torch.cat([v[n] for n in i[2:11:3] if n], a["axis"]), i[0], i[1])
                self.scales.update(n for n in i[3:11:3] if n)
            elif op == "QLinearWhere":
                y = self.fake(torch.where(self.arrays[i[0]] > 0, v[i[1]], v[i[4]]), i[7], i[8])
            elif op == "QLinearGlobalAveragePool":
                y = self.fake(v[i[0]].mean((2, 3), keepdim=True), i[3], i[4])
            elif op == "DynamicQuantizeLinear":
                y, self.step = self.dynamic(get(i[0]))
            elif op == "DynamicQuantizeLSTM":
                y = self.lstm(get(i[0]), i, a["hidden_size"], {b"forward": [0], b"bidirectional": [0, 1]}[a["direction"]])
            elif op == "ConvInteger":   # a bias in whole steps
                b, s = self.get("c.bias"), self.step * self.arrays["c.scale"]
                b = b + (torch.floor(b / s) * s - b).detach()
                y = F.conv2d(v[i[0]], self.weight(i[1], "c.scale", i[3], 0), b)
                v["c"] = y
            elif op == "MatMulInteger":
                cast = next(m for m in self.graph.node if n.output[0] in m.input)
                mul = next(m for m in self.graph.node if cast.output[0] in m.input)
                both = next(m for m in self.graph.node if mul.input[1] in m.output)
                scale = next(s for s in both.input if s in self.arrays)
                y = v[i[0]] @ self.weight(i[1], scale, i[3], -1)
                v[mul.output[0]] = y
                v[cast.output[0]] = y
            elif op == "Mul" and (i[1] in self.scales or i[0] not in v):
                continue
            elif op in ("Mul", "Add", "Sub", "Div"):
                y = {"Mul": torch.mul, "Add": torch.add, "Sub": torch.sub, "Div": torch.div}[op](get(i[0]), get(i[1]))
            elif op == "Relu":
                y = torch.relu(get(i[0]))
            elif op == "Sigmoid":
                y = torch.sigmoid(get(i[0]))
            elif op == "GlobalAveragePool":
                y = get(i[0]).mean((2, 3), keepdim=True)
            elif op == "MaxPool":
                y = F.max_pool2d(get(i[0]), a["kernel_shape"], a.get("strides", [1, 1]))
            elif op == "Flatten":
                y = get(i[0]).flatten(1)
            elif op == "Squeeze":
                y = get(i[0]).squeeze(int(self.arrays[i[1]]))
            elif op == "ReduceMean":
                y = get(i[0]).mean(a["axes"], keepdim=bool(a["keepdims"]))
            elif op == "Transpose":
                y = get(i[0]).permute(a["perm"])
            elif op == "Reshape":
                y = get(i[0]).reshape([int(d) for d in self.arrays[i[1]]])
            else:
                raise SystemExit("no " + op)
            v[n.output[0]] = y
        return v[self.graph.output[0].name]


def losses(path, x, labels, learned=False):
    walker = Walker(onnx.load(path), learned)
    params = [walker.params[n] for n in sorted(walker.params)]
    optimizer = torch.optim.SGD(params, lr=SCALES_RATE if learned else RATE, momentum=MOMENTUM)
    found = []
    for step in range(STEPS):
        at = [(step * BATCH + k) % len(x) for k in range(BATCH)]
        loss = F.cross_entropy(walker.run(torch.from_numpy(x[at])), torch.from_numpy(labels[at]))
        found.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found


def conv_model():
    r = np.random.default_rng(1)
    w = lambda *s: r.normal(0, 0.4, s).astype(np.float32)  # noqa: E731
    tensors = {"c1.weight": w(6, 3, 3, 3), "c1.bias": w(6), "c2.weight": w(6, 6, 3, 3), "c2.bias": w(6), "f.weight": w(3, 6),
               "f.bias": w(3)}
    conv = dict(kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    nodes = [helper.make_node("Conv", ["x", "c1.weight", "c1.bias"], ["c1"], "c1", **conv, strides=[2, 2]),
             helper.make_node("Relu", ["c1"], ["r1"], "r1"),
             helper.make_node("MaxPool", ["r1"], ["p1"], "p1", kernel_shape=[2, 2], strides=[2, 2]),
             helper.make_node("Conv", ["p1", "c2.weight", "c2.bias"], ["c2"], "c2", **conv),
             helper.make_node("Add", ["c2", "p1"], ["s"], "s"), helper.make_node("Sigmoid", ["s"], ["r2"], "r2"),
             helper.make_node("GlobalAveragePool", ["r2"], ["g"], "g"), helper.make_node("Flatten", ["g"], ["h"], "h", axis=1),
             helper.make_node("Gemm", ["h", "f.weight", "f.bias"], ["logits"], "f", transB=1)]
    return nodes, tensors, [3, 8, 8]


def mixed_model():
    """Returns a model of operators with a QLinear form that conv_model lacks."""
    r = np.random.default_rng(4)
    w = lambda *s: r.normal(0, 0.5, s).astype(np.float32)  # noqa: E731
    tensors = {"c1.weight": w(4, 3, 3, 3), "c1.bias": w(4), "c2.weight": w(4, 4, 1, 1), "c2.bias": w(4), "odd": np.array([1, 0, 1, 0], bool),
               "c3.weight": w(6, 8, 1, 1), "c3.bias": w(6), "f.weight": w(3, 6), "f.bias": w(3)}
    tensors["odd"] = tensors["odd"].reshape(1, 4, 1, 1)
    pool = dict(kernel_shape=[2, 2], strides=[2, 2])
    nodes = [helper.make_node("Conv", ["x", "c1.weight", "c1.bias"], ["c1"], "c1", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
             helper.make_node("LeakyRelu", ["c1"], ["r1"], "r1", alpha=0.25), helper.make_node("AveragePool", ["r1"], ["p1"], "p1", **pool),
             helper.make_node("Conv", ["p1", "c2.weight", "c2.bias"], ["c2"], "c2", kernel_shape=[1, 1]),
             helper.make_node("Softmax", ["c2"], ["s1"], "s1", axis=-1), helper.make_node("Mul", ["s1", "p1"], ["m1"], "m1"),
             helper.make_node("Where", ["odd", "m1", "c2"], ["w1"], "w1"), helper.make_node("Concat", ["w1", "p1"], ["k1"], "k1", axis=1),
             helper.make_node("Conv", ["k1", "c3.weight", "c3.bias"], ["c3"], "c3", kernel_shape=[1, 1]),
             helper.make_node("GlobalAveragePool", ["c3"], ["g"], "g"), helper.make_node("Flatten", ["g"], ["h"], "h", axis=1),
             helper.make_node("Gemm", ["h", "f.weight", "f.bias"], ["logits"], "f", transB=1)]
    return nodes, tensors, [3, 8, 8]


def with_reduce_mean(path):
    """Replaces QLinearGlobalAveragePool by QLinearReduceMean; the quantizer does not write QLinearReduceMean."""
    model = onnx.load(path)
    for node in model.graph.node:
        if node.op_type == "QLinearGlobalAveragePool":
            node.op_type = "QLinearReduceMean"
            del node.attribute[:]
            node.attribute.extend([helper.make_attribute("axes", [2, 3]), helper.make_attribute("keepdims", 1)])
    onnx.save(model, path)


def multiplied_model():
    """Returns integer weights that Cast, Sub and Mul dequantize: scales and zero points of several shapes, and
    blocks."""
    r = np.random.default_rng(5)
    floats = lambda lo, hi, *s: r.uniform(lo, hi, s).astype(np.float32)  # noqa: E731
    tensors = {"c1.q": r.integers(0, 256, (6, 3, 3, 3)).astype(np.uint8), "c1.scale": floats(0.003, 0.006, 6, 1, 1, 1),
               "c1.zero": r.integers(100, 150, (6, 1, 1, 1)).astype(np.float32), "c1.bias": floats(-1, 1, 6),
               "a.q": r.integers(-128, 128, (12, 3, 8)).astype(np.int8), "a.scale": floats(0.002, 0.004, 12, 3, 1),
               "a.shape": np.array([12, 24]), "b.q": r.integers(0, 256, (12, 5)).astype(np.uint8),
               "b.scale": floats(0.002, 0.004, 5), "b.zero": np.array(128, np.uint8), "b.bias": floats(-1, 1, 5),
               "f.q": r.integers(-128, 128, (3, 5)).astype(np.int8), "f.scale": np.array([0.005], np.float32), "f.bias": floats(-1, 1, 3)}
    n = lambda op, inputs, out, **a: helper.make_node(op, inputs.split(), [out], out + ".node", **a)  # noqa: E731
    cast = lambda name: n("Cast", name, name + ".float", to=TensorProto.FLOAT)  # noqa: E731
    nodes = [cast("c1.q"), n("Sub", "c1.q.float c1.zero", "c1.shifted"), n("Mul", "c1.scale c1.shifted", "c1.weight"),
             n("Conv", "x c1.weight c1.bias", "c1", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), n("Relu", "c1", "r1"),
             n("MaxPool", "r1", "p1", kernel_shape=[4, 4], strides=[4, 4]), n("Flatten", "p1", "h"),
             cast("a.q"), n("Mul", "a.q.float a.scale", "a.blocks"), n("Reshape", "a.blocks a.shape", "a.matrix"),
             n("Transpose", "a.matrix", "a.turned", perm=[1, 0]), n("MatMul", "h a.turned", "m1"),
             n("Relu", "m1", "r2"), cast("b.q"), cast("b.zero"), n("Sub", "b.q.float b.zero.float", "b.shifted"),
             n("Mul", "b.shifted b.scale", "b.weight"), n("MatMul", "r2 b.weight", "m2"), n("Add", "m2 b.bias", "n2"),
             cast("f.q"), n("Mul", "f.q.float f.scale", "f.weight"), n("Gemm", "n2 f.weight f.bias", "logits", transB=1)]
    return nodes, tensors, [3, 8, 8]


def mlp_model():
    r = np.random.default_rng(2)
    w = lambda *s: r.normal(0, 0.4, s).astype(np.float32)  # noqa: E731
    tensors = {"a": w(12, 10), "a.bias": w(10), "b": w(10, 5)}
    nodes = [helper.make_node("MatMul", ["x", "a"], ["m"], "m"), helper.make_node("Add", ["m", "a.bias"], ["n"], "n"),
             helper.make_node("Relu", ["n"], ["r"], "r"), helper.make_node("MatMul", ["r", "b"], ["logits"], "l")]
    return nodes, tensors, [12]


def lstm_model():
    r = np.random.default_rng(5)
    w = lambda *s: r.normal(0, 0.5, s).astype(np.float32)  # noqa: E731
    tensors = {"l.w": w(2, 16, 5), "l.r": w(2, 16, 4), "l.bias": w(2, 32), "f.weight": w(4, 3), "f.bias": w(3)}
    nodes = [helper.make_node("Transpose", ["x"], ["t"], "t", perm=[1, 0, 2]),
             helper.make_node("LSTM", ["t", "l.w", "l.r", "l.bias"], ["y"], "l", hidden_size=4, direction="bidirectional"),
             helper.make_node("ReduceMean", ["y"], ["m"], "m", axes=[0, 1], keepdims=0),
             helper.make_node("MatMul", ["m", "f.weight"], ["p"], "f"), helper.make_node("Add", ["p", "f.bias"], ["logits"], "a")]
    return nodes, tensors, [6, 5]


def integer_bias_model():
    """Returns ConvInteger with an integer bias, as ONNX Runtime's tools wrote it before 1.9."""
    r = np.random.default_rng(6)
    tensors = {"c.weight": r.integers(-100, 100, (3, 2, 3, 3)).astype(np.int8), "c.scale": np.float32(0.006), "c.zero": np.int8(3),
               "c.bias": r.normal(0, 0.3, 3).astype(np.float32), "c.shape": np.array([1, 3, 1, 1])}
    node = helper.make_node
    nodes = [node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "q"), node("Mul", ["s", "c.scale"], ["bs"], "bias.scale"),
             node("Div", ["c.bias", "bs"], ["bd"], "bias.steps"), node("Floor", ["bd"], ["bf"], "bias.down"),
             node("Cast", ["bf"], ["bi"], "bias.cast", to=TensorProto.INT32), node("ConvInteger", ["q", "c.weight", "z", "c.zero"], ["ci"], "c"),
             node("Reshape", ["bi", "c.shape"], ["br"], "bias.shape"), node("Add", ["ci", "br"], ["cb"], "bias.add"),
             node("Cast", ["cb"], ["cf"], "bias.float", to=TensorProto.FLOAT), node("Mul", ["s", "c.scale"], ["ps"], "bias.product"),
             node("Mul", ["cf", "ps"], ["c"], "bias.end"), node("GlobalAveragePool", ["c"], ["g"], "g"),
             node("Flatten", ["g"], ["logits"], "h", axis=1)]
    return nodes, tensors, [2, 5, 5]


def save(made, path, opset=17):
    nodes, tensors, row = made
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["batch", *row])],
                              [helper.make_tensor_value_info("logits", 1, ["batch", None])],
                              [numpy_helper.from_array(t, n) for n, t in tensors.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return row


class Reader(CalibrationDataReader):
    def __init__(self, x):
        self.rows = iter([{"x": x[i:i + BATCH]} for i in range(0, len(x), BATCH)])

    def get_next(self):
        return next(self.rows, None)


def make(folder, name, made, how, learned=False, opset=17, edit=None, **options):
    if sys.argv[2:] not in ([], [name]):
        return
    to = folder / name
    (to / "data").mkdir(parents=True, exist_ok=True)
    plain, path = str(to / "plain.onnx"), str(to / "model.onnx")
    row = save(made, plain, opset)
    r = np.random.default_rng(3)
    x = r.normal(0, 1, (24, *row)).astype(np.float32)
    labels = r.integers(0, 3, 24).astype(np.int64)
    if how is None:
        pathlib.Path(path).write_bytes(pathlib.Path(plain).read_bytes())
    elif how == "dynamic":
        quantize_dynamic(plain, path, **options)
    else:
        quantize_static(plain, path, Reader(x), quant_format=how, **options)
    pathlib.Path(plain).unlink()
    if edit:
        edit(path)
    np.save(to / "data" / "x.npy", x)
    np.save(to / "data" / "labels.npy", labels)
    (to / "losses.txt").write_text("".join("%.8g\n" % v for v in losses(path, x, labels)))
    if learned:
        (to / "learned.txt").write_text("".join("%.8g\n" % v for v in losses(path, x, labels, True)))


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1] / "fixtures" / "quantized")
    q8, u8 = QuantType.QInt8, QuantType.QUInt8
    make(folder, "pairs", conv_model(), QuantFormat.QDQ, activation_type=u8, weight_type=q8, learned=True)
    make(folder, "pairs_channel", conv_model(), QuantFormat.QDQ, activation_type=q8, weight_type=q8, per_channel=True)
    make(folder, "pairs_4bit", conv_model(), QuantFormat.QDQ, opset=21, activation_type=u8, weight_type=QuantType.QUInt4)
    make(folder, "qlinear", conv_model(), QuantFormat.QOperator, activation_type=u8, weight_type=q8)
    make(folder, "qlinear_channel", conv_model(), QuantFormat.QOperator, activation_type=u8, weight_type=q8, per_channel=True)
    make(folder, "qlinear_mlp", mlp_model(), QuantFormat.QOperator, activation_type=u8, weight_type=u8)
    make(folder, "qlinear_mixed", mixed_model(), QuantFormat.QOperator, edit=with_reduce_mean, activation_type=u8, weight_type=q8,
         extra_options={"ForceQuantizeNoInputCheck": True})
    make(folder, "dynamic", mlp_model(), "dynamic", weight_type=q8)
    make(folder, "dynamic_channel", mlp_model(), "dynamic", weight_type=u8, per_channel=True)
    make(folder, "dynamic_lstm", lstm_model(), "dynamic", weight_type=q8)
    make(folder, "dynamic_lstm_channel", lstm_model(), "dynamic", weight_type=q8, per_channel=True)
    make(folder, "integer_bias", integer_bias_model(), None)
    make(folder, "multiplied", multiplied_model(), None, learned=True)


main()
