#!/usr/bin/env bash
# Shared by the samples that draw their losses: installs missing packages, builds, trains samples/NAME/NAME.onnx with
# the settings next to it, draws out/loss.svg and prints the last evaluation's loss.
#
#   samples/common/train.sh NAME TITLE [options of fsdp-run]
set -euo pipefail
name=$1 title=$2
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=samples/$name/out

scripts/setup.sh
{ cmake --preset release && cmake --build --preset release --target fsdp-run; } >&2

mkdir -p "$out"
rm -f "$out/metrics.jsonl" "$out/$name.onnx" "$out/loss.svg"
build/release/fsdp-run "samples/$name/$name.onnx" --metrics "$out/metrics.jsonl" --output "$out/$name.onnx" "$@"
samples/common/plot.sh "$out/metrics.jsonl" "$out/loss.svg" "$title"
samples/common/last_loss.sh "$out/metrics.jsonl"
