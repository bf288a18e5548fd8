#!/usr/bin/env bash
# Installs everything that the build needs on Debian 12, as root or with sudo. It is safe to run again: if nothing is
# missing, it takes well under a second and uses no network.
#
#   scripts/setup.sh                 Debian packages, then the third-party part
#   scripts/setup.sh --third-party   only the third-party part: no root needed (CMake calls this if it is missing)
#   scripts/setup.sh --aarch64       ONNX for aarch64, by the cross compiler (scripts/aarch64.sh brings it)
#   scripts/setup.sh --parquet       Arrow's reader for parquet files (CMake calls this; a build without it reads none)
#   scripts/setup.sh --cudnn-frontend  cuDNN headers for the CUDA library (CMake calls this for OFSDP_CUDA=ON)
#
# third_party/requirements.txt pins the third-party part by hash. Downloads go to third_party/dist. oneDNN is unpacked
# and ONNX is built into third_party/prefix, once for all presets.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tp=$root/third_party
python=/usr/bin/python3 # Debian's own, whatever other interpreters PATH has
unset PYTHONPATH        # with the one from `pip wheel`, which calls CMake, Python would not find pip

packages=(
  g++ cmake ninja-build ccache lld clang-format ca-certificates python3 python3-pip
  libprotobuf-dev protobuf-compiler zlib1g-dev
  libyaml-cpp-dev nlohmann-json3-dev libfmt-dev libsodium-dev libopenblas-openmp-dev libtbb-dev
  libpcre2-dev libutf8proc-dev
  libcurl4-openssl-dev           # its header, for files at addresses; optional
  libpng-dev libjpeg62-turbo-dev # images; optional
  libgtest-dev libgmock-dev libbenchmark-dev
  libopenmpi-dev openmpi-bin libmpich-dev mpich # libraries loaded at run time: fsdp-run links neither
  python3-numpy procps                          # tests of the Python package
  iproute2                                      # tests use network namespaces as hosts
)

say() { echo "setup: $*" >&2; }

install_packages() {
  local state missing=() p
  state=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
  for p in "${packages[@]}"; do
    grep -qxF "$p installed" <<<"$state" || missing+=("$p")
  done
  [ ${#missing[@]} = 0 ] && return
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { say "run as root (or install sudo); missing packages: ${missing[*]}"; exit 1; }
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
}

# True if third_party/dist has every pinned file with the right content.
have_downloads() {
  local sums pin
  sums=$(sha256sum "$tp"/dist/* 2>/dev/null) || return 1
  while IFS=: read -r _ pin; do
    grep -q "^$pin " <<<"$sums" || return 1
  done < <(grep -o 'sha256:[0-9a-f]*' "$tp/requirements.txt")
}

download() {
  have_downloads && return
  say "downloading ONNX and oneDNN (45 MB)"
  "$python" -m pip download -q --disable-pip-version-check --no-deps --require-hashes \
    -r "$tp/requirements.txt" -d "$tp/dist" >&2
}

install_onednn() {
  # Debian's pip adds "local" below the prefix, others do not: CMake looks in both.
  PIP_ROOT_USER_ACTION=ignore "$python" -m pip install -q --disable-pip-version-check --no-deps --no-index \
    --prefix "$tp/prefix" "$tp"/dist/onednn_*.whl >&2
}

build_onnx() {
  local src=$tp/prefix/src/onnx bld=$tp/prefix/src/build log=$tp/prefix/onnx-build.log launcher=
  say "building ONNX, once (about a minute on 2 cores)"
  mkdir -p "$src"
  tar -xzf "$tp"/dist/onnx-*.tar.gz -C "$src" --strip-components=1
  sed -i 's/cmake_minimum_required(VERSION 3.26)/cmake_minimum_required(VERSION 3.25)/' "$src/CMakeLists.txt"
  "$python" "$root/scripts/lazy_onnx.py" "$src" >&2
  command -v ccache >/dev/null && launcher=ccache
  export CCACHE_BASEDIR=$tp CCACHE_NOHASHDIR=1 # a second clone on this machine finds the objects of the first
  {
    # -O1 and one large source take half of the CPU time of -O3 and sources of 8 files: 82 s against 156 s. ONNX reads
    # models before training, so its speed shows nowhere. Texts about operators are left out.
    cmake -S "$src" -B "$bld" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER_LAUNCHER=$launcher \
      "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG -D__ONNX_NO_DOC_STRINGS" -DCMAKE_UNITY_BUILD_BATCH_SIZE=100 \
      -DCMAKE_INSTALL_PREFIX="$tp/prefix" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
      -DPython3_EXECUTABLE="$python" -DONNX_ML=ON -DONNX_BUILD_PYTHON=OFF -DONNX_INSTALL=ON \
      -DONNX_USE_PROTOBUF_SHARED_LIBS=ON -DONNX_USE_UNITY_BUILD=ON &&
      cmake --build "$bld" && cmake --install "$bld"
  } >"$log" 2>&1 || { tail -n 30 "$log" >&2; say "building ONNX failed; the whole log: $log"; exit 1; }
  rm -rf "$tp/prefix/src"
}

third_party() {
  exec 9<"$tp/requirements.txt"
  flock 9 # two builds that start together set up once
  local want stamp=$tp/prefix/.stamp
  # A new Debian package is no reason to build ONNX again.
  want=$({ cat "$tp/requirements.txt"; cat "$root/scripts/lazy_onnx.py"; declare -f install_onednn build_onnx; } | sha256sum)
  [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && return
  mkdir -p "$tp/dist"
  download
  rm -rf "$tp/prefix"
  mkdir -p "$tp/prefix"
  install_onednn
  build_onnx
  echo "$want" >"$stamp"
}

# Only ONNX: oneDNN has no wheel for aarch64. It uses the toolchain of the preset aarch64.
third_party_aarch64() {
  exec 9<"$tp/requirements.txt"
  flock 9
  local want stamp=$tp/aarch64/prefix/.stamp toolchain=$root/cmake/aarch64-linux-gnu.cmake
  want=$({ cat "$tp/requirements.txt" "$toolchain"; cat "$root/scripts/lazy_onnx.py"; declare -f build_onnx; } | sha256sum)
  [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && return
  mkdir -p "$tp/dist" "$tp/aarch64"
  download
  ln -sfn ../dist "$tp/aarch64/dist"
  rm -rf "$tp/aarch64/prefix"
  tp=$tp/aarch64
  CMAKE_TOOLCHAIN_FILE=$toolchain build_onnx
  echo "$want" >"$stamp"
}

# Installs only headers, from the wheel's include folder, with their licences. If the wheel is unavailable, the CUDA
# library is built without cuDNN.
cudnn_frontend() {
  local folder=$tp/cudnn_frontend stamp=$tp/cudnn_frontend/.stamp want
  exec 8<"$tp/cudnn_frontend.txt"
  flock 8
  want=$({ cat "$tp/cudnn_frontend.txt"; declare -f cudnn_frontend; } | sha256sum)
  [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && return
  say "downloading cudnn-frontend (12 MB)"
  rm -rf "$folder"
  mkdir -p "$folder"
  "$python" -m pip download -q --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
    --python-version 3.11 --platform manylinux_2_28_x86_64 -r "$tp/cudnn_frontend.txt" -d "$folder" >&2 || return
  "$python" -m zipfile -e "$folder"/*.whl "$folder/wheel"
  mv "$folder"/wheel/include "$folder"/wheel/*.dist-info/licenses "$folder"
  rm -rf "$folder/wheel" "$folder"/*.whl
  echo "$want" >"$stamp"
}

# Installs the headers and two libraries from pyarrow's wheel; they need no other part of it.
parquet() {
  local folder=$tp/pyarrow stamp=$tp/pyarrow/.stamp want
  exec 7<"$tp/pyarrow.txt"
  flock 7
  want=$({ cat "$tp/pyarrow.txt"; declare -f parquet; } | sha256sum)
  [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && return
  say "downloading pyarrow (55 MB)"
  rm -rf "$folder"
  mkdir -p "$folder"
  "$python" -m pip download -q --disable-pip-version-check --retries 1 --no-deps --require-hashes --only-binary=:all: \
    --python-version 3.11 --platform manylinux_2_28_x86_64 -r "$tp/pyarrow.txt" -d "$folder" >&2 || return
  "$python" -m zipfile -e "$folder"/*.whl "$folder/wheel"
  mkdir "$folder/lib"
  mv "$folder"/wheel/pyarrow/lib{arrow,parquet}.so.* "$folder/lib"
  mv "$folder"/wheel/pyarrow/include "$folder"
  rm -rf "$folder/wheel" "$folder"/*.whl
  echo "$want" >"$stamp"
}

if [ "${1:-}" = --parquet ]; then
  parquet
  exit
fi
if [ "${1:-}" = --cudnn-frontend ]; then
  cudnn_frontend
  exit
fi
if [ "${1:-}" = --aarch64 ]; then
  third_party_aarch64
  exit
fi
[ "${1:-}" = --third-party ] || install_packages
third_party
