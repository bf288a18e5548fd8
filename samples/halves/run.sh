#!/usr/bin/env bash
# Trains two small towers to tell which upper and lower half belong to one MNIST digit, by a contrastive loss over the
# rows of all ranks: two ranks, fully sharded, from nothing but Debian 12. Installs missing packages, builds, trains,
# and prints the loss over the test images as its last line. Settings: halves.yaml in this folder.
# Results: out/halves.onnx, out/metrics.jsonl and out/loss.svg.
#
#   samples/halves/run.sh [options of fsdp-run]      e.g. samples/halves/run.sh --nproc-per-node 4
exec "$(dirname "${BASH_SOURCE[0]}")/../common/train.sh" halves "Halves of digits, contrastive loss" "$@"
