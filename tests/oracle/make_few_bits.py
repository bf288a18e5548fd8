#!/usr/bin/env python3
"""Writes tests/fixtures/few_bits: small files with frozen weights of few bits, data, and the losses of training.

    make_few_bits.py [FOLDER]      needs numpy, onnx and torch

If ONNX Runtime is installed, it must agree with the first loss.

Each folder has model.onnx, data/NAME.npy, data/labels.npy and losses.txt. The losses are from a PyTorch model with
frozen weights dequantized in double: SGD (lr 0.2, momentum 0.9, batches of 8 in order).

  nbits    com.microsoft: GatherBlockQuantized, MatMulNBits with 4 bits and zero points, with float zero points and
           g_idx, and with 8 bits and a bias
  frozen   DequantizeLinear: int4 in blocks, int8 through a Transpose with one scale per output, uint8 in a Gemm; train
           with --freeze 'w*'
  tied     a table of 4 bits that MatMulNBits and, reshaped, GatherBlockQuantized read
  half     float16: a table that a Gather and, transposed, a MatMul read, and a Gemm; train with --freeze 'w*'
"""
import pathlib
import sys

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

STEPS, BATCH, RATE, MOMENTUM, SAMPLES, CLASSES = 6, 8, 0.2, 0.9, 24, 5
rng = np.random.default_rng(3)


def packed(q):
    """Packs 4-bit integers along the last axis, two per byte."""
    q = q & 15
    if q.shape[-1] % 2:
        q = np.concatenate([q, np.zeros(q.shape[:-1] + (1,), q.dtype)], -1)
    return (q[..., ::2] | q[..., 1::2] << 4).astype(np.uint8)


def raw(name, kind, dims, data):
    return helper.make_tensor(name, kind, dims, np.ascontiguousarray(data).tobytes(), raw=True)


def floats(name, a):
    return numpy_helper.from_array(np.asarray(a, np.float32), name)


def tensor(a):
    return torch.tensor(np.asarray(a, np.float64))


def write(folder, nodes, weights, columns, forward, trained, opset=22, types=None, outputs=TensorProto.FLOAT):
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64 if a.dtype == np.int64 else (types or TensorProto.FLOAT),
                                            ["batch"] + list(a.shape[1:])) for n, a in columns.items()]
    graph = helper.make_graph(nodes, folder.name, inputs, [helper.make_tensor_value_info("logits", outputs, ["batch", CLASSES])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 10
    (folder / "data").mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    labels = rng.integers(0, CLASSES, SAMPLES)
    for name, a in {**columns, "labels": labels}.items():
        np.save(folder / "data" / (name + ".npy"), a)
    check(folder / "model.onnx", columns, forward, types)
    parameters = [p.requires_grad_() for p in trained]
    optimizer = torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM)
    losses = []
    for step in range(STEPS):
        rows = [(step * BATCH + i) % SAMPLES for i in range(BATCH)]
        loss = F.cross_entropy(forward({n: torch.tensor(a[rows]) for n, a in columns.items()}), torch.tensor(labels[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    (folder / "losses.txt").write_text("".join("%.9g\n" % v for v in losses))


def check(path, columns, forward, types):
    try:
        import onnxruntime
    except ImportError:
        return
    onnxruntime.set_default_logger_severity(4)
    try:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001
        print(path, "is not checked:", str(error).splitlines()[0][-150:])
        return
    feeds = {n: a.astype(np.float16) if types == TensorProto.FLOAT16 and a.dtype != np.int64 else a for n, a in columns.items()}
    got = session.run(["logits"], feeds)[0]
    want = forward({n: torch.tensor(a) for n, a in columns.items()}).detach().numpy()
    off = np.abs(got - want).max()
    assert off < (2e-2 if types == TensorProto.FLOAT16 else 1e-4), (path, off)
    print(path, "differs from ONNX Runtime by", off)


def nbits(folder):
    vocab, width, hidden, block = 40, 72, 33, 32
    blocks = -(-width // block)
    table = rng.integers(0, 16, (vocab, width))
    table_scales = rng.uniform(0.05, 0.15, (vocab, blocks)).astype(np.float32)
    table_zeros = rng.integers(4, 12, (vocab, blocks))
    spread = np.repeat(np.arange(blocks), block)[:width]
    embedding = tensor((table - table_zeros[:, spread]) * table_scales.astype(np.float64)[:, spread])

    q = rng.integers(0, 16, (hidden, blocks * block))
    q_scales = rng.uniform(0.02, 0.1, (hidden, blocks)).astype(np.float32)
    q_zeros = rng.integers(5, 11, (hidden, blocks))
    w1 = tensor((q[:, :width] - q_zeros[:, spread]) * q_scales.astype(np.float64)[:, spread])

    middle, inner = 24, -(-hidden // 16)
    f = rng.integers(0, 16, (middle, inner * 16))
    f_scales = rng.uniform(0.02, 0.1, (middle, inner)).astype(np.float32)
    f_zeros = rng.uniform(5, 11, (middle, inner)).astype(np.float32)
    groups = rng.integers(0, inner, hidden)
    w2 = tensor((f[:, :hidden] - f_zeros[:, groups].astype(np.float64)) * f_scales[:, groups].astype(np.float64))

    e = rng.integers(0, 256, (CLASSES, 2, 16))
    e_scales = rng.uniform(0.001, 0.004, (CLASSES, 2)).astype(np.float32)
    e_zeros = rng.integers(110, 140, (CLASSES, 2))
    w3 = tensor(((e - e_zeros[..., None]) * e_scales.astype(np.float64)[..., None]).reshape(CLASSES, 32)[:, :middle])
    first, second = rng.normal(size=hidden) * 0.1, rng.normal(size=CLASSES) * 0.1
    nodes = [
        helper.make_node("GatherBlockQuantized", ["table_Q4", "ids", "table_scales", "table_zp"], ["rows"], "table",
                         domain="com.microsoft", block_size=block, bits=4, gather_axis=0, quantize_axis=1),
        helper.make_node("ReduceMean", ["rows", "axes"], ["mean"], "mean", keepdims=0),
        helper.make_node("MatMulNBits", ["mean", "up_Q4", "up_scales", "up_zp"], ["up"], "up", domain="com.microsoft", K=width, N=hidden,
                         bits=4, block_size=block),
        helper.make_node("Add", ["up", "first"], ["sum"], "add"), helper.make_node("Tanh", ["sum"], ["act"], "tanh"),
        helper.make_node("MatMulNBits", ["act", "turn_Q4", "turn_scales", "turn_zp", "turn_g_idx"], ["turned"], "turn",
                         domain="com.microsoft", K=hidden, N=middle, bits=4, block_size=16),
        helper.make_node("MatMulNBits", ["turned", "down_Q8", "down_scales", "down_zp", "", "second"], ["logits"], "down",
                         domain="com.microsoft", K=middle, N=CLASSES, bits=8, block_size=16)]
    weights = [raw("table_Q4", TensorProto.UINT8, (vocab, width // 2), packed(table)), floats("table_scales", table_scales),
               raw("table_zp", TensorProto.UINT8, (vocab, -(-blocks // 2)), packed(table_zeros)),
               raw("axes", TensorProto.INT64, (1,), np.array([1])),
               raw("up_Q4", TensorProto.UINT8, (hidden, blocks, block // 2), packed(q)), floats("up_scales", q_scales),
               raw("up_zp", TensorProto.UINT8, (hidden, -(-blocks // 2)), packed(q_zeros)),
               raw("turn_Q4", TensorProto.UINT8, (middle, inner, 8), packed(f)), floats("turn_scales", f_scales),
               floats("turn_zp", f_zeros), raw("turn_g_idx", TensorProto.INT32, (hidden,), groups.astype(np.int32)),
               raw("down_Q8", TensorProto.UINT8, (CLASSES, 2, 16), e.astype(np.uint8)), floats("down_scales", e_scales),
               raw("down_zp", TensorProto.UINT8, (CLASSES, 2), e_zeros.astype(np.uint8)),
               floats("first", first), floats("second", second)]
    b1, b2 = tensor(np.float32(first)), tensor(np.float32(second))
    write(folder, nodes, weights, {"ids": rng.integers(0, vocab, (SAMPLES, 6))},
          lambda c: torch.tanh(embedding[c["ids"]].mean(1) @ w1.T + b1) @ w2.T @ w3.T + b2, [b1, b2])


def frozen(folder):
    width, hidden, block = 160, 192, 32
    x = rng.normal(size=(SAMPLES, width)).astype(np.float32)
    q = rng.integers(-8, 8, (width, hidden))
    s1 = rng.uniform(0.01, 0.03, (width // block, hidden)).astype(np.float32)
    w1 = tensor(q * np.repeat(s1.astype(np.float64), block, 0))
    e = rng.integers(-128, 128, (64, hidden))
    s2 = rng.uniform(0.0005, 0.002, 64).astype(np.float32)
    w2 = tensor(e * s2.astype(np.float64)[:, None])
    u = rng.integers(0, 256, (CLASSES, 64))
    w3 = tensor((u - 120) * float(np.float32(0.003)))
    first, second = rng.normal(size=hidden) * 0.1, rng.normal(size=CLASSES) * 0.1
    nodes = [helper.make_node("DequantizeLinear", ["w1", "s1"], ["d1"], "dequantize1", axis=0, block_size=block),
             helper.make_node("MatMul", ["x", "d1"], ["p1"], "multiply1"), helper.make_node("Add", ["p1", "first"], ["a1"], "add"),
             helper.make_node("Tanh", ["a1"], ["t1"], "tanh"),
             helper.make_node("DequantizeLinear", ["w2", "s2", "z2"], ["d2"], "dequantize2", axis=0),
             helper.make_node("Transpose", ["d2"], ["v2"], "turn", perm=[1, 0]), helper.make_node("MatMul", ["t1", "v2"], ["p2"], "multiply2"),
             helper.make_node("DequantizeLinear", ["w3", "s3", "z3"], ["d3"], "dequantize3"),
             helper.make_node("Gemm", ["p2", "d3", "second"], ["logits"], "classify", transB=1, alpha=0.5, beta=2.0)]
    weights = [raw("w1", TensorProto.INT4, (width, hidden), packed(q.reshape(-1))), floats("s1", s1),
               raw("w2", TensorProto.INT8, (64, hidden), e.astype(np.int8)), floats("s2", s2),
               raw("z2", TensorProto.INT8, (64,), np.zeros(64, np.int8)), raw("w3", TensorProto.UINT8, (CLASSES, 64), u.astype(np.uint8)),
               floats("s3", np.float32(0.003)), raw("z3", TensorProto.UINT8, (), np.uint8(120)), floats("first", first),
               floats("second", second)]
    b1, b2 = tensor(np.float32(first)), tensor(np.float32(second))
    write(folder, nodes, weights, {"x": x}, lambda c: 0.5 * (torch.tanh(c["x"].double() @ w1 + b1) @ w2.T @ w3.T) + 2 * b2, [b1, b2])


def half(folder):
    vocab, width = 96, 48
    table = rng.normal(size=(vocab, width)).astype(np.float16)
    last = (rng.normal(size=(CLASSES, vocab)) * 0.1).astype(np.float16)
    bias = (rng.normal(size=vocab) * 0.1).astype(np.float16)
    nodes = [helper.make_node("Gather", ["w_table", "ids"], ["rows"], "rows"),
             helper.make_node("ReduceMean", ["rows", "axes"], ["mean"], "mean", keepdims=0),
             helper.make_node("Transpose", ["w_table"], ["turned"], "turn", perm=[1, 0]),
             helper.make_node("MatMul", ["mean", "turned"], ["scores"], "tied"), helper.make_node("Add", ["scores", "bias"], ["sum"], "add"),
             helper.make_node("Tanh", ["sum"], ["act"], "tanh"), helper.make_node("Gemm", ["act", "w_last"], ["logits"], "classify", transB=1)]
    weights = [numpy_helper.from_array(table, "w_table"), raw("axes", TensorProto.INT64, (1,), np.array([1])),
               numpy_helper.from_array(bias, "bias"), numpy_helper.from_array(last, "w_last")]
    e, w, b = tensor(table), tensor(last), tensor(bias)
    write(folder, nodes, weights, {"ids": rng.integers(0, vocab, (SAMPLES, 4))},
          lambda c: torch.tanh(e[c["ids"]].mean(1) @ e.T + b) @ w.T, [b], types=TensorProto.FLOAT16, outputs=TensorProto.FLOAT16)


def tied(folder):
    vocab, width = 40, 64
    q = rng.integers(0, 16, (vocab, 2, 32))
    scales = rng.uniform(0.02, 0.06, (vocab, 2)).astype(np.float32)
    w = tensor(((q - 8) * scales.astype(np.float64)[..., None]).reshape(vocab, width))
    bias, last = np.zeros(width), rng.normal(size=(vocab, CLASSES)) * 0.3
    nodes = [helper.make_node("Reshape", ["head_Q4", "shape"], ["table"], "reshape"),
             helper.make_node("GatherBlockQuantized", ["table", "ids", "head_scales"], ["rows"], "table", domain="com.microsoft", bits=4,
                              block_size=32, gather_axis=0, quantize_axis=1),
             helper.make_node("ReduceMean", ["rows", "axes"], ["mean"], "mean", keepdims=0), helper.make_node("Add", ["mean", "bias"], ["sum"], "add"),
             helper.make_node("MatMulNBits", ["sum", "head_Q4", "head_scales"], ["scores"], "head", domain="com.microsoft", K=width, N=vocab,
                              bits=4, block_size=32), helper.make_node("MatMul", ["scores", "last"], ["logits"], "classify")]
    weights = [raw("head_Q4", TensorProto.UINT8, (vocab, 2, 16), packed(q)), floats("head_scales", scales),
               raw("shape", TensorProto.INT64, (2,), np.array([vocab, width // 2])), raw("axes", TensorProto.INT64, (1,), np.array([1])),
               floats("bias", bias), floats("last", last)]
    b, l = tensor(bias), tensor(np.float32(last))
    write(folder, nodes, weights, {"ids": rng.integers(0, vocab, (SAMPLES, 6))}, lambda c: (w[c["ids"]].mean(1) + b) @ w.T @ l, [b, l])


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "fixtures/few_bits")
    for make in (nbits, frozen, half, tied):
        make(root / make.__name__)


main()
