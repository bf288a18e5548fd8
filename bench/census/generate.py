#!/usr/bin/env python3
"""Writes the files of the census: FOLDER/FAMILY.NAME.VARIANT.onnx, and FOLDER/FAMILY.NAME.npz with inputs for all
variants.

    generate.py FOLDER [--only PATTERN] [--seconds 90]

A variant is an exporter (dynamo, torchscript; some with another opset), or the output of a tool for the exported file:

- ONNX Runtime's offline levels, and its transformer optimizer with and without float16
- quantize_dynamic, and quantize_static (QDQ per tensor and per channel, QLinear operators)
- MatMulNBits with 4 and 8 bits
- onnxslim, onnxsim

Every architecture is exported once or twice. The tools take turns, so each tool meets every family.
FOLDER/generated.jsonl lists the written files, and the failures of tools with reasons; such a failure is not a refusal
by fsdp-run. Existing files are kept. Needs torch, onnxscript, transformers, timm, torchvision, onnxruntime, onnxslim
and onnxsim; without one of these, its variants are missing.
"""
import argparse
import copy
import json
import os
import re
import signal
import sys
import tempfile
import traceback
import warnings

import numpy as np
import onnx

warnings.filterwarnings("ignore")
LARGEST = 8 << 20


def export(path, module, inputs, dynamo, opset, names=None):
    """Exports with a dynamic first axis, or with the example's size if the exporter fails on a dynamic axis."""
    import torch
    values, names = tuple(inputs.values()), list(inputs)
    words = dict(input_names=names, output_names=["output"], opset_version=opset, dynamo=dynamo)
    for dynamic in (True, False):
        more = {}
        if dynamic and dynamo:
            batch = torch.export.Dim("batch", min=1, max=64)
            more = {"dynamic_shapes": tuple({0: batch} for _ in names)}
            if type(module).__name__ in ("FirstOutput", "Call"):
                more = {"dynamic_shapes": (more["dynamic_shapes"],)}
        elif dynamic:
            more = {"dynamic_axes": {name: {0: "batch"} for name in [*names, "output"]}}
        try:
            with torch.no_grad():
                torch.onnx.export(module, values, path, **words, **more, **({"external_data": False} if dynamo else {}))
            return "" if dynamic else "fixed batch"
        except Exception:  # noqa: BLE001: the exporter's own reason is kept below
            if not dynamic:
                raise


def session_level(source, target, level):
    import onnxruntime as ort
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = target
    options.log_severity_level = 4
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def fused(source, target, family, float16=False):
    from onnxruntime.transformers import optimizer
    kinds = {"encoder": "bert", "decoder": "gpt2", "seq2seq": "bart", "vision": "vit", "pair": "clip"}
    model = optimizer.optimize_model(source, model_type=kinds.get(family, "bert"), num_heads=4 if family != "timm" else 0,
                                     hidden_size=32 if family != "timm" else 0, opt_level=0)
    if float16:
        model.convert_float_to_float16(keep_io_types=True)
    model.save_model_to_file(target)


def float16(source, target):
    from onnxruntime.transformers.float16 import convert_float_to_float16
    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


class Rows:
    """Calibration data for quantize_static: the example's rows, once."""

    def __init__(self, source, data):
        wanted = {i.name for i in onnx.load(source).graph.input}
        self.batches = [{k: v for k, v in data.items() if k in wanted}]

    def get_next(self):
        return self.batches.pop() if self.batches else None


def static(source, target, data, form, channel):
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    with tempfile.TemporaryDirectory() as folder:
        ready = folder + "/ready.onnx"
        quant_pre_process(source, ready, skip_symbolic_shape=True)
        quantize_static(ready, target, Rows(ready, data), quant_format=getattr(QuantFormat, form), per_channel=channel,
                        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, reduce_range=form == "QOperator")


def dynamic(source, target):
    from onnxruntime.quantization import QuantType, quantize_dynamic
    quantize_dynamic(source, target, weight_type=QuantType.QInt8, reduce_range=True)   # else ONNX Runtime's AVX2 saturates


def few_bits(source, target, bits):
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    made = MatMulNBitsQuantizer(onnx.load(source), bits=bits, block_size=16, is_symmetric=bits == 8)
    made.process()
    if not any(n.op_type == "MatMulNBits" for n in made.model.model.graph.node):
        raise ValueError("no MatMul with a constant weight")
    onnx.save(made.model.model, target)


def slim(source, target):
    import onnxslim
    onnx.save(onnxslim.slim(onnx.load(source)), target)


def simplified(source, target):
    import onnxsim
    model, good = onnxsim.simplify(onnx.load(source))
    if not good:
        raise ValueError("onnxsim's own check failed")
    onnx.save(model, target)


TOOLS = {
    "ort_basic": lambda s, t, f, d: session_level(s, t, "ORT_ENABLE_BASIC"),
    "ort_extended": lambda s, t, f, d: session_level(s, t, "ORT_ENABLE_EXTENDED"),
    "fused": lambda s, t, f, d: fused(s, t, f),
    "fused_float16": lambda s, t, f, d: fused(s, t, f, True),
    "float16": lambda s, t, f, d: float16(s, t),
    "dynamic_int8": lambda s, t, f, d: dynamic(s, t),
    "qdq": lambda s, t, f, d: static(s, t, d, "QDQ", False),
    "qdq_channel": lambda s, t, f, d: static(s, t, d, "QDQ", True),
    "qoperator": lambda s, t, f, d: static(s, t, d, "QOperator", False),
    "nbits4": lambda s, t, f, d: few_bits(s, t, 4),
    "nbits8": lambda s, t, f, d: few_bits(s, t, 8),
    "onnxslim": lambda s, t, f, d: slim(s, t),
    "onnxsim": lambda s, t, f, d: simplified(s, t),
}
TURNS = {
    "text": ["fused", "ort_extended", "dynamic_int8", "fused_float16", "qdq", "ort_basic", "nbits4", "onnxslim", "qdq_channel",
             "onnxsim", "float16", "nbits8", "qoperator"],
    "other": ["ort_extended", "qdq", "onnxslim", "qdq_channel", "ort_basic", "float16", "qoperator", "onnxsim", "dynamic_int8"],
}


def plan(names):
    """Yields (architecture, exporters, tools, turn): the variants for each architecture."""
    seen = {}
    for name in names:
        family = name.split("/")[0]
        text = family in ("encoder", "decoder", "seq2seq", "pair")
        turn = seen.get(text, 0)
        turns = TURNS["text" if text else "other"]
        tools = [turns[(2 * turn + i) % len(turns)] for i in range(2 if family != "net" else 1)]
        seen[text] = turn + 1
        exporters = ["dynamo", "torchscript"]
        if family in ("net", "timm"):
            exporters = [exporters[turn % 2]]
        yield name, exporters, tools, turn


class Late(Exception):
    pass


def late(*_):
    raise Late("took too long")


def main():
    words = argparse.ArgumentParser()
    words.add_argument("folder")
    words.add_argument("--only", default="")
    words.add_argument("--seconds", type=int, default=90)
    options = words.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import torch
    from architectures import ARCHITECTURES
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, late)
    report = open(options.folder + "/generated.jsonl", "a")

    def attempt(name, make):
        path = f"{options.folder}/{name}.onnx"
        if os.path.exists(path):
            return path
        signal.alarm(options.seconds)
        try:
            note = make(path + ".part") or ""
            if os.path.getsize(path + ".part") > LARGEST:
                raise ValueError(f"file of {os.path.getsize(path + '.part')} bytes")
            os.rename(path + ".part", path)
            row = {"name": name, "made": True, "note": note}
        except BaseException as e:  # noqa: BLE001: whatever an exporter raises
            if isinstance(e, KeyboardInterrupt):
                raise
            text = str(e).strip().splitlines() or [""]
            row = {"name": name, "made": False, "note": f"{type(e).__name__}: {text[0][:200]}"}
            if os.path.exists(path + ".part"):
                os.remove(path + ".part")
        finally:
            signal.alarm(0)
        print(json.dumps(row), file=report, flush=True)
        return path if row["made"] else None

    for name, exporters, tools, turn in plan(ARCHITECTURES):
        if not re.search(options.only, name):
            continue
        short = name.replace("/", ".")
        torch.manual_seed(0)
        try:
            module, inputs = ARCHITECTURES[name]()
        except Exception as e:  # noqa: BLE001: a package that is missing or another version of it
            text = (str(e).strip().splitlines() or [""])[0][:200]
            print(json.dumps({"name": short, "made": False, "note": f"{type(e).__name__}: {text}"}), file=report, flush=True)
            continue
        with torch.no_grad():   # biases of 0 and scales of 1 hide wrong gradients, and exporters merge them
            for weight in module.parameters():
                weight.add_(torch.randn_like(weight), alpha=0.03)
        data = {k: v.numpy() for k, v in inputs.items()}
        np.savez(f"{options.folder}/{short}.npz", **data)
        exported = None
        for exporter in exporters:
            dynamo = exporter == "dynamo"
            opset = (18, 20, 23)[turn % 3] if dynamo else (17, 14, 18, 13)[turn % 4]
            made = attempt(f"{short}.{exporter}{opset}",
                           lambda path: export(path, copy.deepcopy(module), inputs, dynamo, opset))
            exported = exported or made
        if exported:
            for tool in tools:
                attempt(f"{short}.{tool}", lambda path: TOOLS[tool](exported, path, name.split("/")[0], data))


if __name__ == "__main__":
    main()
