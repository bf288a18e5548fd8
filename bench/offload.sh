#!/usr/bin/env bash
# --cpu-offload on a host with a GPU: updates a second without an offload, with `optimizer` and with `params`, and the
# bound from the bytes in an update and the measured bandwidth of pinned copies (both ways at once).
#
#   [DTYPE=bfloat16] [BATCH=8] [STEPS=30] [RANKS=1] bench/offload.sh MODEL.onnx [FLAG...]
#
# A run that is refused or fails has a separate line. BUILD names another build than build/cuda. Run it on an idle
# machine.
set -euo pipefail
export OFSDP_RUN_DIR=none
cd "$(dirname "${BASH_SOURCE[0]}")/.."
model=${1:?a model}
shift
build=${BUILD:-build/cuda} dtype=${DTYPE:-bfloat16} batch=${BATCH:-8} steps=${STEPS:-30} ranks=${RANKS:-1}
if [ "$build" = build/cuda ]; then
  { cmake --preset cuda && cmake --build --preset cuda --target fsdp-run ofsdp_cuda bench_pinned_copies; } >/dev/null
fi
export OFSDP_CUDA_LIBRARY=${OFSDP_CUDA_LIBRARY:-$PWD/$build/libofsdp_cuda.so}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$build/bench/pinned_copies" --benchmark_format=json >"$folder/copies" 2>/dev/null || true
# bandwidth NAME: bytes a second, one way
bandwidth() {
  /usr/bin/python3 -c 'import json, sys
rows = json.load(open(sys.argv[1]))["benchmarks"]
row = next(r for r in rows if r["name"].startswith("copies/" + sys.argv[2]))
sys.exit(row["error_message"]) if row.get("error_occurred") else print(row["bytes_per_second"])' "$folder/copies" "$1"
}
both=$(bandwidth both)
for way in up down both; do
  awk -v b="$(bandwidth $way)" -v w=$way 'BEGIN{printf "pinned copies, %s: %.1f GB/s%s\n", w, b/1e9, w=="both" ? " each way" : ""}'
done

for offload in none optimizer params; do
  if ! "$build/fsdp-run" "$model" --data synthetic --eval-data none --batch-size "$batch" --steps "$steps" --device cuda \
    --param-dtype "$dtype" --nproc-per-node "$ranks" --cpu-offload "$offload" --verbose on --metrics "$folder/metrics" "$@" \
    >"$folder/out" 2>"$folder/err"; then
    echo "$offload: $(head -1 "$folder/err")"
    continue
  fi
  /usr/bin/python3 - "$folder/metrics" "$folder/out" "$both" "$offload" "$ranks" <<'END'
import json, re, sys
metrics, out, both, offload, ranks = sys.argv[1:]
end = json.loads(open(metrics).readlines()[-1])
ms = end["median_step_ms"]
line = f'{offload}: {1e3 / ms:.2f} updates/s ({ms:.2f} ms), peak {max(end["peak_bytes"]) / 1e9:.3f} GB a rank'
said = re.search(r"(\d+) bytes a rank pinned .* copies (\d+) bytes up and (\d+) bytes down", open(out).read())
if said:
    pinned, up, down = map(int, said.groups())
    bound = max(up, down) / float(both) * 1e3
    line += f", pinned {pinned / 1e9:.3f} GB, {up / 1e6:.1f} MB up and {down / 1e6:.1f} MB down an update: bound {bound:.2f} ms, "
    line += f"{bound / ms:.2f} of the time"
    if int(ranks) > 1:
        line += " (of one rank alone; ranks may share the way to the host)"
print(line)
END
done
