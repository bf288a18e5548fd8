#!/usr/bin/env bash
# Trains a BERT encoder with a million parameters by masked language modelling on Shakespeare's plays, on two ranks,
# fully sharded, a unit for each layer, from nothing but Debian 12: installs missing packages, builds, trains, and
# prints the loss over the evaluation rows as its last line. Settings: bert.yaml in this folder.
# Results: out/bert.onnx, out/metrics.jsonl and out/loss.svg.
#
#   samples/bert/run.sh [options of fsdp-run]     e.g. samples/bert/run.sh --nproc-per-node 4
#   PARAM_DTYPE=bfloat16 samples/bert/run.sh      parameters and computation in another type
exec "$(dirname "${BASH_SOURCE[0]}")/../common/train.sh" bert "BERT, masked word pieces of tinyshakespeare" \
  --param-dtype "${PARAM_DTYPE:-float32}" "$@"
