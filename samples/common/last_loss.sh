#!/usr/bin/env bash
# Prints "validation loss 1.9076": the loss in a metrics file's last evaluation.
#
#   samples/common/last_loss.sh METRICS.jsonl
set -euo pipefail
LC_ALL=C awk '
  /"kind":"eval"/ && match($0, /"loss":[-+.0-9e]+/) { loss = substr($0, RSTART + 7, RLENGTH - 7); seen = 1 }
  END { if (!seen) exit 1; printf "validation loss %.4f\n", loss }' "$1" ||
  { echo "$1: no evaluation in it" >&2; exit 1; }
