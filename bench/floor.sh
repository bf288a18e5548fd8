#!/usr/bin/env bash
# A training step (one rank, one thread, float32, AdamW) and the least that this machine allows it: bench/floor.cpp, then
# the step, timed, and its ratio to the floor of products. With a peer its step follows ours in turn (A B A B ...).
#
#   [BATCH=8] [PAIRS=3] [STEPS=11] bench/floor.sh MODEL.onnx [PEER COMMAND...]
#
# The peer prints, as its last line, JSON with "median_ms" (PyTorch eager, torch.compile or FSDP2, ONNX Runtime's trainer).
# AVX2 alone on any machine: ONEDNN_MAX_CPU_ISA=AVX2 OFSDP_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell in the environment, and
# ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 for PyTorch. Run it with nothing else running.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
model=${1:?a model}
shift
batch=${BATCH:-8} pairs=${PAIRS:-3} steps=${STEPS:-11}
{ cmake --preset release && cmake --build --preset release --target fsdp-run bench_floor; } >/dev/null

metrics=$(mktemp)
floors=$(mktemp)
trap 'rm -f "$metrics" "$floors"' EXIT
sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | sed -n 1p
build/release/bench/floor "$model" "$batch" | tee "$floors"
floor=$(sed -n 's/^floor of products \([0-9.]*\) ms.*/\1/p' "$floors")
field() { /usr/bin/python3 -c 'import json,sys; print(json.loads(sys.stdin.readlines()[-1])[sys.argv[1]])' "$1"; }
for ((i = 1; i <= pairs; ++i)); do
  build/release/fsdp-run "$model" --loss cross_entropy --data synthetic --optimizer adamw --lr 1e-4 --batch-size "$batch" \
    --steps "$steps" --threads 1 --metrics "$metrics" >/dev/null
  a=$(field median_step_ms <"$metrics")
  awk -v i="$i" -v a="$a" -v f="$floor" 'BEGIN{printf "pair %d: step %.1f ms, %.2f of the floor of its products", i, a, a/f}'
  if [ $# -gt 0 ]; then
    b=$("$@" 2>/dev/null | field median_ms)
    awk -v a="$a" -v b="$b" 'BEGIN{printf "; peer %.1f ms, ratio %.3f", b, a/b}'
  fi
  echo
done
