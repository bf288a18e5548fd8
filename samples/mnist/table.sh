#!/usr/bin/env bash
# The table of PyTorch's FSDP tutorial on this machine: time and peak memory of the same training without sharding,
# fully sharded with one unit, with units by size, and with --wrap auto; planned and measured. Trains one epoch each,
# and draws time and memory in samples/mnist/out/table.
#
#   samples/mnist/table.sh [options of fsdp-run]      e.g. samples/mnist/table.sh --nproc-per-node 4 --steps 200
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=samples/mnist/out/table

scripts/setup.sh
{ cmake --preset release && cmake --build --preset release --target fsdp-run; } >&2

run() { # NAME option...: leaves NAME.plan.json, NAME.jsonl and NAME.trace.json
  local name=$1
  shift
  build/release/fsdp-run plan samples/mnist/mnist.onnx --json --eval-data none "$@" >"$out/$name.plan.json"
  build/release/fsdp-run samples/mnist/mnist.onnx --eval-data none --run-dir none --metrics "$out/$name.jsonl" "$@" >"$out/$name.log"
  # The trace itself takes memory.
  build/release/fsdp-run samples/mnist/mnist.onnx --eval-data none --run-dir none --trace "$out/$name.trace.json" "$@" --steps 20 >/dev/null
}

rm -rf "$out"
mkdir -p "$out"
run no_shard --strategy no_shard "$@"
run one_unit --strategy full_shard --wrap none "$@"
run by_size --strategy full_shard --wrap size --min-params 20000 "$@"
run auto --strategy full_shard --wrap auto "$@"

/usr/bin/python3 samples/mnist/table.py "$out"
