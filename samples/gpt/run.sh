#!/usr/bin/env bash
# Trains a GPT with 0.8 million parameters on the characters in Shakespeare's plays, in nanoGPT's CPU setting, from
# nothing but Debian 12: installs missing packages, builds, trains 2,000 updates (a minute or two), and prints the loss
# over the whole validation tenth as its last line. Settings: gpt.yaml in this folder.
# Results: out/gpt.onnx, out/metrics.jsonl and out/loss.svg.
#
#   samples/gpt/run.sh [options of fsdp-run]      e.g. samples/gpt/run.sh --nproc-per-node 2
exec "$(dirname "${BASH_SOURCE[0]}")/../common/train.sh" gpt "GPT on the characters of tinyshakespeare" "$@"
