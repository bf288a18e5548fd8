#!/usr/bin/env bash
# ONNX Runtime's own trainer against fsdp-run, on the recorded artifacts. Called by CTest:
#
#   tests/artifacts/run.sh FSDP_RUN [FOLDER]
#
# onnxruntime-training 1.19.2, the last release, is installed once into FOLDER (build/ort_training) from PyPI: 340 MB.
# Exit status 77, which CTest shows as skipped, if it is unavailable; OFSDP_ORT_PYTHON names a Python that has it.
set -euo pipefail
export OFSDP_RUN_DIR=none
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
run=$1
store=${2:-$here/../../build/ort_training}
python=${OFSDP_ORT_PYTHON:-/usr/bin/python3}

skip() { echo "long.artifacts is skipped: $*"; exit 77; }

install() {
  mkdir -p "$store"
  exec 9>"$store/.lock"
  flock 9 # presets tested at the same time install only once
  local want
  want=$(sha256sum <"$here/requirements.txt")
  [ "$(cat "$store/.stamp" 2>/dev/null)" = "$want" ] && return
  rm -rf "$store/python" "$store/.stamp"
  "$python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
    --target "$store/python" -r "$here/requirements.txt" >"$store/pip.log" 2>&1 ||
    skip "onnxruntime-training cannot be installed: $(tail -n 1 "$store/pip.log")"
  echo "$want" >"$store/.stamp"
}

if [ -z "${OFSDP_ORT_PYTHON:-}" ]; then
  install
  export PYTHONPATH=$store/python
fi
export PYTHONDONTWRITEBYTECODE=1
"$python" -c 'from onnxruntime.capi._pybind_state import CheckpointState' 2>/dev/null ||
  skip "$python cannot import onnxruntime-training"
exec "$python" "$here/compare.py" "$run" "$here/../fixtures/artifacts"
