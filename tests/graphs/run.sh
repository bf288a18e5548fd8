#!/usr/bin/env bash
# Random graphs against the operators' references, any number: a line for each defect, then a total, which is
# added to the table in docs/internals/correctness.md.
#
#   tests/graphs/run.sh --count N [--seed S] [--ways all|plain,..] [--rotate] [--only RECIPE,..] [--build DIR] [--no-total]
#   tests/graphs/run.sh --count N --device    the CUDA library's kernels, on the emulated device (target emulated_device)
#
# Failing graphs are cut down and kept in tests/graphs/found. After the release build: cmake --build --preset release
# --target random_graphs
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$root/build/release
count=1000 seed=1 ways=all turn= total=yes more=()
while [ $# -gt 0 ]; do
  case $1 in
    --count) count=$2; shift ;;
    --seed) seed=$2; shift ;;
    --ways) ways=$2; shift ;;
    --build) build=$2; shift ;;
    --no-total) total=no ;;
    --device)
      ways=device,device_eager,device_chunks,device_bfloat16
      export OFSDP_TEST_DEVICE=1 OFSDP_CUDA_LIBRARY=$build/tests/device/libemulated_device.so
      ;;
    --rotate) turn=", in turn"; more+=(--rotate) ;;
    *) more+=("$1") ;;
  esac
  shift
done
[ -x "$build/tests/random_graphs" ] || { echo "run.sh: no $build/tests/random_graphs; build the target random_graphs"; exit 2; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=passive "$build/tests/random_graphs" --count "$count" \
  --seed "$seed" --ways "$ways" --found "$root/tests/graphs/found" "${more[@]}" | tee "$log" || status=1
[ $total = no ] && exit $status
# "N graphs, N nodes, N trials: N wrong, N refused, N without digits"
read -r graphs nodes trials wrong refused rest < <(tail -n 1 "$log" | tr -cd '0-9 \n' | tr -s ' ')
commit=$(git -C "$root" rev-parse --short=8 HEAD)
isa=$(grep -q avx512f /proc/cpuinfo && [ "${OFSDP_MAX_CPU_ISA:-}" != AVX2 ] && echo AVX-512 || echo "${OFSDP_MAX_CPU_ISA:-AVX2}")
row="| $commit | $seed.. | $ways$turn, $isa | $graphs | $nodes | $trials | $wrong | $refused |"
sed -i "/^<!-- random graphs: next row -->/i $row" "$root/docs/internals/correctness.md"
exit $status
