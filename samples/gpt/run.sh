#!/usr/bin/env bash
# Trains a GPT of 0.8 million parameters on the characters of Shakespeare's plays, in nanoGPT's CPU setting, from nothing
# but Debian 12: installs what is missing, builds, trains 2,000 updates (a minute or two), and prints the loss over the
# whole validation tenth as its last line. Settings: gpt.yaml beside this file.
# Results: out/gpt.onnx, out/metrics.jsonl and out/loss.svg.
#
#   samples/gpt/run.sh [options of fsdp-run]      e.g. samples/gpt/run.sh --nproc-per-node 2
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=samples/gpt/out

scripts/setup.sh
{ cmake --preset release && cmake --build --preset release --target fsdp-run; } >&2

mkdir -p "$out"
rm -f "$out/metrics.jsonl" "$out/gpt.onnx" "$out/loss.svg"
build/release/fsdp-run samples/gpt/gpt.onnx --metrics "$out/metrics.jsonl" --output "$out/gpt.onnx" "$@"
samples/common/plot.sh "$out/metrics.jsonl" "$out/loss.svg" "GPT on the characters of tinyshakespeare"
samples/common/last_loss.sh "$out/metrics.jsonl"
