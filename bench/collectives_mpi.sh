#!/usr/bin/env bash
# The reduce-scatter between ranks on one host next to plain MPI_Reduce_scatter_block, in turn (ours, Open MPI's,
# MPICH's, ours, ...) in one run. Ranks that mpirun starts on one host share memory here and use no MPI
# (docs/internals/ranks.md).
#
#   [RANKS=2] [PAIRS=3] [ROUNDS=50] bench/collectives_mpi.sh [MEGABYTES OF A SLOT (16)]...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ranks=${RANKS:-2} pairs=${PAIRS:-3} rounds=${ROUNDS:-50}
[ $# -gt 0 ] || set -- 16
{ cmake --preset release && cmake --build --preset release --target bench_collectives; } >/dev/null

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
libraries=()
for library in openmpi mpich; do
  command -v "mpicc.$library" >/dev/null || { echo "mpicc.$library is missing: left out" >&2; continue; }
  "mpicc.$library" -O2 bench/mpi/reduce_scatter.c -o "$folder/$library"
  libraries+=("$library")
done
root=()
[ "$(id -u)" != 0 ] || root=(--allow-run-as-root)
plain() {
  if [ "$1" = openmpi ]; then mpirun.openmpi "${root[@]}" -np "$ranks" "$folder/$1" "$2" "$rounds"
  else mpirun.mpich -np "$ranks" "$folder/$1" "$2" "$rounds"; fi
}
for megabytes in "$@"; do
  for ((i = 1; i <= pairs; ++i)); do
    ours=$(build/release/bench/collectives "$ranks" "$megabytes" "$rounds" | awk '$1 == "reduce_scatter" {print $4}')
    for library in "${libraries[@]}"; do
      theirs=$(plain "$library" "$megabytes")
      awk -v m="$megabytes" -v n="$library" -v a="$ours" -v b="$theirs" \
        'BEGIN{printf "%d MiB: ours %.2f GB/s, %s %.2f GB/s, ratio %.2f\n", m, a, n, b, a / b}'
    done
  done
done
