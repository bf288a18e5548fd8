#!/usr/bin/env bash
# Packs a build for a host with a GPU and little else: the program, libofsdp_cuda.so, the tests with the label gpu, the
# bench, and the libraries on this host that they load; without debug information.
#
#   cmake --preset cuda -DOFSDP_CUDA_ARCHITECTURES=90-real
#   cmake --build --preset cuda --target ofsdp_cuda tests_gpu bench_cuda_kernels bench_products bench_pinned_copies
#   tests/gpu/host/pack.sh            gives build/gpu/bundle.tar.xz, which run.sh unpacks in another copy of the tree
#
# Models in build/gpu/models (bench/weightless.py drop build/gpu/models build/peer_models/gpu_*.onnx) are packed too:
# the host then needs neither transformers nor the time for an export.
#
# OFSDP_BUILD  the build, build/cuda
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
build=${OFSDP_BUILD:-build/cuda}
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

files() {
  find "$build" -type f \( -name fsdp-run -o -name 'test_gpu_*' -o -name cuda_kernels -o -name products -o -name pinned_copies -o -name libofsdp_cuda.so -o -name libofsdp_openblas.so \
    -o -name libcounting_device.so -o -name 'libcuda_scaled_tanh.so' \) -not -path '*/CMakeFiles/*' -not -path '*/generated/*'
}

# Libraries that the GPU host has: libc and its compiler's libraries. Their versions must not be mixed.
own='/(ld-linux-x86-64|libc|libm|libpthread|libdl|librt|libstdc\+\+|libgcc_s)\.so'

mkdir -p "$stage/build/gpu/lib"
while read -r file; do
  mkdir -p "$stage/$(dirname "$file")"
  cp "$file" "$stage/$file"
  strip --strip-unneeded "$stage/$file"
  ldd "$file" | awk '$3 ~ /^\// { print $3 }' >>"$stage/needed"
done < <(files)
grep -vE "$own" "$stage/needed" | sort -u | while read -r library; do
  cp -L "$library" "$stage/build/gpu/lib/"
  strip --strip-unneeded "$stage/build/gpu/lib/$(basename "$library")"
done
rm "$stage/needed"
for library in libofsdp_cuda.so libofsdp_openblas.so; do # the program looks in the folder of its own library
  ln -s "../../../$build/$library" "$stage/build/gpu/lib/"
done
# Models for bench/gpu_vs_pytorch.sh, if they were exported and bench/weightless.py dropped their weights
[ ! -d build/gpu/models ] || cp -r build/gpu/models "$stage/build/peer_models"
pwd >"$stage/build/gpu/root" # tests know the paths that they were built with
mkdir -p build/gpu
tar -C "$stage" -cf - build | xz --lzma2=preset=3,dict=128MiB -T1 >build/gpu/bundle.tar.xz.part
mv build/gpu/bundle.tar.xz.part build/gpu/bundle.tar.xz
ls -l build/gpu/bundle.tar.xz
