#!/usr/bin/env python3
"""Trains adapters on a Llama-shaped decoder with random 4-bit weights, and reports the planned memory and the step
time.

    few_bits_decoder.py --fsdp-run build/release/fsdp-run [--shape 1.1b|7b] [--ranks 2] [--tokens 256] [--steps 3]
                        [--folder DIR] [--keep] [-- more options of fsdp-run]

Writes DIR/SHAPE/model.onnx with model.data and token columns. The model has the operators of ONNX Runtime's model
builder: MatMulNBits in blocks of 32, GatherBlockQuantized, GroupQueryAttention. Runs `fsdp-run --lora` on it, and
prints the planned and the measured peak of all ranks and the median step.  Needs numpy and onnx; 0.8 GB of disk for
1.1b, 4.3 GB for 7b.  Each rank takes its share of the tokens as rows of 128.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper

SHAPES = {"tiny": (2, 256, 4, 2, 512, 1000), "1.1b": (22, 2048, 32, 4, 5632, 32000), "7b": (32, 4096, 32, 32, 11008, 32000)}
BLOCK, ROW = 32, 128


class Writer:
    """Builds a model, and writes its initializers to one data file meanwhile."""

    def __init__(self, folder):
        self.data, self.at = open(folder / "model.data", "wb"), 0
        self.nodes, self.weights = [], []
        self.random = np.random.default_rng(0)

    def tensor(self, name, kind, shape, a):
        gap = -self.at % 4096
        self.data.write(bytes(gap))
        raw = np.ascontiguousarray(a).tobytes()
        self.data.write(raw)
        t = TensorProto(name=name, data_type=kind, dims=shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "model.data"), ("offset", self.at + gap), ("length", len(raw))):
            t.external_data.add(key=key, value=str(value))
        self.at += gap + len(raw)
        self.weights.append(t)
        return name

    def floats(self, name, a):
        return self.tensor(name, TensorProto.FLOAT, a.shape, a.astype(np.float32))

    def quantized(self, name, rows, columns):
        q = self.random.integers(0, 256, rows * columns // 2, np.uint8)
        scales = self.random.uniform(0.5, 1.5, rows * columns // BLOCK) / (4.6 * columns**0.5)
        return (q, scales)

    def product(self, x, name, inner, outer):
        q, scales = self.quantized(name, outer, inner)
        w = self.tensor(name + ".MatMul.weight_Q4", TensorProto.UINT8, (outer, inner // BLOCK, BLOCK // 2), q)
        s = self.floats(name + ".MatMul.weight_scales", scales.reshape(outer, inner // BLOCK))
        return self.node("MatMulNBits", [x, w, s], "/" + name.replace(".", "/") + "/MatMul", K=inner, N=outer, bits=4, block_size=BLOCK)

    def node(self, op, inputs, name, outputs=1, domain="com.microsoft", **attributes):
        made = [name + "/output_%d" % i for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, made, name, domain=domain, **attributes))
        return made[0] if outputs == 1 else made


def write(folder, shape):
    layers, width, heads, kv_heads, ffn, vocab = SHAPES[shape]
    size = width // heads
    w = Writer(folder)
    plain = {"domain": ""}
    one = w.tensor("one", TensorProto.INT64, (1,), np.array([1]))
    kept = w.node("ReduceSum", ["attention_mask", one], "/mask/ReduceSum", keepdims=0, **plain)
    last = w.node("Cast", [w.node("Sub", [kept, one], "/mask/Sub", **plain)], "/mask/last", to=TensorProto.INT32, **plain)
    axis = w.tensor("axis", TensorProto.INT64, (), np.array(1))
    length = w.node("Gather", [w.node("Shape", ["attention_mask"], "/mask/Shape", **plain), axis], "/mask/Gather", **plain)
    total = w.node("Cast", [length], "/mask/total", to=TensorProto.INT32, **plain)
    angles = np.arange(ROW)[:, None] / 10000 ** (np.arange(size // 2) * 2 / size)
    cos, sin = w.floats("cos_cache", np.cos(angles)), w.floats("sin_cache", np.sin(angles))
    q, scales = w.quantized("embed", vocab, width)
    table = w.tensor("model.embed_tokens.weight_Q4", TensorProto.UINT8, (vocab, width // 2), q)
    table_scales = w.floats("model.embed_tokens.weight_scales", scales.reshape(vocab, -1) * width**0.5)
    skip = w.node("GatherBlockQuantized", [table, "input_ids", table_scales], "/model/embed_tokens", bits=4, block_size=BLOCK, gather_axis=0,
                  quantize_axis=1)
    gain = w.floats("model.layers.0.input_layernorm.weight", np.ones(width))
    x = w.node("SimplifiedLayerNormalization", [skip, gain], "/model/layers.0/input_layernorm", axis=-1, epsilon=1e-5, **plain)
    for i in range(layers):
        name = "model.layers.%d" % i
        qkv = w.product(x, name + ".attn.qkv_proj", width, width + 2 * kv_heads * size)
        attention = w.node("GroupQueryAttention", [qkv, "", "", "past.%d.key" % i, "past.%d.value" % i, last, total, cos, sin],
                           "/%s/attn/GroupQueryAttention" % name, outputs=3, num_heads=heads, kv_num_heads=kv_heads, do_rotary=1)[0]
        out = w.product(attention, name + ".attn.o_proj", width, width)
        gain = w.floats(name + ".post_attention_layernorm.weight", np.ones(width))
        x, _, _, skip = w.node("SkipSimplifiedLayerNormalization", [skip, out, gain], "/%s/post_attention_layernorm" % name, outputs=4, epsilon=1e-5)
        gate = w.product(x, name + ".mlp.gate_proj", width, ffn)
        up = w.product(x, name + ".mlp.up_proj", width, ffn)
        act = w.node("Mul", [gate, w.node("Sigmoid", [gate], "/%s/mlp/act/Sigmoid" % name, **plain)], "/%s/mlp/act/Mul" % name, **plain)
        down = w.product(w.node("Mul", [act, up], "/%s/mlp/Mul" % name, **plain), name + ".mlp.down_proj", ffn, width)
        gain = w.floats("model.layers.%d.input_layernorm.weight" % (i + 1), np.ones(width))
        x, _, _, skip = w.node("SkipSimplifiedLayerNormalization", [skip, down, gain], "/model/layers.%d/input_layernorm" % (i + 1), outputs=4,
                               epsilon=1e-5)
    logits = w.product(x, "lm_head", width, vocab)
    w.nodes.append(helper.make_node("Identity", [logits], ["logits"], "/logits"))
    w.data.close()
    info = helper.make_tensor_value_info
    inputs = [info(n, TensorProto.INT64, ["batch", "sequence"]) for n in ("input_ids", "attention_mask")]
    inputs += [info("past.%d.%s" % (i, kind), TensorProto.FLOAT, ["batch", kv_heads, "past", size]) for i in range(layers) for kind in ("key", "value")]
    graph = helper.make_graph(w.nodes, "decoder", inputs, [info("logits", TensorProto.FLOAT, ["batch", "sequence", vocab])], w.weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22), helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 10
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "data").mkdir(exist_ok=True)
    ids = w.random.integers(0, vocab, (64, ROW + 1))
    for column, a in (("input_ids", ids[:, :-1]), ("attention_mask", np.ones((64, ROW), np.int64)), ("labels", ids[:, 1:])):
        np.save(folder / "data" / (column + ".npy"), np.ascontiguousarray(a))


def run(a, folder):
    rows = a.tokens // ROW // a.ranks
    metrics = folder / "metrics.jsonl"
    command = [a.fsdp_run, folder / "model.onnx", "--data", folder / "data", "--loss", "cross_entropy", "--prediction", "logits",
               "--labels", "labels", "--lora", "all", "--lora-rank", "8", "--adapter", folder / "adapter.safetensors", "--batch-size", rows,
               "--steps", a.steps, "--epochs", 1000, "--nproc-per-node", a.ranks, "--metrics", metrics, "--log-interval", 1,
               "--run-dir", "none",
               "--activation-checkpointing", "unit", *a.more]
    subprocess.run([str(word) for word in command], check=True)
    end = json.loads(metrics.read_text().splitlines()[-1])
    gib = [sum(end[key]) / 2**30 for key in ("planned_peak_bytes", "peak_bytes")]
    print("%s, %d ranks, %d tokens a step: planned %.3f GiB, measured %.3f GiB over all ranks, %.2f s a step" %
          (a.shape, a.ranks, a.tokens, *gib, end["median_step_ms"] / 1000))


def main():
    words, more = sys.argv[1:], []
    if "--" in words:
        words, more = words[:words.index("--")], words[words.index("--") + 1:]
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--fsdp-run", default="build/release/fsdp-run")
    p.add_argument("--shape", default="1.1b", choices=SHAPES)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--tokens", type=int, default=256)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--folder", default=tempfile.gettempdir() + "/few_bits_decoder")
    p.add_argument("--keep", action="store_true", help="the model stays for the next run")
    a = p.parse_args(words)
    a.more = more
    folder = pathlib.Path(a.folder) / a.shape
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "data" / "labels.npy").exists():
        write(folder, a.shape)
    try:
        run(a, folder)
    finally:
        if not a.keep:
            shutil.rmtree(folder)


main()
