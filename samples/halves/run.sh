#!/usr/bin/env bash
# Trains two small towers to tell which upper and lower half belong to one digit of MNIST, by a contrastive loss over the
# rows of all ranks: two ranks, fully sharded, from nothing but Debian 12. Installs what is missing, builds, trains, and
# prints the loss over the test images as its last line. Settings: halves.yaml beside this file.
# Results: out/halves.onnx, out/metrics.jsonl and out/loss.svg.
#
#   samples/halves/run.sh [options of fsdp-run]      e.g. samples/halves/run.sh --nproc-per-node 4
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=samples/halves/out

scripts/setup.sh
{ cmake --preset release && cmake --build --preset release --target fsdp-run; } >&2

mkdir -p "$out"
rm -f "$out/metrics.jsonl" "$out/halves.onnx" "$out/loss.svg"
build/release/fsdp-run samples/halves/halves.onnx --metrics "$out/metrics.jsonl" --output "$out/halves.onnx" "$@"
samples/common/plot.sh "$out/metrics.jsonl" "$out/loss.svg" "Halves of digits, contrastive loss"
samples/common/last_loss.sh "$out/metrics.jsonl"
