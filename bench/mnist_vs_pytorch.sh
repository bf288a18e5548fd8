#!/usr/bin/env bash
# fsdp-run's MNIST step against PyTorch's, measured in turn (A B A B ...) in one run: two ranks, one thread a rank,
# batch 64 a rank, float32, AdamW, random images. Prints both medians for every pair and the median ratio.
#
#   bench/mnist_vs_pytorch.sh [eager|ddp|fsdp1|fsdp2] [pairs]      default: fsdp1 5
#
# PyTorch comes from PyPI into build/peer (once); set PEER_PYTHON to use an environment that has torch already.
# Run it on an idle machine: the machine's speed drifts, so only the ratio means something.
set -euo pipefail
export OFSDP_RUN_DIR=none
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kind=${1:-fsdp1}
pairs=${2:-5}
world=2
[ "$kind" != eager ] || world=1

python=${PEER_PYTHON:-build/peer/bin/python}
if ! "$python" -c 'import torch' 2>/dev/null; then
  /usr/bin/python3 -m venv build/peer 2>/dev/null || { echo "needs python3-venv (apt-get install python3-venv)" >&2; exit 1; }
  build/peer/bin/pip install -q torch==2.15.0 numpy
  python=build/peer/bin/python
fi
{ cmake --preset release && cmake --build --preset release --target fsdp-run; } >/dev/null

metrics=$(mktemp)
trap 'rm -f "$metrics"' EXIT
ours() {
  build/release/fsdp-run samples/mnist/mnist.onnx --loss nll --prediction logits --data synthetic --optimizer adamw \
    --lr 1e-4 --batch-size 64 --steps 35 --nproc-per-node "$world" --threads 1 --strategy full_shard \
    --metrics "$metrics" >/dev/null
  /usr/bin/python3 -c 'import json,sys; print(json.loads(open(sys.argv[1]).readlines()[-1])["median_step_ms"])' "$metrics"
}
theirs() {
  "$python" bench/pytorch_mnist.py --kind "$kind" --world "$world" |
    /usr/bin/python3 -c 'import json,sys; print(json.loads(sys.stdin.readlines()[-1])["median_ms"])'
}

ratios=()
for ((i = 1; i <= pairs; ++i)); do
  a=$(ours)
  b=$(theirs)
  ratios+=("$(awk -v a="$a" -v b="$b" 'BEGIN{printf "%.4f", a/b}')")
  awk -v i="$i" -v a="$a" -v b="$b" -v k="$kind" \
    'BEGIN{printf "pair %d: fsdp-run %.2f ms, %s %.2f ms, ratio %.3f\n", i, a, k, b, a/b}'
done
printf '%s\n' "${ratios[@]}" | sort -n |
  awk -v k="$kind" '{r[NR]=$1} END{printf "ratio fsdp-run / %s: median %.3f, least %.3f, most %.3f\n", k, r[int((NR+1)/2)], r[1], r[NR]}'
