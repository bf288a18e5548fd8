#!/usr/bin/env bash
# fsdp-run's BERT-mini training step against PyTorch eager's, in turn (A B A B ...) in one run: one rank, one
# thread, batch 8, float32, AdamW. Prints both medians for every pair and the median ratio.
#
#   PEER_PYTHON=python bench/bert_vs_pytorch.sh [pairs]      default: 3
#
# PEER_PYTHON is a Python that has torch, transformers and onnxscript. Run it on an idle machine.
set -euo pipefail
export OFSDP_RUN_DIR=none
cd "$(dirname "${BASH_SOURCE[0]}")/.."
pairs=${1:-3}
python=${PEER_PYTHON:?set it to a Python that has torch, transformers and onnxscript}
model=build/peer_models/bert_mini.onnx
mkdir -p build/peer_models
[ -f "$model" ] || "$python" bench/pytorch_bert.py --export "$model" >/dev/null
{ cmake --preset release && cmake --build --preset release --target fsdp-run; } >/dev/null

metrics=$(mktemp)
trap 'rm -f "$metrics"' EXIT
median() { /usr/bin/python3 -c 'import json,sys; print(json.loads(sys.stdin.readlines()[-1])[sys.argv[1]])' "$1"; }
ours() {
  build/release/fsdp-run "$model" --loss cross_entropy --data synthetic --optimizer adamw --lr 1e-4 --batch-size 8 \
    --steps 11 --threads 1 --metrics "$metrics" >/dev/null
  median median_step_ms <"$metrics"
}

ratios=()
for ((i = 1; i <= pairs; ++i)); do
  a=$(ours)
  b=$("$python" bench/pytorch_bert.py | median median_ms)
  ratios+=("$(awk -v a="$a" -v b="$b" 'BEGIN{printf "%.4f", a/b}')")
  awk -v i="$i" -v a="$a" -v b="$b" 'BEGIN{printf "pair %d: fsdp-run %.1f ms, PyTorch eager %.1f ms, ratio %.3f\n", i, a, b, a/b}'
done
printf '%s\n' "${ratios[@]}" | sort -n |
  awk '{r[NR]=$1} END{printf "ratio fsdp-run / PyTorch eager: median %.3f, least %.3f, most %.3f\n", r[int((NR+1)/2)], r[1], r[NR]}'
