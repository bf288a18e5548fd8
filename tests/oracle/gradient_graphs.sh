#!/usr/bin/env bash
# gradient_graphs.py on the tests' small models, with the onnx package that tests/nodes/run.sh installs. Called by
# CTest:
#
#   tests/oracle/gradient_graphs.sh FSDP_RUN [STORE]
#
# STORE is build/node_tests. Exit status 77, which CTest shows as skipped, if the package is missing.
set -euo pipefail
export OFSDP_RUN_DIR=none
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$1
store=${2:-$here/../../build/node_tests}
export PYTHONPATH=$store/python PYTHONDONTWRITEBYTECODE=1
if ! /usr/bin/python3 -c 'import onnx, numpy' 2>/dev/null; then
  echo "ops.gradient_graphs is skipped: no onnx package in $store/python (tests/nodes/run.sh installs it)"
  exit 77
fi
fixtures=$here/../fixtures
/usr/bin/python3 "$here/gradient_graphs.py" "$program" "$fixtures/mlp/model_with_loss.onnx" "$fixtures/mlp/data"
/usr/bin/python3 "$here/gradient_graphs.py" "$program" "$fixtures/mlp/model.onnx" "$fixtures/mlp/data" --loss cross_entropy
/usr/bin/python3 "$here/gradient_graphs.py" "$program" "$fixtures/norms/model.onnx" "$fixtures/norms/data" --loss cross_entropy
