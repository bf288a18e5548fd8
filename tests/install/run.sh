#!/usr/bin/env bash
# `cmake --install` into a scratch prefix, which then moves: the installed files, and samples/library/train.c built
# against it by CMake and by pkg-config, with the losses of the same program in the build folder. The Python package on
# the component runtime, as `pip wheel` lays it out, finds library and program.
#
#   run.sh SOURCE_FOLDER BUILD_FOLDER PROGRAM_OF_THE_SAMPLE
set -euo pipefail
source=$1 build=$2 sample=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() { echo "install: $*" >&2; exit 1; }

cmake --install "$build" --strip --prefix "$scratch/before" >/dev/null
mv "$scratch/before" "$scratch/prefix"
cd "$scratch"
for file in bin/fsdp-run lib/libonnx_fsdp.so.0 lib/libonnx_fsdp.so lib/libofsdp_openblas.so include/onnx_fsdp.h include/ofsdp_plugin.h \
  lib/cmake/OnnxFsdp/OnnxFsdpConfig.cmake lib/cmake/ofsdp_plugin/ofsdp_plugin-config.cmake lib/pkgconfig/onnx_fsdp.pc \
  share/man/man1/fsdp-run.1 share/bash-completion/completions/fsdp-run share/zsh/site-functions/_fsdp-run \
  share/fish/vendor_completions.d/fsdp-run.fish share/onnx-fsdp/samples/library/train.c; do
  [ -s "prefix/$file" ] || fail "expected the file $file"
done
! readelf -SW prefix/lib/libonnx_fsdp.so.0 | grep -q debug_line || fail "libonnx_fsdp.so.0: expected no debug information"

# The loader finds every library, and none in the source or build folder.
loaded=$(ldd prefix/lib/libonnx_fsdp.so.0 prefix/lib/libofsdp_openblas.so)
! grep -E "not found|$source" <<<"$loaded" || fail "expected libraries of the prefix and the system"

model=$source/samples/mnist/mnist.onnx
train() { "$1" "$model" out.onnx | grep '^step' >"$2"; }
train "$sample" expected
[ "$(wc -l <expected)" = 20 ] || fail "expected 20 steps of $sample"

cp -r "$source/python" packages
cmake --install "$build" --strip --prefix packages/onnx_fsdp --component runtime >/dev/null
env -u OFSDP_LIBRARY PYTHONPATH=packages /usr/bin/python3 - "$model" <<'END'
import sys, onnx_fsdp
assert onnx_fsdp.train(sys.argv[1], data="synthetic", loss="cross_entropy", steps=2).end["steps"] == 2
END

mkdir by_cmake
cp prefix/share/onnx-fsdp/samples/library/train.c by_cmake/
cat >by_cmake/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.16)
project(by_cmake C)
find_package(OnnxFsdp 0.3 REQUIRED)
add_executable(train train.c)
target_link_libraries(train OnnxFsdp::onnx_fsdp)
END
cmake -S by_cmake -B by_cmake/build -G Ninja -DCMAKE_PREFIX_PATH="$scratch/prefix" >/dev/null
cmake --build by_cmake/build >/dev/null
train by_cmake/build/train by_cmake/losses
cmp expected by_cmake/losses

command -v pkg-config >/dev/null || { echo "no pkg-config: its half is skipped"; exit 0; }
export PKG_CONFIG_PATH=$scratch/prefix/lib/pkgconfig
version=$(sed -n 's/^#define ONNX_FSDP_VERSION_[A-Z]* //p' "$source/library/onnx_fsdp.h" | paste -sd.)
[ "$(pkg-config --modversion onnx_fsdp)" = "$version" ] || fail "onnx_fsdp.pc: expected version $version"
read -ra flags <<<"$(pkg-config --cflags --libs onnx_fsdp)"
cc by_cmake/train.c "${flags[@]}" -Wl,-rpath,"$scratch/prefix/lib" -o train
train ./train losses
cmp expected losses
