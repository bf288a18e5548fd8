#!/usr/bin/env python3
"""Checks a run's files with ONNX Runtime. The file of --output-form inference has the loss of the run's last
evaluation, also with dropout, batch statistics and normalized weights. `fsdp-run predict` writes ONNX Runtime's
outputs, for any place of the samples' axis.

    deployed_files.py FSDP_RUN      exit status 77, which CTest shows as skipped, without onnxruntime or onnx

OFSDP_ORT_PYTHON names a Python that has them.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

python = os.environ.get("OFSDP_ORT_PYTHON")
if python and "OFSDP_ORT_ASKED" not in os.environ:
    os.execve(python, [python, *sys.argv], {**os.environ, "OFSDP_ORT_ASKED": "1"})
try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    print("procs.deployed_files is skipped:", error)
    sys.exit(77)

RANDOM = np.random.default_rng(3)
ROWS = 22


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def model_of(nodes, inputs, outputs, weights, path):
    """Saves a model. `inputs` and `outputs`: name -> axes; a text is a symbol."""
    declare = lambda table: [helper.make_tensor_value_info(n, TensorProto.FLOAT, axes) for n, axes in table.items()]
    graph = helper.make_graph([helper.make_node(*n[:3], name=n[2][0], **(n[3] if len(n) > 3 else {})) for n in nodes], "g",
                              declare(inputs), declare(outputs), [numpy_helper.from_array(v, n) for n, v in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def run(*words):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout[-500:]}{done.stderr}")
    return done.stdout


def outputs_of(path, feeds, names=None):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(names, feeds)


def close(found, expected, limit=1e-5):
    assert found.shape == expected.shape, (found.shape, expected.shape)
    worst = np.abs(found - expected).max() / np.abs(expected).max()
    assert worst < limit, worst


def with_training_switches(path):
    """Saves a model with standardized convolution weights, batch normalization and dropout."""
    nodes = [("Reshape", ["kernel", "one_row"], ["row"]),
             ("BatchNormalization", ["row", "ones", "zeros", "zeros", "ones"], ["standard", "m0", "v0"], {"training_mode": 1}),
             ("Reshape", ["standard", "kernel_shape"], ["weights"]),
             ("Conv", ["x", "weights"], ["filtered"], {"pads": [1, 1, 1, 1]}),
             ("BatchNormalization", ["filtered", "scale", "shift", "mean", "variance"], ["y", "m1", "v1"], {"training_mode": 1}),
             ("Relu", ["y"], ["positive"]),
             ("Dropout", ["positive", "ratio", "training"], ["kept"]),
             ("ReduceMean", ["kept"], ["pooled"], {"axes": [2, 3], "keepdims": 0}),
             ("Gemm", ["pooled", "head", "bias"], ["logits"])]
    weights = {"kernel": normal(6, 2, 3, 3), "one_row": np.array([1, 6, 18]), "kernel_shape": np.array([6, 2, 3, 3]),
               "ones": np.ones(6, np.float32), "zeros": np.zeros(6, np.float32), "scale": 1 + 0.1 * normal(6),
               "shift": 0.1 * normal(6), "mean": 0.1 * normal(6), "variance": 1 + 0.1 * np.abs(normal(6)),
               "ratio": np.float32(0.3), "training": np.bool_(True), "head": normal(6, 3), "bias": np.zeros(3, np.float32)}
    weights = {name: np.asarray(value) for name, value in weights.items()}
    model_of(nodes, {"x": ["batch", 2, 7, 7]}, {"logits": ["batch", 3]}, weights, path)


def initializers(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def check_forms(program, folder):
    with_training_switches(folder / "model.onnx")
    (folder / "data").mkdir()
    x, labels = normal(ROWS, 2, 7, 7), RANDOM.integers(0, 3, ROWS)
    np.save(folder / "data/x.npy", x)
    np.save(folder / "data/labels.npy", labels)
    # One rank: several would normalize by separate batches, and evaluate with separate statistics.
    train = [program, folder / "model.onnx", "--loss", "cross_entropy", "--eval-data", folder / "data", "--epochs", "3", "--batch-size",
             "5", "--lr", "0.02", "--metrics", folder / "m.jsonl", "--output"]
    same, inference = folder / "same.onnx", folder / "inference.onnx"
    text = run(*train, same)
    assert "same.onnx keeps the training form: 1 BatchNormalization" in text, text
    text = run(*train, inference, "--output-form", "inference")
    assert "inference.onnx answers as the evaluation did: largest difference" in text, text
    before, ours, theirs = initializers(folder / "model.onnx"), initializers(same), initializers(inference)
    assert all(np.array_equal(ours[n], theirs[n]) for n in theirs) and not np.array_equal(ours["kernel"], before["kernel"])
    loss = [json.loads(line) for line in (folder / "m.jsonl").read_text().splitlines()]
    loss = [row["loss"] for row in loss if row["kind"] == "eval"][-1]
    logits = outputs_of(inference, {"x": x})[0]
    scores = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    found = -scores[np.arange(ROWS), labels].mean()
    assert abs(found - loss) < 1e-5 * loss, (found, loss)
    for path in (same, inference):  # predict switches training off itself
        run(program, "predict", path, "--data", folder / "data", "-o", folder / "p.npy", "--batch-size", "4")
        close(np.load(folder / "p.npy"), logits)


def check_places(program, folder):
    """Checks samples on the second axis, samples merged with time, and a file with a fixed batch."""
    (folder / "rows").mkdir()
    x = normal(ROWS, 4, 5)
    np.save(folder / "rows/x.npy", x)
    weights = {"w": normal(5, 3), "flat": np.array([-1, 3])}
    nodes = [("MatMul", ["x", "w"], ["products"]), ("Softmax", ["products"], ["shares"]),
             ("Reshape", ["shares", "flat"], ["merged"]), ("ReduceSum", ["x"], ["all"], {"keepdims": 0})]
    batch, outputs = folder / "places.onnx", {"shares": [4, "batch", 3], "merged": ["k", 3], "all": []}
    model_of(nodes, {"x": [4, "batch", 5]}, outputs, weights, batch)
    text = run(program, "predict", batch, "--data", folder / "rows", "-o", folder / "p.npz", "--batch-size", "6")
    assert "'all' is left out" in text, text
    shares, merged = outputs_of(batch, {"x": x.swapaxes(0, 1)}, ["shares", "merged"])
    found = np.load(folder / "p.npz")
    assert sorted(found.files) == ["merged", "shares"], found.files
    close(found["shares"], shares.swapaxes(0, 1))
    close(found["merged"], merged.reshape(4, ROWS, 3).swapaxes(0, 1))
    fixed = folder / "fixed.onnx"
    model_of([*nodes[:2], ("ArgMax", ["shares"], ["class"], {"axis": 2, "keepdims": 0})], {"x": [8, 4, 5]}, {"shares": [8, 4, 3]},
             {"w": weights["w"]}, fixed)
    model = onnx.load(fixed)
    model.graph.output.append(helper.make_tensor_value_info("class", TensorProto.INT64, [8, 4]))
    onnx.save(model, fixed)
    run(program, "predict", fixed, "--data", folder / "rows", "-o", folder / "q.npz", "--prediction", "shares", "--prediction", "class")
    found = np.load(folder / "q.npz")
    close(found["shares"], shares.swapaxes(0, 1))
    assert found["class"].dtype == np.int64 and np.array_equal(found["class"], shares.swapaxes(0, 1).argmax(2))


def main():
    with tempfile.TemporaryDirectory() as name:
        check_forms(sys.argv[1], pathlib.Path(name))
        check_places(sys.argv[1], pathlib.Path(name))
    print("onnxruntime", onnxruntime.__version__, "answers as the evaluation did, and as predict does")


main()
