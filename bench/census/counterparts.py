#!/usr/bin/env python3
"""Runs the same files in other ONNX trainers: does a step run, and is the gradient right?

    counterparts.py FOLDER --trainer onnxsim|onnxruntime --results RESULTS.jsonl [--python PYTHON] [--fsdp-run FSDP_RUN]
                    [--files RESULTS_OF_RUN.jsonl] [--every N]

onnxsim 0.8.1 runs `compile_training_loop` with its momentum optimizer; the first step equals SGD. It needs static
shapes and a loss in the graph. So the script fixes the file's axes and appends a mean squared error.
onnxruntime-training 1.19.2 runs `generate_artifacts` with its MSELoss, then `Module`, and returns the parameters'
gradients. PYTHON is an interpreter that has it. The file gets IR version 10 at most, and labels with a static shape.
Both train the float32 initializers that fsdp-run trains, or without --fsdp-run all.

A file gets a second attempt, `helped`, if it is refused, crashes or makes `no step`. A user could make its changes
first. The nodes are sorted, float16 becomes float32, and axes are fixed. onnxsim.simplify folds shape computations and
merges batch normalizations. The opset is lowered, and the outputs of LayerNormalization get names
(onnxruntime-training needs them). Only weights of two axes or more are trained.

Each file runs in its own process, with LIMIT seconds and MEMORY bytes. The process is forked from one with the loaded
trainer. The gradient is compared with run.py's differences for the same loss. With --files the script tries only files
that ONNX Runtime itself evaluates. Verdicts:

- right, wrong, unresolved: a step ran; the result of the gradient check
- no step: the loss is not finite or no parameter moved
- refused
- crashed: a signal ended the process
"""
import argparse
import glob
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import zlib

import numpy as np
import onnx
import onnx.reference
from onnx import TensorProto, helper, numpy_helper, version_converter

LIMIT, MEMORY = 60, 8 << 30
OPSET, IR_VERSION = 21, 10   # the newest for onnxruntime-training 1.19.2
RATE = 100.0


def floats(model):
    return [t.name for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) > 0]


def fix_axes(model, data):
    """Replaces symbolic axes by the example's sizes."""
    for value in model.graph.input:
        if value.name in data:
            value.type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto(
                dim=[onnx.TensorShapeProto.Dimension(dim_value=n) for n in data[value.name].shape]))
    model.graph.ClearField("value_info")


def keep_output(model, name, shape):
    """Keeps only the prediction as output, with its shape."""
    kind = next(o.type.tensor_type.elem_type for o in model.graph.output if o.name == name)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info(name, kind, shape))


def name_statistics(model):
    """Adds the mean and the inverse deviation as outputs of each LayerNormalization. No node reads them."""
    for node in model.graph.node:
        if node.op_type == "LayerNormalization" and len(node.output) < 3:
            node.output.extend(f"{node.output[0]}.statistic{k}" for k in range(len(node.output), 3))


def in_order(model):
    """Sorts nodes after the nodes that make their inputs: ONNX Runtime's float16 converter leaves some before."""
    made, left = {""}, list(model.graph.node)
    produced = {o for n in left for o in n.output}
    order = []
    while left:
        ready = [n for n in left if all(x in made or x not in produced for x in n.input)]
        if not ready:
            return
        order += ready
        made.update(o for n in ready for o in n.output)
        left = [n for n in left if not any(n is r for r in ready)]
    del model.graph.node[:]
    model.graph.node.extend(order)


def hold_constants(model):
    """Turns the tensors of Constant nodes into initializers."""
    nodes = []
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            tensor = node.attribute[0].t
            tensor.name = node.output[0]
            model.graph.initializer.append(tensor)
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def at_most(model, newest):
    """Converts the model with onnx to opset `newest` if its opset is newer."""
    opset = next(i.version for i in model.opset_import if i.domain in ("", "ai.onnx"))
    return version_converter.convert_version(model, newest) if opset > newest else model


def with_axes(model):
    """Writes the ReduceMean of opset 18 in the form of opset 17, with axes as an attribute; onnx does not convert
    it. All other nodes must be valid in opset 17."""
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "ReduceMean" and len(node.input) > 1 and node.input[1] in constants:
            others = [a for a in node.attribute if a.name != "noop_with_empty_axes"]
            del node.attribute[:]
            node.attribute.extend([*others, helper.make_attribute("axes", constants[node.input[1]].tolist())])
            del node.input[1:]
    for domain in model.opset_import:
        if domain.domain in ("", "ai.onnx"):
            domain.version = min(domain.version, 17)


def name_shapes(model, data):
    """Adds the shape of every tensor, from ONNX Runtime; onnx.shape_inference knows no operators of com.microsoft."""
    import graphs
    model.graph.ClearField("value_info")
    ends = {o.name for o in model.graph.output}
    names = [o for n in model.graph.node for o in n.output if o and o not in ends]
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    kinds.update({i.name: i.type.tensor_type.elem_type for i in model.graph.input})
    for name, array in graphs.values(model, names, data).items():
        kinds[name] = helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.value_info.append(helper.make_tensor_value_info(name, kinds[name], array.shape))
    for node in model.graph.node:
        if node.op_type == "Cast" and kinds.get(node.input[0]) == node.attribute[0].i:   # left by float16 -> float32
            node.op_type = "Identity"
            del node.attribute[:]


def prepared(task):
    """Saves the model for an attempt. Returns the names to train."""
    import graphs
    model = onnx.load(task["path"])
    data = dict(np.load(task["folder"] + "/data.npz"))
    shape = list(data.pop("labels").shape)
    if task["helped"] or task["trainer"] == "onnxsim":
        if task["helped"]:
            in_order(model)
            model = graphs.widened(model) if graphs.has_narrow(model) else model
        fix_axes(model, data)
        keep_output(model, task["prediction"], shape)
        import onnxsim
        model, _ = onnxsim.simplify(model)
    if task["trainer"] == "onnxsim":
        hold_constants(model)
        try:
            older = onnx.ModelProto.FromString(model.SerializeToString())
            if task["helped"]:
                with_axes(older)
            name_shapes(older, data)
            model = older
        except Exception:  # noqa: BLE001: other operators of it are no operators of opset 17
            name_shapes(model, data)
    names = [n for n in task["names"] or floats(model) if n in set(floats(model))]
    if task["trainer"] == "onnxruntime":
        if task["helped"]:
            hold_constants(model)
            model = at_most(model, OPSET)
            name_statistics(model)
        model.ir_version = min(model.ir_version, IR_VERSION)
    if task["helped"]:
        axes = {t.name: len(t.dims) for t in model.graph.initializer}
        wide = [n for n in floats(model) if axes[n] > 1]
        # simplify gives merged weights new names
        names = [n for n in wide if n in task["names"]] or [n for n in wide if not task["names"] or n not in task["all"]]
    if not names:
        raise ValueError("no float32 initializer to train")
    onnx.save(model, task["folder"] + "/model.onnx")
    return names


def given(folder):
    data = dict(np.load(folder + "/data.npz"))
    return onnx.load(folder + "/model.onnx"), data, data.pop("labels")


def with_onnxsim(task):
    """Gradients by onnxsim's training loop."""
    import onnxsim
    model, data, labels = given(task["folder"])
    model.graph.input.append(helper.make_tensor_value_info("census_labels", TensorProto.FLOAT, list(labels.shape)))
    model.graph.value_info.append(model.graph.output[0])
    for name, shape in (("census_difference", labels.shape), ("census_square", labels.shape), ("census_loss", [])):
        model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
    model.graph.node.extend([helper.make_node("Sub", [task["prediction"], "census_labels"], ["census_difference"]),
                             helper.make_node("Mul", ["census_difference", "census_difference"], ["census_square"]),
                             helper.make_node("ReduceMean", ["census_square"], ["census_loss"], keepdims=0)])
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("census_loss", TensorProto.FLOAT, []))
    loop = onnxsim.compile_training_loop(model, "census_loss", task["train"], optimizer="sgd_momentum")
    before = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    loss = loop({**data, "census_labels": labels}, RATE)
    after = loop.parameters()
    return loss, {n: (before[n].astype(np.float64) - np.asarray(after[n], np.float64)) / RATE for n in task["train"]}


def with_onnxruntime(task):
    """Gradients by onnxruntime-training's on-device interface."""
    import onnxruntime.training.artifacts as artifacts
    from onnxruntime.training.api import CheckpointState, Module
    folder, names = task["folder"], task["train"]
    model, data, labels = given(folder)
    artifacts.generate_artifacts(model, requires_grad=names, frozen_params=[
        t.name for t in model.graph.initializer if t.name not in names], loss=artifacts.LossType.MSELoss,
        artifact_directory=folder, loss_input_names=[task["prediction"]])
    state = CheckpointState.load_checkpoint(folder + "/checkpoint")
    module = Module(folder + "/training_model.onnx", state, folder + "/eval_model.onnx", device="cpu")
    module.train()
    out = module(*[labels if n not in data else data[n] for n in module.input_names()])
    return float(np.asarray(out[0] if isinstance(out, (list, tuple)) else out)), {
        n: np.asarray(p.grad, np.float64) for n, p in state.parameters if n in names}


def work(task):
    if task["stage"] == "prepare":
        answer = {"names": prepared(task)}
    else:
        loss, gradients = {"onnxsim": with_onnxsim, "onnxruntime": with_onnxruntime}[task["trainer"]](task)
        np.savez(task["folder"] + "/gradients.npz", **{f"g{i}": g for i, g in enumerate(gradients.values())})
        answer = {"loss": float(loss), "names": list(gradients)}
    with open(task["folder"] + "/answer.json", "w") as file:
        json.dump(answer, file)


def forked(task):
    """Runs a task in a child and returns its exit status; a signal's number is negative."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(LIMIT)
        words = os.open(task["folder"] + "/stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(words, 1)
        os.dup2(words, 2)
        try:
            work(task)
            os._exit(0)
        except BaseException as e:  # noqa: BLE001: whatever a trainer raises
            os.write(2, f"\n{type(e).__name__}: {e}".encode())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def serve(trainer):
    """Reads one task per line, runs it in a child, and answers with the child's status."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if trainer == "onnxruntime":
        import onnxruntime.training.api  # noqa: F401
        import onnxruntime.training.artifacts  # noqa: F401
    else:
        import onnxsim  # noqa: F401
    for line in sys.stdin:
        print(forked(json.loads(line)), file=answers, flush=True)


class Server:
    def __init__(self, python, trainer):
        self.process = subprocess.Popen([python, os.path.abspath(__file__), "--serve", trainer], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def status(self, task):
        print(json.dumps(task), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


def told(status, folder):
    """Returns the verdict and message for a failed child."""
    if status == -signal.SIGALRM:
        return {"verdict": "refused", "message": f"no step within {LIMIT} s"}
    with open(folder + "/stderr", errors="replace") as file:
        text = file.read().strip()
    if status < 0:
        return {"verdict": "crashed", "message": f"signal {-status}"}
    last = re.split(r"\n(?=\w+: )", text)[-1]
    said = re.search(r"(The gradient builder has not been registered.*|\[ONNXRuntimeError\].*)", last, re.S)
    message = re.sub(r"\s+", " ", said[1] if said else last)
    return {"verdict": "refused", "message": re.sub(r"/\S*/(orttraining|onnx|onnxruntime)/(?=\S+:\d)", "", message)[:400]}


def by_batch(model):
    """Returns the model with BatchNormalization by batch statistics, as in onnxruntime-training."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            node.attribute.append(helper.make_attribute("training_mode", 1))
            node.output.extend([node.output[0] + ".mean", node.output[0] + ".variance"])
    for domain in model.opset_import:
        if domain.domain in ("", "ai.onnx"):
            domain.version = max(domain.version, 15)
    return model


def squared(labels):
    return lambda output: float(((np.asarray(output, np.float64) - labels) ** 2).mean())


def trained_here(program, path, folder, prediction, rows):
    """Returns the names that fsdp-run trains."""
    done = subprocess.run([program, path, "--data", folder + "/data", "--loss", "mse", "--prediction", prediction, "--labels", "labels",
                           "--batch-size", str(rows), "--no-shuffle", "--threads", "1", "--steps", "1", "--lr", "0", "--verbose", "on"],
                          capture_output=True, text=True, timeout=120)
    return re.findall(r"^train   (\S.*?) +\[[\d, ]*\]", done.stdout, re.M) if done.returncode == 0 else []


def attempt(servers, task, random):
    import graphs
    from run import check_gradient, close, kind_of
    folder = task["folder"]
    status = servers["prepare"].status({**task, "stage": "prepare"})
    if status != 0:
        return told(status, folder)
    with open(folder + "/answer.json") as file:
        task["train"] = json.load(file)["names"]
    status = servers["train"].status({**task, "stage": "train"})
    if status != 0:
        return told(status, folder)
    with open(folder + "/answer.json") as file:
        answer = json.load(file)
    made = np.load(folder + "/gradients.npz")
    gradients = {n: made[f"g{i}"] for i, n in enumerate(answer["names"])}
    if not graphs.finite(answer["loss"]) or not any(np.any(g) for g in gradients.values()):
        return {"verdict": "no step", "message": f"loss {answer['loss']}, or no parameter moved"}
    model, data, labels = given(folder)
    loss = squared(labels)
    output = graphs.values(model, [task["prediction"]], data)[task["prediction"]]
    if not close(answer["loss"], loss(output), 1e-3) and any(n.op_type == "BatchNormalization" for n in model.graph.node):
        model = by_batch(model)
        output = onnx.reference.ReferenceEvaluator(model).run([task["prediction"]], data)[0]
    if not close(answer["loss"], loss(output), 1e-3):
        return {"verdict": "wrong", "message": f"loss {answer['loss']:.6g}, ONNX Runtime's {loss(output):.6g}"}
    try:
        wide = graphs.straight_through(model, data)[0] if kind_of(model) == "integers" else model
        probe = graphs.Probe(wide, set(gradients), data, task["prediction"], loss)
        gradients = {n: g.reshape(probe.base[n].shape) for n, g in gradients.items() if n in probe.base}
        verdict, _, wrong = check_gradient(probe, gradients, {}, random)
    except Exception as e:  # noqa: BLE001: said in the row
        return {"verdict": "unresolved", "message": f"{type(e).__name__}: {str(e)[:200]}", "trained": len(gradients)}
    return {"verdict": verdict, "message": "; ".join(wrong), "trained": len(gradients)}


def trial(options, servers, path):
    import graphs
    from run import FLOATS, inputs_of, kind_of
    random = np.random.default_rng(zlib.crc32(os.path.basename(path).encode()))
    model = onnx.load(path)
    feeds = inputs_of(path, model, random)
    prediction = next(o.name for o in model.graph.output if o.type.tensor_type.elem_type in FLOATS)
    output = graphs.values(model, [prediction], feeds)[prediction]
    labels = random.standard_normal(output.shape).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        np.savez(folder + "/data.npz", labels=labels, **feeds)
        os.makedirs(folder + "/data")
        for name, array in {**feeds, "labels": labels}.items():
            np.save(f"{folder}/data/{name}.npy", array)
        names = trained_here(options.fsdp_run, path, folder, prediction, len(labels)) if options.fsdp_run else []
        task = {"path": os.path.abspath(path), "folder": folder, "trainer": options.trainer, "prediction": prediction, "names": names,
                "all": [t.name for t in model.graph.initializer], "helped": False}
        row = {"kind": kind_of(model), **attempt(servers, task, random)}
        if row["verdict"] not in ("refused", "crashed", "no step"):
            return row
        return {**row, "helped": attempt(servers, {**task, "helped": True}, random)}


def main():
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
        return
    words = argparse.ArgumentParser()
    words.add_argument("folder")
    words.add_argument("--trainer", choices=["onnxsim", "onnxruntime"], required=True)
    words.add_argument("--results", required=True)
    words.add_argument("--python", default=sys.executable)
    words.add_argument("--fsdp-run")
    words.add_argument("--files")
    words.add_argument("--every", type=int, default=1)
    options = words.parse_args()
    paths = sorted(glob.glob(options.folder + "/*.onnx"))
    if options.files:
        with open(options.files) as file:
            good = {row["file"] for row in map(json.loads, file) if row["verdict"] != "no reference"}
        paths = [p for p in paths if os.path.basename(p) in good]
    done = set()
    if os.path.exists(options.results):
        with open(options.results) as file:
            done = {json.loads(line)["file"] for line in file}
    servers = {"prepare": Server(sys.executable, "onnxsim")}
    servers["train"] = servers["prepare"] if options.trainer == "onnxsim" else Server(options.python, "onnxruntime")
    for path in paths[::options.every]:
        if os.path.basename(path) in done:
            continue
        try:
            row = trial(options, servers, path)
        except Exception as e:  # noqa: BLE001: of the check, or ONNX Runtime does not run the file
            row = {"verdict": "census failed", "message": f"{type(e).__name__}: {str(e)[:200]}"}
        row = {"file": os.path.basename(path), **row}
        helped = row.get("helped", {})
        print(row["verdict"], row["file"], row["message"][:150], *([f"| helped: {helped['verdict']} {helped['message'][:100]}"] if helped else []), flush=True)
        with open(options.results, "a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
