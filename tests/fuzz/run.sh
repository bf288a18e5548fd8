#!/usr/bin/env bash
# Fuzzes the reader of ONNX Runtime's checkpoints under AddressSanitizer. Run by hand, after the release build:
#
#   tests/fuzz/run.sh [SECONDS] [BUILD]      600 seconds, build/release
#
# Needs clang with libFuzzer (Debian: clang-14, libclang-rt-14-dev). Ends with exit status 0 and the last line of
# libFuzzer's, or with the input that failed in the scratch folder that it names.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
seconds=${1:-600}
build=${2:-$root/build/release}
clang=$(command -v clang++-14 || command -v clang++) || { echo "fuzz: clang++ is not there"; exit 77; }
scratch=$(mktemp -d)
prefix=$root/third_party/prefix

# The reader itself with the sanitizer; what it stands on as it was built.
libraries=("$build"/importer/libofsdp_importer.a "$build"/kernels/libofsdp_kernels.a)
"$clang" -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
  -DFMT_HEADER_ONLY -DONNX_ML=1 -DONNX_NAMESPACE=onnx -I"$root" -isystem "$prefix/include" \
  "$root"/tests/fuzz/ort_checkpoint.cpp "$root"/importer/dialects/onnxruntime/{ort_checkpoint,flat_buffer}.cpp \
  "${libraries[@]}" $(find -L "$prefix" -name 'libonnx.a' -o -name 'libonnx_proto.a') -lprotobuf -lfmt -o "$scratch/fuzz"

mkdir "$scratch/corpus"
for file in "$root"/tests/fixtures/artifacts/*/checkpoint; do
  cp "$file" "$scratch/corpus/$(basename "$(dirname "$file")")"
done
cd "$scratch"
echo "fuzz: in $scratch"
./fuzz -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=2048 -print_final_stats=1 corpus >log 2>&1 || {
  tail -n 40 log
  exit 1
}
grep -E "^stat::number_of_executed_units|^Done" log
rm -rf "$scratch"
