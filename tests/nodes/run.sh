#!/usr/bin/env bash
# ONNX's backend node tests against the table expected.txt. Called by CTest:
#
#   tests/nodes/run.sh NODE_RUNNER [FOLDER]
#
# The tests are generated once (10 seconds) into FOLDER (build/node_tests) with the packages in requirements.txt, which
# come from PyPI. Exit status 77, which CTest shows as skipped, if they are unavailable; OFSDP_NODE_TESTS names a folder
# with existing tests.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
runner=$1
store=${2:-$here/../../build/node_tests}
python=/usr/bin/python3

skip() { echo "ops.nodes is skipped: $*"; exit 77; }

generate() {
  mkdir -p "$store"
  exec 9>"$store/.lock"
  flock 9 # presets tested at the same time generate only once
  local want
  want=$(cat "$here/requirements.txt" "$here/generate.py" | sha256sum)
  [ "$(cat "$store/.stamp" 2>/dev/null)" = "$want" ] && return
  rm -rf "$store/python" "$store/cases" "$store/.stamp"
  "$python" -m pip install -q --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
    --target "$store/python" -r "$here/requirements.txt" >"$store/pip.log" 2>&1 ||
    skip "the packages that generate the node tests cannot be installed: $(tail -n 1 "$store/pip.log")"
  PYTHONPATH=$store/python PYTHONDONTWRITEBYTECODE=1 "$python" "$here/generate.py" "$store/cases" >"$store/generate.log" 2>&1 ||
    skip "the node tests cannot be generated: $(tail -n 1 "$store/generate.log")"
  echo "$want" >"$store/.stamp"
}

tests=${OFSDP_NODE_TESTS:-}
if [ -z "$tests" ]; then
  generate
  tests=$store/cases/node
fi
[ -d "$tests" ] || skip "no node tests at $tests"
exec "$runner" --expected "$here/expected.txt" "$tests"
