"""Saves 1 GiB of state from two ranks, in turn with dd; see checkpoint.sh.

    checkpoint.py FSDP_RUN FOLDER [ROUNDS]

Needs Python with onnx and numpy, only for the model.
"""
import os
import re
import subprocess
import sys
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LAYERS, WIDTH = 6, 3861  # 89.4 million parameters; with AdamW's two states 1.07e9 bytes


def make_model(path):
    nodes, weights, value = [], [], "x"
    for i in range(LAYERS):
        values = np.random.default_rng(i).standard_normal((WIDTH, WIDTH), dtype=np.float32) * 0.01
        weights.append(numpy_helper.from_array(values, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"h{i}"], f"layer{i}"))
        value = f"h{i}"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])
    y = helper.make_tensor_value_info(value, TensorProto.FLOAT, ["batch", WIDTH])
    graph = helper.make_graph(nodes, "large", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def train(program, folder, *more):
    """Returns the run's lines and the largest resident size of a rank in bytes. A separate process measures the
    size."""
    command = [program, f"{folder}/model.onnx", "--data", "synthetic", "--loss", "mse", "--batch-size", "1",
               "--nproc-per-node", "2", "--min-params", "14000000", "--log-interval", "1", "--verbose", "on", *more]
    script = ("import resource,subprocess,sys;"
              "r=subprocess.run(sys.argv[1:],stdout=2);"
              "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss*1024);sys.exit(r.returncode)")
    run = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}: {run.stderr}")
    return run.stderr, int(run.stdout.split()[-1])


def dd(folder, megabytes):
    path = f"{folder}/dd"
    began = time.monotonic()
    subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={megabytes}", "conv=fsync"],
                   check=True, capture_output=True)
    seconds = time.monotonic() - began
    os.remove(path)
    return megabytes * 1048576 / seconds / 1e6


SAVED = re.compile(r"saved .*  ([\d.]+) MB in ([\d.]+) s, the step waited ([\d.]+) ms \(copy ([\d.]+) ms\)")


def planned(text):
    return int(re.search(r"peak, in whole pages .* (\d+)$", text, re.MULTILINE).group(1))


def main():
    program, folder = sys.argv[1], sys.argv[2]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    os.makedirs(folder, exist_ok=True)
    if not os.path.exists(f"{folder}/model.onnx"):
        make_model(f"{folder}/model.onnx")
    checkpoints = f"{folder}/checkpoints"
    saving = ["--checkpoint-dir", checkpoints, "--keep-checkpoints", "1"]
    speeds, disks = [], []
    for _ in range(rounds):
        disks.append(dd(folder, 1024))
        subprocess.run(["rm", "-rf", checkpoints], check=True)
        out, _ = train(program, folder, *saving, "--checkpoint-sync", "--steps", "1")
        megabytes, seconds, _, _ = map(float, SAVED.findall(out)[-1])
        speeds.append(megabytes / seconds)
        print(f"sync save {speeds[-1]:.0f} MB/s, dd conv=fsync {disks[-1]:.0f} MB/s, "
              f"ratio {speeds[-1] / disks[-1]:.2f}", flush=True)
    ratios = sorted(s / d for s, d in zip(speeds, disks))
    print(f"median ratio {ratios[len(ratios) // 2]:.2f}")

    _, plain = train(program, folder, "--steps", "3")
    subprocess.run(["rm", "-rf", checkpoints], check=True)
    out, sync = train(program, folder, *saving, "--checkpoint-sync", "--checkpoint-interval", "1step", "--steps", "3")
    sync_plan = planned(out)
    subprocess.run(["rm", "-rf", checkpoints], check=True)
    out, behind = train(program, folder, *saving, "--checkpoint-interval", "8step", "--steps", "24")
    _, _, wait, copy = map(float, SAVED.findall(out)[0])
    print(f"asynchronous save: the step waited {wait:.1f} ms, the copy took {copy:.1f} ms, ratio {wait / copy:.2f}")
    print(f"largest rank: {plain / 1e6:.0f} MB without saving, {(sync - plain) / 2**20:+.1f} MiB with synchronous saves, "
          f"{(behind - plain) / 2**20:+.1f} MiB with asynchronous ones; the plan has "
          f"{(planned(out) - sync_plan) / 2**20:.1f} MiB for the copy")
    subprocess.run(["rm", "-rf", checkpoints], check=True)


main()
