"""Trains each folder of artifacts with ONNX Runtime and with fsdp-run, and continues with ONNX Runtime from both
checkpoints.

    compare.py FSDP_RUN FOLDER_OF_ARTIFACTS

Compares to 2e-5:

- the losses of 20 steps on 1, 2 and 3 ranks
- afterwards the eval model's loss in ONNX Runtime from our checkpoint
- the loss of our eval_model.onnx with embedded weights
- the losses of five more steps, with our weights and moments
"""
import json
import os
import subprocess
import sys
import tempfile
import types

import numpy as np
import onnx
import onnxruntime

# onnxruntime.training asks for torch; the parts that we need do not.
package = types.ModuleType("onnxruntime.training")
package.__path__ = [os.path.join(os.path.dirname(onnxruntime.__file__), "training")]
sys.modules[package.__name__] = package
from onnxruntime.training.api import CheckpointState, Module, Optimizer  # noqa: E402

STEPS, MORE, BATCH, TOLERANCE = 20, 5, 12, 2e-5


def number(loss):
    return float(np.asarray(loss[0] if isinstance(loss, (tuple, list)) else loss))


class Trainer:
    def __init__(self, folder, checkpoint, eval_model="eval_model.onnx"):
        self.state = CheckpointState.load_checkpoint(checkpoint)
        self.module = Module(f"{folder}/training_model.onnx", self.state, f"{folder}/{eval_model}")
        self.optimizer = Optimizer(f"{folder}/optimizer_model.onnx", self.module)

    def batch(self, columns, step):
        first = step * BATCH % len(next(iter(columns.values())))
        return [columns[name][first:first + BATCH] for name in self.module.input_names()]

    def train(self, columns, steps):
        self.module.train()
        losses = []
        for step in range(steps):
            losses.append(number(self.module(*self.batch(columns, step))))
            self.optimizer.step()
            self.module.lazy_reset_grad()
        return losses

    def evaluate(self, columns):
        self.module.eval()
        return number(self.module(*self.batch(columns, 0)))


def ours(run, folder, world, output, metrics):
    subprocess.run([run, folder, "--strategy", "full_shard", "--no-shuffle", "--eval-data", "none", "--steps", str(STEPS),
                    "--global-batch-size", str(BATCH), "--nproc-per-node", str(world), "--output", output, "--metrics",
                    metrics], check=True, stdout=subprocess.DEVNULL)
    with open(metrics) as file:
        rows = [json.loads(line) for line in file]
    return [row["loss"] for row in rows if row["kind"] == "step"]


def eval_model_loss(path, columns):
    onnx.checker.check_model(path)
    session = onnxruntime.InferenceSession(path)
    feeds = {i.name: columns[i.name][:BATCH] for i in session.get_inputs()}
    return number(session.run(None, feeds)[0])


def furthest(a, b):
    assert len(a) == len(b), (len(a), len(b))
    return max(abs(x - y) for x, y in zip(a, b))


def compare(run, folder):
    columns = {name[:-4]: np.load(f"{folder}/data/{name}") for name in os.listdir(f"{folder}/data")}
    theirs = Trainer(folder, f"{folder}/checkpoint")
    losses, after = theirs.train(columns, STEPS), theirs.evaluate(columns)
    more = theirs.train(columns, MORE)
    worst = 0.0
    for world in (1, 2, 3):
        with tempfile.TemporaryDirectory() as scratch:
            output = f"{scratch}/out"
            found = {"steps": furthest(losses, ours(run, folder, world, output, f"{scratch}/metrics"))}
            back = Trainer(output, f"{output}/checkpoint", "module_eval_model.onnx")
            found["eval"] = abs(back.evaluate(columns) - after)
            found["eval_model.onnx"] = abs(eval_model_loss(f"{output}/eval_model.onnx", columns) - after)
            found["five more"] = furthest(more, back.train(columns, MORE))
        print(os.path.basename(folder), f"on {world}:", ", ".join(f"{k} {v:.2g}" for k, v in found.items()))
        worst = max(worst, *found.values())
    return worst


def main():
    run, root = sys.argv[1:]
    worst = max(compare(run, os.path.join(root, name)) for name in sorted(os.listdir(root)))
    print(f"largest difference {worst:.3g}, tolerance {TOLERANCE:g}")
    sys.exit(0 if worst <= TOLERANCE else 1)


if __name__ == "__main__":
    main()
