#!/usr/bin/env python3
"""Times 1,000 calls of Trainer.step against the command line's loop on the same rows, one thread, in turn (A B A B
...).

    bench/trainer_steps.py BUILD_FOLDER MODEL.onnx DATA_FOLDER BATCH [PAIRS=3] [fsdp-run options]

Prints both times of every pair and the median ratio. Both exclude the first 20 steps, which plan. Needs numpy; run it
on an idle machine.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

BUILD, MODEL, DATA = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
BATCH = int(sys.argv[4])
PAIRS = int(sys.argv[5]) if len(sys.argv) > 5 else 3
OPTIONS = sys.argv[6:]
STEPS, LEFT_OUT = 1000, 20
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
os.environ["OFSDP_LIBRARY"] = str(BUILD / "libonnx_fsdp.so")
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OFSDP_RUN_DIR"] = "none"
import onnx_fsdp  # noqa: E402

COLUMNS = {path.stem: numpy.load(path) for path in DATA.glob("*.npy")}
ROWS = len(next(iter(COLUMNS.values()))) // BATCH * BATCH
BATCHES = [{name: rows[i:i + BATCH] for name, rows in COLUMNS.items()} for i in range(0, ROWS, BATCH)]


def command_line():
    with tempfile.TemporaryDirectory() as folder:
        metrics, data = pathlib.Path(folder) / "metrics.jsonl", pathlib.Path(folder) / "data"
        data.mkdir()
        for name, rows in COLUMNS.items():
            numpy.save(data / f"{name}.npy", rows[:ROWS])
        subprocess.run([BUILD / "fsdp-run", MODEL, "--data", data, "--no-shuffle", "--batch-size", str(BATCH), "--steps",
                        str(STEPS), "--epochs", "1000000", "--threads", "1", "--metrics", metrics, *OPTIONS], check=True,
                       stdout=subprocess.DEVNULL)
        steps = [json.loads(line)["step_ms"] for line in metrics.read_text().splitlines() if '"step"' in line[:20]]
    return sum(steps[LEFT_OUT:]) / 1e3


def trainer():
    names = [word[2:].replace("-", "_") for word in OPTIONS[::2]]
    with onnx_fsdp.Trainer(MODEL, **dict(zip(names, OPTIONS[1::2]))) as one:
        for step in range(STEPS):
            if step == LEFT_OUT:
                began = time.perf_counter()
            one.step(BATCHES[step % len(BATCHES)])
        return time.perf_counter() - began


ratios = []
for pair in range(PAIRS):
    ours, theirs = trainer(), command_line()
    ratios.append(ours / theirs)
    print(f"pair {pair + 1}: Trainer.step {ours:.3f} s, fsdp-run {theirs:.3f} s, ratio {ratios[-1]:.3f}", flush=True)
print(f"ratio Trainer.step / fsdp-run: median {statistics.median(ratios):.3f}")
