#!/usr/bin/env bash
# A newcomer's first ten minutes, from a wheel: install, demo, export of a Hugging Face BERT, prepare, doctor, training
# on two ranks in bfloat16, Ctrl-C, resume, prediction, and the weights back in the module. Every result is compared.
# Prints the machine's time for each step and fails if the sum exceeds ten minutes. PyTorch is installed before the
# clock starts.
#
#   tests/first_hour.sh WHEEL [PYTHON]     PYTHON: has torch, transformers, onnx and onnxruntime; none: a venv is made
#
# On a bare system: OFSDP_BARE_FILES=WHEEL tests/bare.sh "tests/first_hour.sh /root/files/NAME_OF_THE_WHEEL"
set -euo pipefail
wheel=$(realpath "$1")
python=${2:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
fail() { echo "first_hour: $*" >&2; exit 1; }

if [ -z "$python" ]; then
  if ! /usr/bin/python3 -m venv peers 2>/dev/null; then
    apt-get update -qq && apt-get install -qq -y python3-venv >/dev/null
    /usr/bin/python3 -m venv peers
  fi
  python=$folder/peers/bin/python
  "$python" -m pip install -q --disable-pip-version-check torch transformers onnx onnxscript onnxruntime
fi

began=$SECONDS last=$SECONDS
step() { echo "first_hour: $* ($((SECONDS - last)) s)"; last=$SECONDS; }

"$python" -m pip install -q --disable-pip-version-check --force-reinstall --no-deps "$wheel"
run=$(dirname "$python")/fsdp-run
[ -x "$run" ] || fail "expected the command fsdp-run beside $python, found none"
PATH=$(dirname "$python"):$PATH
step "the wheel is installed"

fsdp-run demo >demo.log || fail "demo: exit status $?"
grep -q "accuracy 0\.9" demo.log || fail "demo: expected an accuracy above 0.9, found none"
step "the demo has run"

cat >export.py <<'END'
import json, numpy, onnx_fsdp, torch, transformers
torch.manual_seed(1)
config = transformers.BertConfig(vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                                 intermediate_size=128, max_position_embeddings=64, num_labels=2)
model = transformers.BertForSequenceClassification(config)
random = numpy.random.default_rng(1)
ids = random.integers(5, 200, (1600, 16))
labels = random.integers(0, 2, 1600)
ids[:, 3] = numpy.where(labels == 1, 7, 8)  # the token by which a row is classified
lengths = numpy.where(numpy.arange(1600) % 4, random.integers(8, 17, 1600), 16)
mask = (numpy.arange(16) < lengths[:, None]).astype(numpy.int64)
ids *= mask
onnx_fsdp.export(model, "bert.onnx", {"input_ids": torch.tensor(ids[:2]), "attention_mask": torch.tensor(mask[:2])})
with open("rows.jsonl", "w") as file:
    for row, length, label in zip(ids, lengths, labels):
        print(json.dumps({"input_ids": row[:length].tolist(), "labels": int(label)}), file=file)
numpy.savez("expected.npz", input_ids=ids, attention_mask=mask, labels=labels)
torch.save(config, "config.pt")
END
"$python" export.py >export.log 2>&1 || { tail -n 3 export.log >&2; fail "export: exit status $?"; }
step "a BERT is exported"

fsdp-run prepare rows.jsonl bert.onnx >prepare.log || fail "prepare: exit status $?"
grep -v split rows.yaml >all.yaml
step "the data are described"

fsdp-run doctor bert.onnx --data rows.yaml --loss cross_entropy >doctor.log || { cat doctor.log >&2; fail "doctor: exit status $?"; }
! grep -qiE "lost|dropout is gone" doctor.log || { cat doctor.log >&2; fail "doctor: expected nothing lost by the export"; }
step "doctor has looked at it"

train=(bert.onnx --data rows.yaml --loss cross_entropy -n 2 --bf16 --batch-size 8 --epochs 6 --learning-rate 0.001)
fsdp-run "${train[@]}" --run-name whole >whole.log 2>&1 || { tail -n 3 whole.log >&2; fail "training: exit status $?"; }
for file in model.onnx config.yaml command.txt metrics.jsonl log.txt report.html; do
  [ -s "runs/whole/$file" ] || fail "runs/whole/$file: expected a file, found none"
done
step "it is trained"

# Without a separate job a script's background command ignores Ctrl-C.
set -m
fsdp-run "${train[@]}" --run-name cut >cut.log 2>cut.errors &
process=$!
until [ -s runs/cut/metrics.jsonl ]; do sleep 0.1; kill -0 $process || fail "training ended before Ctrl-C"; done
sleep 0.5
kill -INT -- -$process
status=0
wait $process || status=$?
set +m
[ $status = 130 ] || { cat cut.errors >&2; fail "Ctrl-C: expected exit status 130, found $status"; }
next=$(sed -n 's/.*to continue: //p' cut.errors)
[ -n "$next" ] || { cat cut.errors >&2; fail "Ctrl-C: expected a command to continue, found none"; }
eval "$next" >resumed.log 2>&1 || { tail -n 3 resumed.log >&2; fail "$next: exit status $?"; }
cmp runs/whole/model.onnx runs/cut/model.onnx || fail "expected the same bits after Ctrl-C and resume"
step "it is interrupted and continued, with the same bits"

fsdp-run predict runs/cut --data all.yaml -o scores.npy >predict.log || fail "predict: exit status $?"
fsdp-run export runs/cut/model.onnx --format safetensors -o weights.safetensors >back.log || fail "export: exit status $?"
cat >compare.py <<'END'
import glob, numpy, onnxruntime, safetensors.torch, torch, transformers
ours = numpy.load("scores.npy")
expected = numpy.load("expected.npz")
columns = {name: expected[name] for name in ("input_ids", "attention_mask")}
labels = expected["labels"]
model = transformers.BertForSequenceClassification(torch.load("config.pt", weights_only=False))
print(model.load_state_dict(safetensors.torch.load_file("weights.safetensors"), strict=True))
model.eval()
with torch.no_grad():
    theirs = model(**{name: torch.tensor(values) for name, values in columns.items()}).logits.numpy()
assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
assert numpy.abs(ours - theirs).max() < 1e-4, numpy.abs(ours - theirs).max()
form = (glob.glob("runs/cut/model.inference.onnx") or ["runs/cut/model.onnx"])[0]
deployed = onnxruntime.InferenceSession(form).run(None, columns)[0]
assert numpy.abs(deployed - theirs).max() < 1e-4, numpy.abs(deployed - theirs).max()
right = (ours.argmax(1) == labels).mean()
assert right > 0.95, right
print("right answers", right)
END
"$python" compare.py || fail "expected the module, ONNX Runtime and predict to agree"
step "predict, ONNX Runtime and the module agree"

spent=$((SECONDS - began))
echo "first_hour: all of it in $spent s"
[ $spent -le 600 ] || fail "expected at most 600 s"
