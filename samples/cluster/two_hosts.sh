#!/usr/bin/env bash
# The same line on each of two hosts; FIRST is the address of one host.
#   FIRST=10.0.0.1 ./two_hosts.sh model.onnx [options of fsdp-run]
# With explicit numbers (--node-rank 0, --node-rank 1) the hosts keep their ranks whichever comes first.
set -euo pipefail
: "${FIRST:?the address of one of the hosts}"
exec fsdp-run "$@" --nnodes 2 --nproc-per-node "${RANKS:-1}" --rdzv-endpoint "$FIRST:29400" \
  --checkpoint-dir "${CHECKPOINTS:-/shared/checkpoints}" --max-restarts 3
