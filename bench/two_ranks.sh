#!/usr/bin/env bash
# A training step on two ranks with one thread each against another program's, in turn (A B A B ...) in one run; then
# against two independent runs with one rank at the same time, which shows the cost of sharding itself.
#
#   [DTYPE=bfloat16] [BATCH=8] [PAIRS=3] [STEPS=11] bench/two_ranks.sh MODEL.onnx [PEER COMMAND...]
#
# The peer prints, as its last line, JSON with its slowest rank's "median_ms" (PyTorch FSDP2 on the same model with the
# same batch a rank). Run it on an idle machine.
set -euo pipefail
export OFSDP_RUN_DIR=none
cd "$(dirname "${BASH_SOURCE[0]}")/.."
model=${1:?a model}
shift
dtype=${DTYPE:-float32} batch=${BATCH:-8} pairs=${PAIRS:-3} steps=${STEPS:-11}
{ cmake --preset release && cmake --build --preset release --target fsdp-run; } >/dev/null

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
field() { /usr/bin/python3 -c 'import json,sys; print(json.loads(sys.stdin.readlines()[-1])[sys.argv[1]])' "$1"; }
# ours RANKS NAME
ours() {
  build/release/fsdp-run "$model" --loss cross_entropy --data synthetic --optimizer adamw --lr 1e-4 --batch-size "$batch" \
    --steps "$steps" --threads 1 --nproc-per-node "$1" --param-dtype "$dtype" --metrics "$folder/$2" >/dev/null
  field median_step_ms <"$folder/$2"
}
ratio() { awk -v a="$1" -v b="$2" 'BEGIN{printf "%.3f", a/b}'; }

for ((i = 1; i <= pairs; ++i)); do
  a=$(ours 2 both)
  if [ $# -gt 0 ]; then
    b=$("$@" 2>/dev/null | field median_ms)
    echo "pair $i, $dtype: fsdp-run on 2 ranks $a ms, peer $b ms, ratio $(ratio "$a" "$b")"
  fi
  ours 1 first >"$folder/first.ms" &
  second=$(ours 1 second)
  wait $!
  slower=$(printf '%s\n' "$(cat "$folder/first.ms")" "$second" | sort -g | tail -1)
  echo "pair $i, $dtype: fsdp-run on 2 ranks $a ms, the slower of two single ranks $slower ms, ratio $(ratio "$a" "$slower")"
done
