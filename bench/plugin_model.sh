#!/usr/bin/env bash
# A model with blocks of plug-in operators (com.example.RmsNorm and SwiGlu in plugins/examples) against the same model
# with built-in ones, in turn (A B A B ...) in one run: one rank, one thread, batch 256, width 512, float32, AdamW.
# Prints medians, bests and their ratios; then, with valgrind, the instructions in a step of each (batch 32), which do
# not depend on other users of the machine.
#
#   PEER_PYTHON=python bench/plugin_model.sh [pairs]      default: 3; PEER_PYTHON has onnx and numpy
set -euo pipefail
export OFSDP_RUN_DIR=none
cd "$(dirname "${BASH_SOURCE[0]}")/.."
pairs=${1:-3}
python=${PEER_PYTHON:?set it to a Python that has onnx and numpy}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" bench/plugin_model.py "$folder"
{ cmake --preset release && cmake --build --preset release --target fsdp-run rms_norm fused_swiglu; } >/dev/null
examples=build/release/plugins/examples

train() { # NAME STEPS BATCH METRICS [COMMAND...]
  local name=$1 steps=$2 batch=$3 metrics=$4 plugins=()
  shift 4
  [ "$name" = built_in ] || plugins=(--plugin $examples/librms_norm.so --plugin $examples/libfused_swiglu.so)
  OMP_WAIT_POLICY=passive "$@" build/release/fsdp-run "$folder/$name.onnx" "${plugins[@]}" --loss cross_entropy --data synthetic --optimizer adamw \
    --lr 1e-4 --batch-size "$batch" --steps "$steps" --threads 1 --metrics "$metrics" >/dev/null
}

for ((i = 1; i <= pairs; ++i)); do
  for name in plugin built_in; do train $name 30 256 "$folder/$name.$i.jsonl"; done
done
"$python" bench/plugin_model.py --compare "$folder"/plugin.*.jsonl -- "$folder"/built_in.*.jsonl

command -v valgrind >/dev/null || exit 0
instructions() { # NAME STEPS
  train "$1" "$2" 32 "$folder/count.jsonl" valgrind --tool=callgrind --callgrind-out-file=/dev/null --log-file="$folder/log"
  awk '/Collected/ {print $NF}' "$folder/log"
}
for name in plugin built_in; do
  printf '%s %s\n' $name $((($(instructions $name 5) - $(instructions $name 2)) / 3))
done | awk '{n[$1]=$2; printf "%s: %d instructions a step\n", $1, $2} END{printf "plug-in / built-in: %.4f\n", n["plugin"]/n["built_in"]}'
