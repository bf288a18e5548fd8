#!/usr/bin/env bash
# Builds for 64-bit Arm on an x86-64 Debian 12 (root or sudo) and runs the tests that qemu-user can run
# (docs/internals/aarch64.md).
#
#   scripts/aarch64.sh                     all of it: packages, fsdp-run and tests, the labels unit and ops
#   scripts/aarch64.sh --setup             only the cross compiler, qemu-user, arm64 libraries and ONNX
#   scripts/aarch64.sh -R ops.conformance  some of the tests, with ctest's options, after the build
#
# The arm64 packages are unpacked into third_party/aarch64/sysroot: this machine's own packages stay as they are.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tp=$root/third_party/aarch64
tools=(g++-aarch64-linux-gnu qemu-user-static)
# Includes the C library: the compiler looks for it in the sysroot.
libraries=(
  libc6-dev libstdc++6 libgcc-s1 libgomp1
  zlib1g-dev libprotobuf-dev libyaml-cpp-dev nlohmann-json3-dev libfmt-dev libsodium-dev libopenblas-openmp-dev libtbb-dev
  libpcre2-dev libutf8proc-dev
  libpng-dev libjpeg62-turbo-dev # images; without them a build cannot read images
  libgtest-dev libgmock-dev libbenchmark-dev
)

say() { echo "aarch64: $*" >&2; }

install_tools() {
  command -v aarch64-linux-gnu-g++ qemu-aarch64-static >/dev/null && return
  local as_root=()
  [ "$(id -u)" = 0 ] || as_root=(sudo)
  say "installing ${tools[*]}"
  "${as_root[@]}" apt-get update -qq >&2
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${tools[@]}" >&2
}

# A configuration of apt for another architecture, with no installed package: apt then names every package that the
# libraries need. It uses this machine's package sources.
write_apt_configuration() {
  local mirror
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Codename: bookworm' 'Component: main' | head -n 1)
  [ -n "$mirror" ] || { say "apt: expected a source of Debian 12 (bookworm main), found none"; exit 1; }
  mkdir -p "$tp"/apt/{lists/partial,cache/archives/partial,etc/preferences.d,etc/apt.conf.d}
  : >"$tp/apt/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main" \
    >"$tp/apt/etc/sources.list"
  cat >"$tp/apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "root";
Dir::State "$tp/apt";
Dir::State::status "$tp/apt/status";
Dir::State::lists "$tp/apt/lists";
Dir::Cache "$tp/apt/cache";
Dir::Etc "$tp/apt/etc";
Dir::Etc::sourceparts "-";
END
}

unpack_libraries() {
  local want stamp=$tp/sysroot/.stamp deb link target
  want=$({ echo "${libraries[@]}"; declare -f unpack_libraries; } | sha256sum)
  [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && return
  say "downloading and unpacking arm64 packages (40 MB)"
  write_apt_configuration
  apt-get -qq -c "$tp/apt/apt.conf" update >&2
  apt-get -qq -c "$tp/apt/apt.conf" install -y --no-install-recommends --download-only "${libraries[@]}" >&2
  rm -rf "$tp/sysroot"
  mkdir -p "$tp/sysroot"
  for deb in "$tp"/apt/cache/archives/*.deb; do dpkg-deb -x "$deb" "$tp/sysroot"; done
  # Absolute links would leave the sysroot.
  while IFS= read -r link; do
    target=$(readlink "$link")
    ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$tp/sysroot$target")" "$link"
  done < <(find "$tp/sysroot" -type l -lname '/*')
  rm -rf "$tp/apt"
  echo "$want" >"$stamp"
}

"$root/scripts/setup.sh"
install_tools
unpack_libraries
"$root/scripts/setup.sh" --aarch64
[ "${1:-}" = --setup ] && exit
cd "$root"
cmake --preset aarch64
cmake --build --preset aarch64 --target fsdp-run test_unit test_ops
# Tests of the CUDA library are separate programs, and are not for this processor.
[ $# = 0 ] && set -- -L '^(unit|ops)$' -E '^unit[.](cuda_.*|nccl|chain_source)$'
ctest --preset aarch64 "$@"
