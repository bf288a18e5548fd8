#!/bin/sh
# Installs the header, builds the examples and a skeleton outside the tree against it, and checks them with this build's
# fsdp-run: outside.sh CMAKE SOURCE_DIR BUILD_DIR
set -eu
cmake=$1 source=$2 build=$3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$cmake" --install "$build" --component plugin --prefix "$folder/prefix"
cp -r "$source/plugins/examples" "$folder/examples"
"$cmake" -S "$folder/examples" -B "$folder/build" -G Ninja -DCMAKE_PREFIX_PATH="$folder/prefix"
"$cmake" --build "$folder/build"
for name in rms_norm fused_swiglu scaled_tanh lion adafactor huber_loss cuda_scaled_tanh; do
  if test $name = cuda_scaled_tanh && ! test -e "$folder/build/lib$name.so"; then continue; fi # there is no nvcc
  "$build/fsdp-run" check-plugin "$folder/build/lib$name.so"
done

"$build/fsdp-run" plan "$source/tests/fixtures/plugins/all/model.onnx" --make-plugin "$folder/skeleton"
"$cmake" -S "$folder/skeleton" -B "$folder/skeleton/build" -G Ninja -DCMAKE_PREFIX_PATH="$folder/prefix"
"$cmake" --build "$folder/skeleton/build"
status=0
"$build/fsdp-run" check-plugin "$folder/skeleton/build/libmy_operators.so" >"$folder/report" 2>&1 || status=$?
cat "$folder/report"
test "$status" = 1
for name in RmsNorm SwiGlu ScaledTanh; do
  grep -q "com.example.$name: forward is not written yet" "$folder/report"
done
