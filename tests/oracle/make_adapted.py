#!/usr/bin/env python3
"""Writes tests/fixtures/adapted: small files with adapters on weights outside of plain products, data, a start adapter,
and the results of training.

    make_adapted.py [FOLDER]      needs numpy, onnx, onnxruntime, safetensors and torch

Each folder has model.onnx, data/NAME.npy, adapter.safetensors (and ONNX Runtime's .onnx_adapter), trained.safetensors,
and losses.txt. The two adapter files are from before and after STEPS of SGD: lr 0.1, momentum 0.9, batches of 8 in
order, rank 2, alpha 6. The losses are from PyTorch in double, with y = x W + 3 (x A^T) B^T written out.

  packed   com.microsoft: Attention with lengths, twice; its weight has the columns of q, k and v. The second has no
           bias and a narrower v. Also a FusedGemm with an activation.
  pointwise  a convolution of 3x3, one of 1x1 with stride 2, and a FusedConv of 1x1 with a Relu after a sum
  tied     a table that a Gather and, transposed, a MatMul read
"""
import pathlib
import sys

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import save_file

STEPS, BATCH, RATE, MOMENTUM, SAMPLES, RANK, SCALE = 6, 8, 0.1, 0.9, 24, 2, 3.0
random = np.random.default_rng(5)


def normal(*shape, scale=0.3):
    return (scale * random.standard_normal(shape)).astype(np.float32)


def node(op, inputs, outputs, domain="", **attributes):
    return helper.make_node(op, inputs, outputs, outputs[0], domain=domain, **attributes)


def microsoft(op, inputs, outputs, **attributes):
    return node(op, inputs, outputs, "com.microsoft", **attributes)


class Case:
    def __init__(self, nodes, weights, adapted, columns, labels, logits, forward):
        """`adapted`: name -> (in, out, axes of 1 after them); `forward` gets tensors by name, and A and B as NAME.A
        and NAME.B."""
        self.nodes, self.weights, self.columns, self.labels, self.logits, self.forward = nodes, weights, columns, labels, logits, forward
        self.adapter = {}
        for name, (inner, outer, ones) in adapted.items():
            self.adapter[name + ".lora_A"] = normal(RANK, inner, *[1] * ones, scale=0.15)
            self.adapter[name + ".lora_B"] = normal(outer, RANK, *[1] * ones, scale=0.15)

    def model(self):
        inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), ["batch", *a.shape[1:]])
                  for n, a in self.columns.items()]
        output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", *self.logits])
        graph = helper.make_graph(self.nodes, "adapted", inputs, [output], [numpy_helper.from_array(a, n) for n, a in self.weights.items()])
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=9)

    def values(self, adapter, rows):
        values = {n: torch.tensor(a[rows], dtype=None if a.dtype.kind == "i" else torch.float64) for n, a in self.columns.items()}
        values.update({n: torch.tensor(a, dtype=torch.float64) for n, a in self.weights.items() if a.dtype.kind == "f"})
        return self.forward({**values, **adapter})

    def write(self, folder):
        (folder / "data").mkdir(parents=True, exist_ok=True)
        onnx.save(self.model(), folder / "model.onnx")
        for name, array in {**self.columns, "labels": self.labels}.items():
            np.save(folder / "data" / (name + ".npy"), array)
        adapter = {n: torch.tensor(a, dtype=torch.float64).requires_grad_() for n, a in self.adapter.items()}
        self.save(folder / "adapter.safetensors", adapter)
        self.save_for_onnxruntime(folder / "adapter.onnx_adapter", adapter)
        self.check(folder / "model.onnx")
        optimizer = torch.optim.SGD(list(adapter.values()), lr=RATE, momentum=MOMENTUM)
        losses = []
        for step in range(STEPS):
            rows = [(step * BATCH + i) % SAMPLES for i in range(BATCH)]
            logits = self.values(adapter, rows)
            loss = F.cross_entropy(logits.flatten(0, -2), torch.tensor(self.labels[rows]).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        (folder / "losses.txt").write_text("".join("%.9g\n" % v for v in losses))
        self.save(folder / "trained.safetensors", adapter)

    @staticmethod
    def arrays(adapter):
        return {f"base_model.model.{n}.weight": v.detach().numpy().astype(np.float32) for n, v in adapter.items()}

    def save(self, path, adapter):
        save_file(self.arrays(adapter), path)

    def save_for_onnxruntime(self, path, adapter):
        made = onnxruntime.AdapterFormat()
        made.set_adapter_version(3)
        made.set_model_version(4)
        values = {n: onnxruntime.OrtValue.ortvalue_from_numpy(a) for n, a in self.arrays(adapter).items()}
        made.set_parameters(values)   # it keeps their addresses
        made.export_adapter(str(path))

    def check(self, path):
        """Checks that without adapters PyTorch's formulas equal the file."""
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found = session.run(["logits"], self.columns)[0]
        nothing = {n: torch.zeros(a.shape, dtype=torch.float64) for n, a in self.adapter.items()}
        off = np.abs(found - self.values(nothing, slice(None)).numpy()).max()
        assert off < 1e-5, (path, off)
        print(path, "differs from ONNX Runtime by", off)


def linear(v, x, name):
    """Returns x W + 3 (x A^T) B^T."""
    return x @ v[name] + SCALE * (x @ v[name + ".lora_A"].T) @ v[name + ".lora_B"].T


def attend(projected, sizes, heads, lengths):
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in projected.split(sizes, -1))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    seen = torch.arange(k.shape[2])[None, None, None] < lengths[:, None, None, None]
    return (torch.softmax(scores + torch.where(seen, 0.0, -10000.0), -1) @ v).transpose(1, 2).flatten(2)


def packed():
    steps, width, heads, words, inner = 5, 12, 2, 7, 10
    narrow = [8, 8, 12]
    weights = {"words": normal(words, width, scale=1), "first.qkv": normal(width, 3 * width), "first.bias": normal(3 * width),
               "second.qkv": normal(width, sum(narrow)), "up": normal(inner, width), "up.bias": normal(inner),
               "head": normal(inner, words)}
    shapes = {"rows": np.array([-1, width]), "out": np.array([-1, steps, words])}
    nodes = [node("Gather", ["words", "ids"], ["x"]),
             microsoft("Attention", ["x", "first.qkv", "first.bias", "lengths"], ["a"], num_heads=heads), node("Add", ["x", "a"], ["s"]),
             microsoft("Attention", ["s", "second.qkv", "", "lengths"], ["b"], num_heads=heads, qkv_hidden_sizes=narrow),
             node("Add", ["s", "b"], ["t"]), node("Reshape", ["t", "rows"], ["flat"]),
             microsoft("FusedGemm", ["flat", "up", "up.bias"], ["u"], transB=1, beta=0.5, activation="LeakyRelu", activation_alpha=0.125),
             node("MatMul", ["u", "head"], ["l"]), node("Reshape", ["l", "out"], ["logits"])]
    ids = random.integers(0, words, (SAMPLES, steps))
    lengths = random.integers(2, steps + 1, SAMPLES).astype(np.int32)

    def forward(v):
        x = v["words"][v["ids"]]
        s = x + attend(linear(v, x, "first.qkv") + v["first.bias"], [width] * 3, heads, v["lengths"])
        t = s + attend(linear(v, s, "second.qkv"), narrow, heads, v["lengths"])
        u = t @ v["up"].T + SCALE * (t @ v["up.lora_A"].T) @ v["up.lora_B"].T + 0.5 * v["up.bias"]
        return F.leaky_relu(u, 0.125) @ v["head"]

    adapted = {"first.qkv": (width, 3 * width, 0), "second.qkv": (width, sum(narrow), 0), "up": (width, inner, 0)}
    labels = np.where(np.arange(steps) < lengths[:, None], random.integers(0, words, ids.shape), -100)
    return Case(nodes, {**weights, **shapes}, adapted, {"ids": ids, "lengths": lengths}, labels, [steps, words], forward)


def pointwise():
    classes = 5
    weights = {"wide": normal(6, 3, 3, 3), "down": normal(8, 6, 1, 1), "down.bias": normal(8), "skip": normal(8, 6, 1, 1),
               "mix": normal(8, 8, 1, 1), "mix.bias": normal(8), "head": normal(8, classes)}
    nodes = [node("Conv", ["x", "wide"], ["w"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]), node("Relu", ["w"], ["r"]),
             node("Conv", ["r", "down", "down.bias"], ["d"], kernel_shape=[1, 1], strides=[2, 2]),
             node("Conv", ["r", "skip"], ["s"], kernel_shape=[1, 1], strides=[2, 2]), node("Sigmoid", ["d"], ["g"]),
             microsoft("FusedConv", ["g", "mix", "mix.bias", "s"], ["m"], kernel_shape=[1, 1], activation="Relu"),
             node("ReduceMean", ["m"], ["p"], axes=[2, 3], keepdims=0), node("MatMul", ["p", "head"], ["logits"])]

    def conv(v, x, name, **words):
        return F.conv2d(x, v[name], **words) + SCALE * F.conv2d(F.conv2d(x, v[name + ".lora_A"], **words), v[name + ".lora_B"])

    def forward(v):
        r = torch.relu(F.conv2d(v["x"], v["wide"], padding=1))
        d = conv(v, r, "down", stride=2) + v["down.bias"][:, None, None]
        m = conv(v, torch.sigmoid(d), "mix") + v["mix.bias"][:, None, None] + F.conv2d(r, v["skip"], stride=2)
        return torch.relu(m).mean((2, 3)) @ v["head"]

    return Case(nodes, weights, {"down": (6, 8, 2), "mix": (8, 8, 2)}, {"x": normal(SAMPLES, 3, 7, 7, scale=1)},
                random.integers(0, classes, SAMPLES), [classes], forward)


def tied():
    words, width, steps = 9, 8, 4
    weights = {"table.weight": normal(words, width, scale=1), "mix": normal(width, width), "bias": normal(width)}
    nodes = [node("Gather", ["table.weight", "ids"], ["x"]), node("MatMul", ["x", "mix"], ["m"]), node("Add", ["m", "bias"], ["n"]),
             node("Tanh", ["n"], ["t"]), node("Transpose", ["table.weight"], ["turned"], perm=[1, 0]), node("MatMul", ["t", "turned"], ["logits"])]

    def forward(v):
        t = torch.tanh(v["table.weight"][v["ids"]] @ v["mix"] + v["bias"])
        return t @ v["table.weight"].T + SCALE * (t @ v["table.lora_A"].T) @ v["table.lora_B"].T

    ids = random.integers(0, words, (SAMPLES, steps))
    return Case(nodes, weights, {"table": (width, words, 0)}, {"ids": ids}, random.integers(0, words, ids.shape), [steps, words], forward)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "fixtures/adapted")
    for made in (packed, pointwise, tied):
        made().write(root / made.__name__)


main()
