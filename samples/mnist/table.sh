#!/usr/bin/env bash
# The table of PyTorch's FSDP tutorial on this machine: time and peak memory of the same training without sharding, fully
# sharded with one unit, with units by size, and with --wrap auto; planned and measured. Trains one epoch each.
#
#   samples/mnist/table.sh [options of fsdp-run]      e.g. samples/mnist/table.sh --nproc-per-node 4 --steps 200
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=samples/mnist/out/table

scripts/setup.sh
{ cmake --preset release && cmake --build --preset release --target fsdp-run; } >&2

run() { # NAME option...: leaves NAME.plan.json and NAME.jsonl
  local name=$1
  shift
  build/release/fsdp-run plan samples/mnist/mnist.onnx --json --eval-data none "$@" >"$out/$name.plan.json"
  build/release/fsdp-run samples/mnist/mnist.onnx --eval-data none --run-dir none --metrics "$out/$name.jsonl" "$@" >"$out/$name.log"
}

rm -rf "$out"
mkdir -p "$out"
run no_shard --strategy no_shard "$@"
run one_unit --strategy full_shard --wrap none "$@"
run by_size --strategy full_shard --wrap size --min-params 20000 "$@"
run auto --strategy full_shard --wrap auto "$@"

/usr/bin/python3 - "$out" <<'PYTHON'
import json
import sys

NAMES = {"no_shard": "no_shard (DDP)", "one_unit": "full_shard, one unit", "by_size": "full_shard, units by size",
         "auto": "full_shard, --wrap auto"}


def end_of(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file][-1]


def of(name):
    with open(f"{sys.argv[1]}/{name}.plan.json", encoding="utf-8") as file:
        plan = json.load(file)
    end = end_of(f"{sys.argv[1]}/{name}.jsonl")
    return {"units": len(plan["units"]), "planned_ms": plan["update"]["ms"], "ms": end["median_step_ms"],
            "seconds": end["seconds"], "planned": end["planned_peak_bytes"], "peak": end["peak_bytes"]}


rows = {name: of(name) for name in NAMES}
first = rows["no_shard"]
print(f"{'':27} {'units':>5} {'seconds':>8} {'ms an update':>12} {'planned':>8} {'to DDP':>7} {'MB of rank 0':>12} {'of others':>9}  "
      "as planned")
for name, row in rows.items():
    others = max(row["peak"][1:], default=0)
    same = "to the byte" if row["peak"] == row["planned"] else f"no: {row['planned']} bytes"
    print(f"{NAMES[name]:27} {row['units']:5} {row['seconds']:8.2f} {row['ms']:12.2f} {row['planned_ms']:8.2f} "
          f"{row['ms'] / first['ms']:7.2f} {row['peak'][0] / 1e6:12.2f} {others / 1e6:9.2f}  {same}")
PYTHON
