#!/bin/sh
# Speed of checkpoints: 1 GiB of state from two ranks against dd with conv=fsync on the same disk, in turn;
# a step's wait for an asynchronous save against the copy of the shard; and memory.
#
#   bench/checkpoint.sh [FOLDER [ROUNDS]]      FOLDER on the disk to measure; PYTHON has onnx and numpy
set -eu
export OFSDP_RUN_DIR=none
root=$(cd "$(dirname "$0")/.." && pwd)
exec "${PYTHON:-python3}" "$root/bench/checkpoint.py" "$root/build/release/fsdp-run" "${1:-/tmp/checkpoint-bench}" "${2:-5}"
