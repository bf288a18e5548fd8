#!/usr/bin/env bash
# Everything that a host with a GPU has to say about the CUDA backend, in parts; a table is the last thing it prints, and
# its exit status is 0 when no line of the table says FAIL.
#
#   tests/gpu/host/run.sh [PART...]
#     checks     every test with the label gpu: a line each
#     training   the fixtures and samples: losses against PyTorch's or the CPU's, two runs and one without a graph the same bits
#     sanitizer  compute-sanitizer memcheck, racecheck, initcheck and synccheck on small runs
#     speed      bench/cuda_kernels, and the time of a step of the samples in float32 and bfloat16
#   Without PART: checks, training.
#
# It unpacks build/gpu/bundle.tar.xz (pack.sh) where there is no build, and else builds. Logs are in $OUT, or build/gpu/out.
# OFSDP_BUILD         the build, build/cuda
# OFSDP_ONLY          a regular expression that names of tests and runs contain
# OFSDP_CUDA_LIBRARY  another device library: with the emulated one (docs/cuda.md) this script runs without a GPU
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
export OFSDP_BUILD=${OFSDP_BUILD:-build/cuda}
bundle=build/gpu/bundle.tar.xz

if [ ! -x "$OFSDP_BUILD/fsdp-run" ] && [ -f "$bundle" ]; then
  tar -xJf "$bundle" || python3 -c "import tarfile; tarfile.open('$bundle').extractall('.')"
fi
if [ ! -x "$OFSDP_BUILD/fsdp-run" ]; then
  cmake --preset cuda -DOFSDP_CUDA_ARCHITECTURES="${OFSDP_CUDA_ARCHITECTURES:-90-real}"
  cmake --build --preset cuda -j "$(nproc)" --target ofsdp_cuda tests_gpu bench_cuda_kernels
fi

# The tree lies elsewhere than where the tests were built.
if [ -f build/gpu/root ]; then
  root=$(<build/gpu/root)
  if [ ! -e "$root" ]; then
    mkdir -p "$(dirname "$root")"
    ln -s "$PWD" "$root"
  fi
fi

# Ours that were packed, then NVIDIA's where the loader does not look: the toolkit's and those of Python's wheels.
paths=$PWD/build/gpu/lib
[ ! -d /usr/local/cuda/lib64 ] || paths+=:/usr/local/cuda/lib64
wheels=$(python3 -c 'import glob, site, sysconfig
roots = {sysconfig.get_path("purelib"), *site.getsitepackages()}
print(":".join(p for r in sorted(roots) for p in sorted(glob.glob(r + "/nvidia/*/lib"))))' 2>/dev/null || true)
export LD_LIBRARY_PATH=$paths${wheels:+:$wheels}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PATH=$PATH:/usr/local/cuda/bin OMP_WAIT_POLICY=passive
# Tests do not lie beside the library.
[ ! -f "$OFSDP_BUILD/libofsdp_cuda.so" ] || export OFSDP_CUDA_LIBRARY=${OFSDP_CUDA_LIBRARY:-$PWD/$OFSDP_BUILD/libofsdp_cuda.so}
exec python3 tests/gpu/host/run.py "$@"
