#!/usr/bin/env python3
"""The same files through other trainers of ONNX: does a step run, and is the gradient right?

    counterparts.py FOLDER --trainer onnxsim|onnxruntime --results RESULTS.jsonl [--python PYTHON] [--files RESULTS_OF_RUN.jsonl]

onnxsim 0.8.1: `compile_training_loop` with its momentum, whose first step is SGD; it wants static shapes and a loss in the graph, so
the file's axes are fixed and a mean squared error is appended. onnxruntime-training 1.19.2: `generate_artifacts` with its MSELoss,
then `Module` and the parameters' gradients; PYTHON is an interpreter that has it. Every floating initializer is offered for training,
and each file has a process of its own, since some end it. The gradient is held to the differences that run.py takes, of
the same loss. With --files only files are tried that ONNX Runtime itself evaluates.
"""
import argparse
import glob
import json
import os
import re
import subprocess
import sys
import tempfile
import zlib

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LIMIT = 90


def trainable(model):
    return [t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) > 0]


def given(path, folder):
    """The model, its columns, the labels, and the output to compare with them."""
    data = dict(np.load(folder + "/data.npz"))
    labels = data.pop("labels")
    with open(folder + "/prediction") as file:
        return onnx.load(path), data, labels, file.read()


def with_onnxsim(path, folder):
    """Gradients by onnxsim's training loop."""
    import onnxsim
    model, data, labels, prediction = given(path, folder)
    for value in model.graph.input:
        if value.name in data:
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(
                dim=[onnx.TensorShapeProto.Dimension(dim_value=n) for n in data[value.name].shape]))
    model.graph.ClearField("value_info")
    for o in model.graph.output:
        o.type.tensor_type.ClearField("shape")
    model.graph.input.append(helper.make_tensor_value_info("census_labels", TensorProto.FLOAT, list(labels.shape)))
    model.graph.node.extend([helper.make_node("Sub", [prediction, "census_labels"], ["census_difference"]),
                             helper.make_node("Mul", ["census_difference", "census_difference"], ["census_square"]),
                             helper.make_node("ReduceMean", ["census_square"], ["census_loss"], keepdims=0)])
    model.graph.output.append(helper.make_tensor_value_info("census_loss", TensorProto.FLOAT, []))
    model, _ = onnxsim.simplify(model)
    names = trainable(model)
    loop = onnxsim.compile_training_loop(model, "census_loss", names, optimizer="sgd_momentum")
    before = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    rate = 100.0
    loss = loop({**data, "census_labels": labels}, rate)
    after = loop.parameters()
    return loss, {n: (before[n].astype(np.float64) - np.asarray(after[n], np.float64)) / rate for n in names}


def with_onnxruntime(path, folder):
    """Gradients by onnxruntime-training's on-device interface."""
    import onnxruntime.training.artifacts as artifacts
    from onnxruntime.training.api import CheckpointState, Module
    model, data, labels, prediction = given(path, folder)
    names = trainable(model)
    artifacts.generate_artifacts(model, requires_grad=names, frozen_params=[
        t.name for t in model.graph.initializer if t.name not in names], loss=artifacts.LossType.MSELoss,
        artifact_directory=folder, loss_input_names=[prediction])
    state = CheckpointState.load_checkpoint(folder + "/checkpoint")
    module = Module(folder + "/training_model.onnx", state, folder + "/eval_model.onnx", device="cpu")
    module.train()
    fed = [labels if n not in data else data[n] for n in module.input_names()]
    out = module(*fed)
    return float(np.asarray(out[0] if isinstance(out, (list, tuple)) else out)), {
        n: np.asarray(p.grad, np.float64) for n, p in state.parameters if n in names}


def child(trainer, path, folder):
    loss, gradients = {"onnxsim": with_onnxsim, "onnxruntime": with_onnxruntime}[trainer](path, folder)
    np.savez(folder + "/gradients.npz", **{f"g{i}": g for i, g in enumerate(gradients.values())})
    with open(folder + "/answer.json", "w") as file:
        json.dump({"loss": float(loss), "names": list(gradients)}, file)


def squared(labels):
    return lambda output: float(((np.asarray(output, np.float64) - labels) ** 2).mean())


def trial(trainer, python, path):
    import graphs
    from run import FLOATS, check_gradient, close, inputs_of
    random = np.random.default_rng(zlib.crc32(os.path.basename(path).encode()))
    model = onnx.load(path)
    feeds = inputs_of(path, model, random)
    prediction = next(o.name for o in model.graph.output if o.type.tensor_type.elem_type in FLOATS)
    output = graphs.values(model, [prediction], feeds)[prediction]
    labels = random.standard_normal(output.shape).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(folder + "/data.npz", labels=labels, **feeds)
        with open(folder + "/prediction", "w") as file:
            file.write(prediction)
        done = subprocess.run([python, os.path.abspath(__file__), "--child", trainer, path, folder], capture_output=True, text=True,
                              timeout=LIMIT)
        if done.returncode != 0:
            text = [line for line in done.stderr.strip().splitlines() if re.match(r"^[\w.]*(Error|Exception|Fail|Op)\w*:", line)]
            return {"verdict": "refused" if done.returncode == 1 else "crashed",
                    "message": (text[-1] if text else done.stderr.strip()[-200:] or f"exit {done.returncode}")[:300]}
        with open(folder + "/answer.json") as file:
            answer = json.load(file)
        made = np.load(folder + "/gradients.npz")
        gradients = {n: made[f"g{i}"] for i, n in enumerate(answer["names"])}
    loss = squared(labels)
    probe = graphs.Probe(model, set(gradients), feeds, prediction, loss)
    gradients = {n: g.reshape(probe.base[n].shape) for n, g in gradients.items() if n in probe.base}
    verdict, _, wrong = check_gradient(probe, gradients, {}, random)
    if not close(answer["loss"], loss(output), 1e-4):
        return {"verdict": "wrong", "message": f"loss {answer['loss']:.6g}, ONNX Runtime's {loss(output):.6g}"}
    return {"verdict": verdict, "message": "; ".join(wrong), "trained": len(gradients)}


def main():
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:5])
        return
    words = argparse.ArgumentParser()
    words.add_argument("folder")
    words.add_argument("--trainer", choices=["onnxsim", "onnxruntime"], required=True)
    words.add_argument("--results", required=True)
    words.add_argument("--python", default=sys.executable)
    words.add_argument("--files")
    words.add_argument("--every", type=int, default=1)
    options = words.parse_args()
    paths = sorted(glob.glob(options.folder + "/*.onnx"))
    if options.files:
        good = {json.loads(line)["file"] for line in open(options.files) if json.loads(line)["verdict"] != "no reference"}
        paths = [p for p in paths if os.path.basename(p) in good]
    done = set()
    if os.path.exists(options.results):
        done = {json.loads(line)["file"] for line in open(options.results)}
    for path in paths[::options.every]:
        if os.path.basename(path) in done:
            continue
        try:
            row = trial(options.trainer, options.python, path)
        except subprocess.TimeoutExpired:
            row = {"verdict": "refused", "message": f"no step within {LIMIT} s"}
        except Exception as e:  # noqa: BLE001: of the check
            row = {"verdict": "census failed", "message": f"{type(e).__name__}: {str(e)[:200]}"}
        row = {"file": os.path.basename(path), **row}
        print(row["verdict"], row["file"], row["message"][:150], flush=True)
        with open(options.results, "a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
