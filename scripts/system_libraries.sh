#!/usr/bin/env bash
# Copies into ROOT/ the system libraries that a tree from scripts/package.sh needs, and makes the folders that programs
# expect.
#
#   scripts/system_libraries.sh ROOT      with the tree in ROOT/usr
set -euo pipefail
root=$1
mkdir -p "$root"/{etc,work}
mkdir -p -m 1777 "$root/tmp"
ldd "$root"/usr/lib/lib{onnx_fsdp.so.0,ofsdp_openblas.so} | grep -o ' /lib[^ ]*' | while read -r file; do
  install -D "$(realpath "$file")" "$root/usr/lib/$(basename "$file")"
done
install -D "$(realpath /lib64/ld-linux-x86-64.so.2)" "$root/lib64/ld-linux-x86-64.so.2"
