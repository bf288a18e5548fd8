#!/usr/bin/env bash
# Both commands of the README on a bare Debian 12, from nothing. Bootstraps one, copies a clean clone of the last commit
# in, and runs `samples/mnist/run.sh` and `tests/run.sh` there. Prints wall and processor time for each. Removes the
# system at the end, even after a failure. Run it before a release (CONTRIBUTING.md). Needs root, debootstrap and git.
#
#   tests/bare.sh                            both commands
#   tests/bare.sh "samples/mnist/run.sh"     only these commands, each one argument
#
#   OFSDP_BARE_DIR=FOLDER      where the system is made (4 GB; default: TMPDIR or /tmp)
#   OFSDP_BARE_FILES="FILE..."  host files that the system gets in /root/files
#   OFSDP_BARE_CCACHE=FOLDER   a ccache folder on the host, to build in less time; the times then say less
#
# Debian's mirror, proxies, certificates and pip's settings come from this host.
set -euo pipefail
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
suite=bookworm

say() { echo "bare: $*" >&2; }
fail() { say "$*"; exit 1; }

# The host's source files that name a suite of Debian 12; a bare system has no other repositories.
sources() {
  grep -lsE "(^Suites:.* |^deb .* )$suite(-updates|-security)?( |$)" \
    /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} || true
}

# The mirror from which the host has the suite; empty: debootstrap's default.
mirror() {
  local files
  mapfile -t files < <(sources)
  [ ${#files[@]} = 0 ] && return
  awk -v suite="$suite" '
    /^deb / { for (i = 3; i <= NF; i++) if ($i == suite) { print $(i - 1); exit } }
    /^URIs:/ { uri = $2 }
    /^Suites:/ { for (i = 2; i <= NF; i++) if ($i == suite) found = 1 }
    /^$/ { uri = ""; found = 0 }
    uri != "" && found { print uri; exit }' "${files[@]}"
}

bootstrap() {
  local from proxy=
  from=$(mirror)
  eval "$(apt-config shell proxy Acquire::http::Proxy)"
  [ -z "$proxy" ] || export http_proxy=$proxy
  debootstrap --variant=minbase "$suite" "$root" ${from:+"$from"} >"$root.log" 2>&1 ||
    { tail -n 20 "$root.log" >&2; fail "debootstrap failed"; }
}

# Copies settings for mirrors, proxies and certificates; no package from the host.
copy_settings() {
  local files
  mapfile -t files < <(sources)
  if [ ${#files[@]} -gt 0 ]; then
    rm -f "$root/etc/apt/sources.list"
    cp --parents "${files[@]}" "$root"
  fi
  apt-config dump Acquire >"$root/etc/apt/apt.conf.d/90host"
  for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
    [ ! -e "$file" ] || cp -L "$file" "$root$file"
  done
  [ ! -d /usr/local/share/ca-certificates ] || cp -rL /usr/local/share/ca-certificates "$root/usr/local/share/"
}

mount_all() {
  mount -t proc proc "$root/proc"
  mkdir -p "$root/dev/pts" "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$root/dev/pts"
  mount -t tmpfs tmpfs "$root/dev/shm"
  [ -n "${OFSDP_BARE_CCACHE:-}" ] || return 0
  mkdir -p "$root/ccache"
  mount --bind "$OFSDP_BARE_CCACHE" "$root/ccache"
}

# Runs a command in the new system, and prints the time.
inside() {
  local variables=(HOME=/root TERM="${TERM:-dumb}" LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin) name
  for name in $(compgen -e | grep -E '^(PIP_.*|(https?|ftp|no|all)_proxy|(HTTPS?|FTP|NO|ALL)_PROXY)$'); do
    variables+=("$name=${!name}")
  done
  [ -z "${OFSDP_BARE_CCACHE:-}" ] || variables+=(CCACHE_DIR=/ccache)
  local TIMEFORMAT="bare: $1: %R s, processors %U s and %S s of the kernel"
  say "$1"
  time chroot "$root" /usr/bin/env -i "${variables[@]}" bash -c "cd /root/onnx-fsdp && $1"
}

# In separate namespaces: at the end all mounts and processes there are gone.
run_inside() {
  root=$1
  shift
  mount_all
  for command in "$@"; do inside "$command" || fail "$command failed"; done
}

if [ "${OFSDP_BARE_ROOT:-}" != "" ]; then
  run_inside "$OFSDP_BARE_ROOT" "$@"
  exit
fi
[ "$(id -u)" = 0 ] || fail "expected root, which chroot needs"
for program in debootstrap git unshare; do
  command -v $program >/dev/null || fail "expected $program, found none"
done
[ $# -gt 0 ] || set -- samples/mnist/run.sh tests/run.sh
folder=$(mktemp -d "${OFSDP_BARE_DIR:-${TMPDIR:-/tmp}}/ofsdp-bare.XXXXXX")
inside=
end() { # all processes inside end with their namespace
  [ -z "$inside" ] || { kill -KILL "$inside" && wait "$inside"; } 2>/dev/null || true
  rm -rf --one-file-system "$folder"
}
trap end EXIT
trap 'exit 130' INT TERM HUP
root=$folder/root
mkdir "$root"
say "Debian 12 in $root"
bootstrap
copy_settings
git clone -q --no-hardlinks "$source" "$root/root/onnx-fsdp"
mkdir "$root/root/files"
for file in ${OFSDP_BARE_FILES:-}; do cp "$file" "$root/root/files"; done
OFSDP_BARE_ROOT=$root unshare --mount --pid --fork --kill-child "$0" "$@" &
inside=$!
status=0
wait "$inside" || status=$?
inside=
[ $status = 0 ] || fail "ended with status $status"
say "all of it passed"
