#!/usr/bin/env bash
# A training step (one thread a rank, AdamW) and the least time that this machine allows: bench/floor.cpp, then in turn
# (A B A B ...) the products' floor at that moment and the step, their ratio, and the step's ratio to the sum of all
# floors: for products, for attention's products and for bytes. A peer's step follows ours.
#
#   [BATCH=8] [PAIRS=3] [STEPS=11] [RANKS=1] [DTYPE=float32] bench/floor.sh MODEL.onnx [PEER COMMAND...]
#
# The floor is for one rank in float32, whatever RANKS and DTYPE are. The peer (PyTorch eager, torch.compile or FSDP2,
# ONNX Runtime's trainer) prints JSON with "median_ms" as its last line. The products' floor divided by the peer's step
# is the lowest ratio to the peer that any float32 step can reach on this machine; the sum of all floors gives it for a
# step that moves no bytes while it multiplies.
#
# Only AVX2 on any machine: ONEDNN_MAX_CPU_ISA=AVX2 OFSDP_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell in the environment,
# and ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 for PyTorch. Run it on an idle machine.
set -euo pipefail
export OFSDP_RUN_DIR=none
cd "$(dirname "${BASH_SOURCE[0]}")/.."
model=${1:?a model}
shift
batch=${BATCH:-8} pairs=${PAIRS:-3} steps=${STEPS:-11} ranks=${RANKS:-1} dtype=${DTYPE:-float32}
{ cmake --preset release && cmake --build --preset release --target fsdp-run bench_floor; } >/dev/null

metrics=$(mktemp)
trap 'rm -f "$metrics"; kill "${floor_PID-}" 2>/dev/null || true' EXIT
sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sed -n 1p
coproc floor { exec build/release/bench/floor "$model" "$batch"; }
while IFS= read -r line <&"${floor[0]}"; do
  echo "$line"
  [[ $line != "floor of products"* ]] || break
done
rest=$(tr -dc '0-9. ' <<<"$line" | awk '{print $2 + $3}') # floors for bytes and for attention's products
floor_now() { echo >&"${floor[1]}" && IFS= read -r line <&"${floor[0]}" && line=${line%% ms} && echo "${line##* }"; }
field() { /usr/bin/python3 -c 'import json,sys; print(json.loads(sys.stdin.readlines()[-1])[sys.argv[1]])' "$1"; }
median() { tr ' ' '\n' | sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }
ratios=() whole=() peer_ratios=() bounds=() whole_bounds=()
over() { awk -v a="$1" -v b="$2" 'BEGIN{printf "%.3f", a/b}'; }
for ((i = 1; i <= pairs; ++i)); do
  f=$(floor_now)
  all=$(awk -v f="$f" -v r="$rest" 'BEGIN{print f + r}')
  build/release/fsdp-run "$model" --loss cross_entropy --data synthetic --optimizer adamw --lr 1e-4 --batch-size "$batch" \
    --steps "$steps" --threads 1 --nproc-per-node "$ranks" --param-dtype "$dtype" --metrics "$metrics" >/dev/null
  a=$(field median_step_ms <"$metrics")
  ratios+=("$(over "$a" "$f")")
  whole+=("$(over "$a" "$all")")
  printf 'pair %d: floor of products %.1f ms, step %.1f ms, ratio %s, to all floors %s' "$i" "$f" "$a" "${ratios[-1]}" "${whole[-1]}"
  if [ $# -gt 0 ]; then
    b=$("$@" 2>/dev/null | field median_ms)
    peer_ratios+=("$(over "$a" "$b")")
    bounds+=("$(over "$f" "$b")") whole_bounds+=("$(over "$all" "$b")")
    printf '; peer %.1f ms, ratio %s' "$b" "${peer_ratios[-1]}"
  fi
  echo
done
echo "step over the floor of its products, median of $pairs pairs: $(median <<<"${ratios[*]}")"
echo "step over the sum of all floors: $(median <<<"${whole[*]}")"
[ $# = 0 ] || echo "step over the peer's: $(median <<<"${peer_ratios[*]}"); the floor over the peer's: $(median <<<"${bounds[*]}");" \
  "the sum of all floors over the peer's: $(median <<<"${whole_bounds[*]}")"
