#!/usr/bin/env python3
"""Tests exported files in ONNX Runtime: trains a little, saves, exports with --inference, and compares the outputs with
our own forward pass of the file. onnx.checker checks every file. Needs onnx, onnxruntime and numpy.

    compare_exported.py BUILD_FOLDER MODEL.onnx [TRAINING OPTIONS...]

Fails if the largest difference is above 1e-5 of the largest magnitude, or if the exported file differs from the
input in more than initializers.
"""
import re
import subprocess
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime

DTYPES = {"float32": np.float32, "int64": np.int64, "int32": np.int32, "bool": np.bool_}


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stdout[-500:]}{done.stderr}")
    return done.stdout


def masked(path):
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16,
                                onnx.TensorProto.BFLOAT16):
            for field in ("raw_data", "float_data", "double_data", "int32_data"):
                tensor.ClearField(field)
    return model.SerializeToString(deterministic=True)


def main():
    build, model, options = sys.argv[1], sys.argv[2], sys.argv[3:]
    with tempfile.TemporaryDirectory() as folder:
        checkpoints, exported, inference = f"{folder}/ck", f"{folder}/e.onnx", f"{folder}/i.onnx"
        run(f"{build}/fsdp-run", model, "--checkpoint-dir", checkpoints, "--run-dir", "none", *options)
        print(run(f"{build}/fsdp-run", "export", checkpoints, "-o", exported, "--verify").splitlines()[-1])
        run(f"{build}/fsdp-run", "export", checkpoints, "-o", inference, "--inference", "--verify")
        for path in (exported, inference):
            onnx.checker.check_model(path, full_check=True)
        if masked(exported) != masked(model):
            sys.exit(f"{exported} differs from {model} in more than weights")
        lines = run(f"{build}/tests/forward_sample", inference, folder).splitlines()
        feeds, ours = {}, {}
        for line in lines:
            found = re.match(r"input (\S+) (\w+)\s?(\[[^\]]*\]) (\S+)$", line)
            if found:
                shape = [int(n) for n in re.findall(r"\d+", found[3])]
                feeds[found[1]] = np.fromfile(found[4], DTYPES[found[2]]).reshape(shape)
            else:
                _, name, _, _, path = line.split(" ")
                ours[name] = np.fromfile(path, np.float32)
        session = onnxruntime.InferenceSession(inference, providers=["CPUExecutionProvider"])
        theirs = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds)))
        for name, values in ours.items():
            other = theirs[name].reshape(-1)
            relative = np.abs(values - other).max() / np.abs(other).max()
            print(f"{model}: {name}: largest difference to ONNX Runtime {relative:.2e} of the largest magnitude")
            if relative > 1e-5:
                sys.exit("too large")


main()
