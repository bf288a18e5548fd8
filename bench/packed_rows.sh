#!/usr/bin/env bash
# Documents that share rows (--pack) against a padded row for each, in turn (A B A B ...): document tokens per row, and
# per second. Lengths are log-normal with mean 128 and at most TOKENS, tokens and labels random.
#
#   [BATCH=8] [TOKENS=512] [DOCUMENTS=512] [PAIRS=3] [STEPS=12] [RANKS=1] [DTYPE=float32] bench/packed_rows.sh MODEL.onnx INPUT CLASSES
#
# INPUT is the model's input [batch, tokens]; a second input `attention_mask` is given, if MASK=1. PAIRS=0 only counts
# tokens. Run it on an idle machine.
set -euo pipefail
export OFSDP_RUN_DIR=none
cd "$(dirname "${BASH_SOURCE[0]}")/.."
model=${1:?a model} input=${2:?the name of its input} classes=${3:?the number of classes}
batch=${BATCH:-8} tokens=${TOKENS:-512} documents=${DOCUMENTS:-512} pairs=${PAIRS:-3} steps=${STEPS:-12} ranks=${RANKS:-1}
{ cmake --preset release && cmake --build --preset release --target fsdp-run; } >/dev/null

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
/usr/bin/python3 - "$folder" "$input" "$classes" "$tokens" "$documents" "${MASK:-0}" <<'PYTHON'
import json, math, random, sys

folder, name = sys.argv[1:3]
classes, tokens, documents, mask = map(int, sys.argv[3:])
random.seed(0)
with open(f"{folder}/documents.jsonl", "w") as file:
    for _ in range(documents):
        length = min(tokens, max(1, int(random.lognormvariate(math.log(128) - 0.32, 0.8))))
        ids = [random.randrange(classes) for _ in range(length)]
        file.write(json.dumps({"ids": ids, "labels": ids[1:] + [-100]}) + "\n")
column = "{file: documents.jsonl, field: %s, pad_to: %d%s}"
with open(f"{folder}/data.yaml", "w") as file:
    file.write(f"train:\n  {name}: {column % ('ids', tokens, '')}\n")
    file.write("  attention_mask: auto\n" if mask else "")
    file.write(f"  labels: {column % ('labels', tokens, ', pad_value: -100')}\n")
PYTHON
run() { # STEPS [--pack N]
  build/release/fsdp-run "$model" --loss cross_entropy --data "$folder/data.yaml" --labels labels --lr 1e-4 \
    --batch-size "$batch" --epochs 1000 --steps "$@" --nproc-per-node "$ranks" --param-dtype "${DTYPE:-float32}" \
    --metrics "$folder/metrics"
}
field() { /usr/bin/python3 -c 'import json,sys; print(json.loads(sys.stdin.readlines()[-1])[sys.argv[1]])' "$1" <"$folder/metrics"; }
said=$(run 1 --pack "$tokens" | grep '^--pack')
echo "$said"
# "--pack 512: 512 documents in 129 rows; ..."
ratio=$(awk '{printf "%.3f", $3 / $6}' <<<"$said")
echo "tokens of documents a row: packed $ratio times those of padded rows"
for ((i = 1; i <= pairs; ++i)); do
  run "$steps" --pack "$tokens" >/dev/null
  a=$(field median_step_ms)
  run "$steps" >/dev/null
  b=$(field median_step_ms)
  awk -v i="$i" -v a="$a" -v b="$b" -v r="$ratio" \
    'BEGIN{printf "pair %d: a step of packed rows %.1f ms, of padded ones %.1f ms; tokens a second, ratio %.3f\n", i, a, b, r * b / a}'
done
