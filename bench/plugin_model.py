#!/usr/bin/env python3
"""Writes two files with the same arithmetic and weights, for bench/plugin_model.sh. A block has a normalization, two
matrix products, a gated unit and a third product. One file has com.example.RmsNorm and SwiGlu, the other ONNX's own
operators.

    plugin_model.py FOLDER       writes plugin.onnx and built_in.onnx; needs onnx and numpy
    plugin_model.py --compare A.jsonl... -- B.jsonl...     metrics of A and B: medians, best and their ratios
"""
import json
import statistics
import sys

WIDTH, HIDDEN, CLASSES, BLOCKS = 512, 1024, 16, 4
WARM = 5


def build(own):
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(1)
    nodes, weights = [], []

    def weight(name, value):
        weights.append(numpy_helper.from_array(value.astype(np.float32), name))
        return name

    def matrix(name, rows, columns):
        return weight(name, random.normal(0, rows**-0.5, (rows, columns)))

    def node(op, inputs, name, domain="", **attributes):
        nodes.append(helper.make_node(op, inputs, [name + "_out"], name, domain=domain, **attributes))
        return name + "_out"

    at = "x"
    for i in range(BLOCKS):
        p = f"blocks.{i}"
        start, scale = at, weight(f"{p}.norm.scale", np.ones(WIDTH))
        if own:
            at = node("RmsNorm", [at, scale], f"{p}.norm", "com.example", epsilon=1e-5)
        else:
            at = node("RMSNormalization", [at, scale], f"{p}.norm", axis=-1, epsilon=1e-5)
        gate = node("MatMul", [at, matrix(f"{p}.gate.weight", WIDTH, HIDDEN)], f"{p}.gate")
        up = node("MatMul", [at, matrix(f"{p}.up.weight", WIDTH, HIDDEN)], f"{p}.up")
        if own:
            at = node("SwiGlu", [gate, up], f"{p}.swiglu", "com.example")
        else:
            at = node("Mul", [node("Mul", [gate, node("Sigmoid", [gate], f"{p}.sigmoid")], f"{p}.silu"), up], f"{p}.gated")
        at = node("MatMul", [at, matrix(f"{p}.down.weight", HIDDEN, WIDTH)], f"{p}.down")
        at = node("Add", [start, at], f"{p}.add")
    node("MatMul", [at, matrix("head.weight", WIDTH, CLASSES)], "head")
    nodes[-1].output[0] = "logits"
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "blocks", [info("x", TensorProto.FLOAT, ["batch", WIDTH])],
                              [info("logits", TensorProto.FLOAT, ["batch", CLASSES])], weights)
    opsets = [helper.make_opsetid("", 23)] + ([helper.make_opsetid("com.example", 1)] if own else [])
    return helper.make_model(graph, ir_version=10, opset_imports=opsets)


def steps(paths):
    times, losses = [], []
    for path in paths:
        rows = [json.loads(line) for line in open(path)]
        rows = [row for row in rows if row["kind"] == "step"]
        times += [row["step_ms"] for row in rows[WARM:]]
        losses.append(rows[-1]["loss"])
    return times, losses[-1]


def compare(first, second):
    (a, loss_a), (b, loss_b) = steps(first), steps(second)
    for name, t, loss in (("plug-in", a, loss_a), ("built-in", b, loss_b)):
        print(f"{name:8} {len(t)} steps: median {statistics.median(t):.3f} ms, best {min(t):.3f} ms, last loss {loss:.6f}")
    print(f"plug-in / built-in: median {statistics.median(a) / statistics.median(b):.4f}, best {min(a) / min(b):.4f}")


if __name__ == "__main__":
    if sys.argv[1] == "--compare":
        middle = sys.argv.index("--")
        compare(sys.argv[2:middle], sys.argv[middle + 1:])
    else:
        import onnx
        for name, own in (("plugin", True), ("built_in", False)):
            onnx.save(build(own), f"{sys.argv[1]}/{name}.onnx")
