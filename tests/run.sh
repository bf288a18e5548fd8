#!/usr/bin/env bash
# All checks of a change, on a bare Debian 12 too: setup, format, the release build with its tests, the kernel tests and
# bit tests again with only AVX2, and the sanitizer build with the tests that need no real command. The labels `unit`
# and `ranks` run only with sanitizers: `ops` and `procs` cover optimized code. Fails when any check fails.
#
#   tests/run.sh [ctest arguments]      e.g. tests/run.sh -R unit.shape
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=$(nproc)
allow_none=() # a filter may leave a label without tests; without a filter that is an error
[ $# = 0 ] || allow_none=(--no-tests=ignore)

step() { echo "== $* ($SECONDS s)"; }

step setup
scripts/setup.sh

step format
find kernels importer fsdp plugins runtime library bench tests -regex '.*\.\(h\|cpp\|cu\|cuh\)' -print0 |
  xargs -0 -r clang-format --dry-run -Werror --ferror-limit=3

build() {
  step "build $1"
  cmake --preset "$1" -DOFSDP_CUDA_ARCHITECTURES="${OFSDP_CUDA_ARCHITECTURES:-}" >/dev/null
  cmake --build --preset "$1" -j "$jobs" "${@:2}"
}

run_tests() {
  ctest --preset "$1" -j "$jobs" "${@:2}" "${allow_none[@]}"
}

if [ $# = 0 ]; then
  build release --target tests_optimized
  # Many tests wait more than they compute: for ranks that die, hosts that do not answer. The compiler fills the gaps,
  # with low priority.
  beside=$(mktemp)
  # `|| true`: a build that has ended cannot be killed, and a trap that fails makes the whole run fail.
  trap 'kill "$dev_build" 2>/dev/null || true; rm -f "$beside"' EXIT
  { renice -n 19 -p "$BASHPID" && build dev --target tests_in_process; } >"$beside" 2>&1 &
  dev_build=$!
  step "test release, beside the build of dev"
  run_tests release -LE '^(long|unit|ranks)$'
else
  build release
  step "test release"
  run_tests release -LE '^long$' "$@"
  build dev --target tests_in_process
fi

# A processor without AVX-512 has just run these kernels.
if [ $# = 0 ] && grep -qw avx512f /proc/cpuinfo; then
  step "test release as a processor without AVX-512 runs it: oneDNN's kernels, OpenBLAS's and our own"
  ONEDNN_MAX_CPU_ISA=AVX2 OFSDP_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell \
    run_tests release -R '^(ops[.].*|procs[.](trajectory|same_bits|allocation))$'
fi

# With nvcc: checks that the CUDA library compiles, links and loads; for one architecture, since each costs minutes.
nvcc=$(command -v "${CUDACXX:-nvcc}" || command -v /usr/local/cuda/bin/nvcc || true)
if [ -n "$nvcc" ] && [ $# = 0 ]; then
  export OFSDP_CUDA_ARCHITECTURES=${OFSDP_CUDA_ARCHITECTURES:-90-real}
  build cuda --target ofsdp_cuda tests_cuda bench_cuda_kernels bench_products
  step "test gpu: skipped by name where there is none"
  OFSDP_CUDA_LIBRARY=$PWD/build/cuda/libofsdp_cuda.so run_tests release -L '^gpu$'
  step "test cuda: what nvcc made of the kernels, plans of cuDNN"
  run_tests cuda -R '^unit[.](ptx|cudnn_plans)$' # cuDNN's headers may be missing
fi

if [ $# = 0 ]; then
  wait "$dev_build" || { cat "$beside"; exit 1; }
fi
step "test dev: AddressSanitizer, UndefinedBehaviorSanitizer"
run_tests dev -L '^(unit|ops|ranks)$' "$@"
step "all checks passed"
