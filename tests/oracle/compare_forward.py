#!/usr/bin/env python3
"""Compares the forward pass of models in inference mode: this program against ONNX Runtime, on the same random inputs.

    compare_forward.py [MODEL.onnx | FOLDER...] [--forward build/release/tests/forward] [--limit 1e-5]

A folder is a case: all .onnx files in it, with data/NAME.npy for the inputs. The default is tests/oracle/cases. Floats
are drawn from normal(0,1). Integers are random rows of the data, so they are valid indices. Prints one line per model:
the worst output's largest difference over its largest magnitude. Exit status 1 if a model is over the limit or does not
run here. If ONNX Runtime itself refuses a model, it is named and skipped. Needs numpy, onnx, onnxruntime.
"""
import argparse
import glob
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime

HERE = os.path.dirname(os.path.abspath(__file__))
BATCH = 4


def inference_mode(model):
    """Turns training switches off, because ONNX Runtime obeys the file's switches."""
    for node in model.graph.node:
        if node.op_type == "Dropout":
            del node.input[1:]
        if node.op_type == "BatchNormalization":
            del node.output[1:]
            for attribute in node.attribute:
                if attribute.name == "training_mode":
                    attribute.i = 0
    return model


def random_inputs(model, data, random):
    initializers = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        if value.name in initializers:
            continue
        column = np.load(os.path.join(data, value.name + ".npy"))
        rows = value.type.tensor_type.shape.dim[0].dim_value or BATCH
        column = column[random.integers(len(column), size=rows)]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if np.issubdtype(dtype, np.floating):
            column = random.standard_normal(column.shape)
        yield value.name, column.astype(dtype)


def ours(forward, path, inputs):
    """Returns the outputs, or a message."""
    with tempfile.TemporaryDirectory() as folder:
        for name, column in inputs.items():
            np.save(os.path.join(folder, name + ".npy"), column)
        run = subprocess.run([forward, path, folder], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            return run.stderr.strip() or "exit %d" % run.returncode
        return [np.load(os.path.join(folder, "output_%d.npy" % i)) for i in range(len(os.listdir(folder)) - len(inputs))]


def theirs(model, inputs):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def ratio(found, wanted):
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return float("inf")
    if found.size == 0:
        return 0.0
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    difference = np.abs(found - wanted).max()
    return difference / max(np.abs(wanted).max(), 1e-30)


def compare(forward, path, data):
    """Returns (worst ratio or None, text)."""
    model = inference_mode(onnx.load(path))
    inputs = dict(random_inputs(model, data, np.random.default_rng(1)))
    try:
        wanted = theirs(model, inputs)
    except Exception as error:  # pylint: disable=broad-except
        return None, "ONNX Runtime: " + str(error).splitlines()[0][:200]
    found = ours(forward, path, inputs)
    if isinstance(found, str):
        return float("inf"), found[:300]
    if len(found) != len(wanted):
        return float("inf"), "%d outputs for %d" % (len(found), len(wanted))
    worst = max(ratio(f, w) for f, w in zip(found, wanted))
    return worst, "%.2g" % worst


def models(names):
    for name in names or sorted(glob.glob(os.path.join(HERE, "cases", "*"))):
        paths = [name] if name.endswith(".onnx") else sorted(glob.glob(os.path.join(name, "*.onnx")))
        for path in paths:
            yield path, os.path.join(os.path.dirname(path), "data")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--forward", default="build/release/tests/forward")
    parser.add_argument("--limit", type=float, default=1e-5)
    arguments = parser.parse_args()
    results = []
    for path, data in models(arguments.models):
        worst, text = compare(arguments.forward, path, data)
        mark = "    " if worst is None else "ok  " if worst <= arguments.limit else "FAIL"
        print(mark, "/".join(path.split("/")[-2:]), text, flush=True)
        if worst is not None:
            results.append(worst)
    print("%d models, worst %.2g" % (len(results), max(results, default=0)))
    sys.exit(0 if results and max(results) <= arguments.limit else 1)


main()
