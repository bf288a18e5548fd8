#!/usr/bin/env python3
"""Checks the output of `fsdp-run make-training --form graph` with onnx. The checker (full_check) accepts it. The
reference evaluator's loss and gradients equal a training run's.

    gradient_graphs.py FSDP_RUN MODEL DATA_FOLDER [--batch N] [option ...]      needs onnx and numpy

The run's gradients are the differences after one update of plain SGD with rate 1. Prints the largest difference over
the largest gradient; exit status 1 if it is above 1e-5.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

LIMIT = 1e-5


def weights(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: {done.stderr}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fsdp_run")
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--batch", type=int, default=4)
    known, more = parser.parse_known_args()
    common = [known.model, "--data", known.data, "--batch-size", str(known.batch), "--no-shuffle", *more]
    with tempfile.TemporaryDirectory() as folder:
        graph, trained = folder + "/graph.onnx", folder + "/trained.onnx"
        run(known.fsdp_run, "make-training", *common, "--form", "graph", "-o", graph)
        run(known.fsdp_run, *common, "--optimizer", "sgd", "--lr", "1", "--steps", "1", "--eval-data", "none", "--output",
            trained)
        written = onnx.load(graph)
        onnx.checker.check_model(written, full_check=True)
        columns = {i.name: np.load(os.path.join(known.data, i.name + ".npy"))[:known.batch] for i in written.graph.input}
        types = {i.name: onnx.helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in written.graph.input}
        columns = {k: v.astype(types[k]) for k, v in columns.items()}
        names = [o.name for o in written.graph.output]
        outputs = dict(zip(names, ReferenceEvaluator(written).run(None, columns)))
        before, after = weights(known.model), weights(trained)
        largest = difference = 0.0
        for name in names[1:]:
            parameter = name[:-len("_grad")]
            ours = before[parameter].astype(np.float64) - after[parameter]
            largest = max(largest, np.abs(ours).max())
            worst = np.abs(ours - outputs[name]).max()
            if worst > difference:
                difference, where = worst, parameter
    functions = sorted({f.name.split("_")[0] for f in written.functions})
    print(f"{known.model}: loss {float(np.ravel(outputs[names[0]])[0]):.7f}, {len(names) - 1} gradients up to {largest:.3g}, "
          f"largest difference {difference:.3g} ({where}); functions {', '.join(functions)}")
    sys.exit(0 if difference <= LIMIT * max(1.0, largest) else 1)


if __name__ == "__main__":
    main()
