#!/usr/bin/env python3
"""Trains the MNIST sample with several seeds and counts each written file's right answers with ONNX Runtime.

    PYTHON bench/mnist_accuracy.py [SEED ...]     default: 1 2 3 4 5

PYTHON is an interpreter with `numpy` and `onnxruntime`; no other part of the sample needs them. Each seed runs
`samples/mnist/run.sh --seed SEED`; its last line has fsdp-run's own accuracy. This script reads the test images from
the IDX files without fsdp-run's reader, and normalizes them as torchvision does. Prints a table for
docs/internals/accuracy.md. Exit 1 if the two counts for a seed differ by more than one.
"""
import gzip
import pathlib
import re
import struct
import subprocess
import sys

import numpy as np
import onnxruntime

ROOT = pathlib.Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "samples" / "mnist"


def read_idx(path):
    """Reads an IDX file of unsigned bytes: 0, 0, type 8, number of axes; big-endian axes; the bytes."""
    data = gzip.decompress(path.read_bytes())
    zero, kind, rank = struct.unpack_from(">HBB", data)
    if zero != 0 or kind != 8:
        sys.exit(f"{path}: expected an IDX file of unsigned bytes, found {data[:4].hex()}")
    shape = struct.unpack_from(f">{rank}I", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(shape)


def normalized(images):
    values = images.astype(np.float32) / np.float32(255)
    return ((values - np.float32(0.1307)) / np.float32(0.3081))[:, None]


def right_answers(model, images, labels, batch=500):
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    right = 0
    for begin in range(0, len(images), batch):
        prediction = session.run(None, {name: normalized(images[begin:begin + batch])})[0]
        right += int((prediction.argmax(axis=1) == labels[begin:begin + batch]).sum())
    return right


def train(seed):
    """Runs the sample and returns the accuracy in its last line."""
    done = subprocess.run([SAMPLE / "run.sh", "--seed", str(seed)], capture_output=True, text=True, check=False)
    last = done.stdout.strip().rsplit("\n", 1)[-1]
    match = re.fullmatch(r"accuracy (0\.\d{4}|1\.0000)", last)
    if done.returncode != 0 or not match:
        sys.exit(f"seed {seed}: exit {done.returncode}, last line '{last}'\n{done.stderr[-1000:]}")
    return float(match[1])


def main():
    seeds = [int(word) for word in sys.argv[1:]] or [1, 2, 3, 4, 5]
    images = read_idx(SAMPLE / "data" / "t10k-images-idx3-ubyte.gz")
    labels = read_idx(SAMPLE / "data" / "t10k-labels-idx1-ubyte.gz")
    print("| seed | fsdp-run, accuracy | right of 10000 | ONNX Runtime, right | difference |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    worst = 0
    for seed in seeds:
        accuracy = train(seed)
        ours = round(accuracy * len(labels))
        theirs = right_answers(SAMPLE / "out" / "mnist.onnx", images, labels)
        worst = max(worst, abs(ours - theirs))
        print(f"| {seed} | {accuracy:.4f} | {ours} | {theirs} | {ours - theirs} |", flush=True)
    return 1 if worst > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
