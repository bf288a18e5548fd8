#!/usr/bin/env bash
# Trains a small convolutional network on MNIST with two ranks, fully sharded, from nothing but Debian 12: installs
# missing packages, builds, trains one epoch, and prints the accuracy on the test images as its last line.
# Settings: mnist.yaml in this folder. Result: out/mnist.onnx and out/metrics.jsonl.
#
#   samples/mnist/run.sh [options of fsdp-run]      e.g. samples/mnist/run.sh --epochs 3 --nproc-per-node 4
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=samples/mnist/out

scripts/setup.sh
{ cmake --preset release && cmake --build --preset release --target fsdp-run; } >&2

mkdir -p "$out"
rm -f "$out/metrics.jsonl" "$out/mnist.onnx"
build/release/fsdp-run samples/mnist/mnist.onnx --metrics "$out/metrics.jsonl" --output "$out/mnist.onnx" "$@"

/usr/bin/python3 - "$out/metrics.jsonl" <<'PYTHON'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    rows = [json.loads(line) for line in file]
evals = [row for row in rows if row["kind"] == "eval"]
if not evals:
    sys.exit(f"{sys.argv[1]}: no evaluation in {len(rows)} rows")
print(f"accuracy {evals[-1]['accuracy']:.4f}")
PYTHON
