#!/usr/bin/env bash
# Makes a release in build/release-VERSION: wheels, archive, Debian package, image recipe, notes and checksums. Then
# installs each in an empty folder without the source, and runs the demo. Publishes nothing.
#
#   scripts/release.sh [BUILD_FOLDER]          default: build/release, which must be built
#
# First set the version in library/onnx_fsdp.h, add the date to its section in CHANGELOG.md, and commit the tree. It
# makes the wheel with the CUDA library if build/cuda has been configured (`cmake --preset cuda`).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/release}

fail() { echo "release: $*" >&2; exit 1; }
step() { echo "== $* ($SECONDS s)"; }

version=$(sed -n 's/^#define ONNX_FSDP_VERSION_[A-Z]* //p' library/onnx_fsdp.h | paste -sd.)
out=$PWD/build/release-$version
[ -x "$build/fsdp-run" ] || fail "$build/fsdp-run: expected a built program, found none"
[ -z "$(git status --porcelain)" ] || fail "expected a committed tree, found changes"
[ "$("$build/fsdp-run" version | head -n 1)" = "fsdp-run $version" ] || fail "$build: expected version $version; build again"

step "notes of $version"
rm -rf "$out"
mkdir -p "$out"
awk -v from="## $version - " '/^## /{on = index($0, from) == 1} on' CHANGELOG.md >"$out/notes.md"
[ -s "$out/notes.md" ] || fail "CHANGELOG.md: expected a section '## $version - DATE', found none"

step "archive and Debian package"
scripts/package.sh "$build" >/dev/null
cp build/package/*.tar.gz build/package/*.deb "$out"

step wheels
scripts/wheel.sh "$build"
[ ! -e build/cuda/CMakeCache.txt ] || scripts/wheel.sh --cuda build/cuda
cp build/wheel/*.whl "$out"

step "image recipe"
# A release's image contains the archive, so it has the same files as the other packages.
cat >"$out/Dockerfile" <<END
FROM debian:12-slim
ADD onnx-fsdp-$version-linux-x86_64.tar.gz /opt
ENV PATH=/opt/onnx-fsdp-$version-linux-x86_64/bin:\$PATH
WORKDIR /work
ENTRYPOINT ["fsdp-run"]
END

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

# Runs a program's demo in an empty folder, with only the system's own paths.
demo() { # demo NAME PROGRAM
  mkdir "$scratch/demo-$1"
  (cd "$scratch/demo-$1" && env -i HOME="$scratch" PATH=/usr/bin:/bin "$2" demo >log 2>&1) ||
    { tail -n 5 "$scratch/demo-$1/log" >&2; fail "$1: the demo failed"; }
  echo "$1: the demo runs"
}

step "each of them in an empty folder"
tar xf "$out"/*.tar.gz
demo archive "$scratch/onnx-fsdp-$version-linux-x86_64/bin/fsdp-run"
dpkg-deb -x "$out"/*.deb root
demo package "$scratch/root/usr/bin/fsdp-run"
/usr/bin/python3 -m venv python 2>/dev/null || fail "expected python3-venv to check the wheel, found none"
python/bin/pip install -q --disable-pip-version-check "$out"/onnx_fsdp-"$version"-*.whl
demo wheel "$scratch/python/bin/fsdp-run"
python/bin/python -c "import onnx_fsdp; assert onnx_fsdp.__version__ == '$version', onnx_fsdp.__version__"

cd "$out"
sha256sum -- * >SHA256SUMS
step "release $version"
ls -l "$out"
