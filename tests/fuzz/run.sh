#!/usr/bin/env bash
# Fuzzes one reader with libFuzzer under AddressSanitizer and UBSan. Run by hand, after the release build:
#
#   tests/fuzz/run.sh TARGET [SECONDS] [BUILD]      TARGET: a file in this folder; 600 seconds, build/release
#
# Needs clang with libFuzzer (Debian: clang-14, libclang-rt-14-dev). Ends with exit status 0 and libFuzzer's last line,
# or with the failing input in the scratch folder that it names.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
target=$1
seconds=${2:-600}
build=${3:-$root/build/release}
clang=$(command -v clang++-14 || command -v clang++) || { echo "fuzz: clang++ is not there"; exit 77; }
scratch=$(mktemp -d)
prefix=$root/third_party/prefix
cd "$root"

# Only the readers have the sanitizers; the code below them is as built.
corpus=()
case $target in
  import_plan)
    sources=(tests/support/onnx_mutator.cpp importer/*.cpp importer/{file,normalize,graph,proto}/*.cpp)
    corpus=($(find tests/fixtures -name '*.onnx' -size -64k))
    ;;
  images)
    sources=(runtime/data/images/{.,codecs}/*.cpp runtime/data/{tar_index,byte_source}.cpp)
    corpus=(tests/fixtures/images/files/*)
    ;;
  data_files) sources=(runtime/data/*.cpp runtime/data/images/{.,codecs}/*.cpp) ;;
  parquet) # Arrow's reader as in the wheel
    sources=(runtime/data/parquet_rows.cpp runtime/data/parquet/library.cpp)
    corpus=(tests/fixtures/parquet/*)
    export LD_LIBRARY_PATH=$build
    ;;
  tokenizers)
    sources=(runtime/data/tokenizer/*.cpp)
    corpus=(tests/fixtures/tokenizers/*.json)
    ;;
  meeting) sources=(fsdp/comm/store/*.cpp runtime/cli/launch/node_messages.cpp) ;;
  manifest) sources=(fsdp/checkpoint/manifest.cpp) ;;
  configs)
    sources=(runtime/cli/config/*.cpp runtime/cli/config/foreign/*.cpp runtime/cli/options/*.cpp)
    corpus=(tests/fixtures/{accelerate,deepspeed}/*)
    ;;
  ort_checkpoint)
    sources=(importer/dialects/onnxruntime/ort_artifacts.cpp)
    corpus=(tests/fixtures/artifacts/*/checkpoint)
    ;;
  *) echo "fuzz: no target $target"; exit 2 ;;
esac
mapfile -t sources < <(ls "${sources[@]}" 2> /dev/null)
mapfile -t libraries < <(find "$build"/{importer,kernels,fsdp,runtime,plugins} -name 'libofsdp_*.a')

echo "fuzz: in $scratch"
for source in tests/fuzz/"$target".cpp "${sources[@]}"; do
  echo "$source"
done | xargs -P "$(nproc)" -I{} sh -c '"$0" -c "$2" -o "$1/$(echo "$2" | tr / _).o" -std=c++20 -g1 -O1 -fopenmp \
  -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -DONNX_ML=1 -DONNX_NAMESPACE=onnx -D__ONNX_NO_DOC_STRINGS -I. \
  -isystem "$3/include" -isystem "$3/local/include"' "$clang" "$scratch" {} "$prefix"
"$clang" -fsanitize=fuzzer,address,undefined "$scratch"/*.o -Wl,-z,muldefs -Wl,--start-group "${libraries[@]}" \
  -Wl,--end-group $(find -L "$prefix" -name libonnx.a -o -name libonnx_proto.a -o -name 'libdnnl.so') \
  -Wl,-rpath,"$(dirname "$(find -L "$prefix" -name libdnnl.so | head -1)")" \
  -lprotobuf -lsodium -lfmt -lyaml-cpp -lpcre2-8 -lutf8proc -lpng -ljpeg -ltbb -lz -lgomp -ldl -lpthread -o "$scratch/fuzz"

mkdir "$scratch/corpus"
for file in "${corpus[@]}"; do cp "$file" "$scratch/corpus/$(echo "$file" | tr / _)"; done
cd "$scratch"
# The libraries' containers are not instrumented.
export ASAN_OPTIONS=detect_container_overflow=0 OMP_WAIT_POLICY=passive
./fuzz -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=4096 -print_final_stats=1 corpus > log 2>&1 || {
  tail -n 40 log
  exit 1
}
grep -E "^stat::number_of_executed_units|^Done" log
rm -rf "$scratch"
