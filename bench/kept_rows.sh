#!/usr/bin/env bash
# A token model's training step when the loss keeps some labels, against the step that keeps all labels, in turn
# (A B A B ...): the saving from rows that are not multiplied (docs/reference/losses-and-metrics.md).
#
#   [KEPT=0.15] [BATCH=8] [TOKENS=128] [PAIRS=3] [STEPS=12] [RANKS=1] [DTYPE=float32] bench/kept_rows.sh MODEL.onnx INPUT CLASSES
#
# INPUT is the model's input [batch, tokens]. Tokens are random, the kept labels too. Run it on an idle machine.
set -euo pipefail
export OFSDP_RUN_DIR=none
cd "$(dirname "${BASH_SOURCE[0]}")/.."
model=${1:?a model} input=${2:?the name of its input} classes=${3:?the number of classes}
kept=${KEPT:-0.15} batch=${BATCH:-8} tokens=${TOKENS:-128} pairs=${PAIRS:-3} steps=${STEPS:-12} ranks=${RANKS:-1}
{ cmake --preset release && cmake --build --preset release --target fsdp-run; } >/dev/null

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
/usr/bin/python3 - "$folder" "$input" "$classes" "$kept" "$((batch * ranks * 4))" "$tokens" <<'PYTHON'
import array, os, random, sys

folder, name, classes, kept, rows, tokens = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])
rows, tokens = int(rows), int(tokens)


def write(path, values):
    header = "{'descr': '<i8', 'fortran_order': False, 'shape': (%d, %d)}" % (rows, tokens)
    header += " " * (117 - len(header)) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode())
        array.array("q", values).tofile(file)


random.seed(0)
ids = [random.randrange(int(classes)) for _ in range(rows * tokens)]
for case, share in ("some", kept), ("all", 1):
    os.mkdir(f"{folder}/{case}")
    write(f"{folder}/{case}/{name}.npy", ids)
    write(f"{folder}/{case}/labels.npy", [i if random.random() < share else -100 for i in ids])
PYTHON
field() { /usr/bin/python3 -c 'import json,sys; print(json.loads(sys.stdin.readlines()[-1])[sys.argv[1]])' "$1"; }
step() { # some|all
  build/release/fsdp-run "$model" --loss cross_entropy --data "$folder/$1" --labels labels --optimizer adamw --lr 1e-4 \
    --batch-size "$batch" --epochs 1000 --steps "$steps" --threads 1 --nproc-per-node "$ranks" \
    --param-dtype "${DTYPE:-float32}" --metrics "$folder/metrics" >/dev/null
  field median_step_ms <"$folder/metrics"
}
for ((i = 1; i <= pairs; ++i)); do
  a=$(step some) b=$(step all)
  awk -v i="$i" -v a="$a" -v b="$b" -v k="$kept" \
    'BEGIN{printf "pair %d: %s of the labels kept %.1f ms, all %.1f ms, ratio %.3f\n", i, k, a, b, a/b}'
done
