#!/usr/bin/env bash
# Figures for a rank among many: sockets, the time for a meeting and for an exchange, files opened by a resume, the
# manifest. Hosts are groups of processes on this machine. Results: docs/internals/ranks.md.
#
#   bench/many_ranks.sh [BUILD]      build/release; needs the targets test_ranks and fsdp-run
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=${1:-build/release}
ranks=$build/tests/test_ranks

for hosts in 8,8 64,8; do
  OFSDP_RANKS_OF_HOSTS=$hosts "$ranks" --file=many_ranks --gtest_filter='ManyRanks.*' | grep -E 'ranks on|Failure|FAILED' || true
done
for count in 64 512 4096; do
  OFSDP_RANKS=$count "$ranks" --file=checkpoint_reshard --gtest_filter='*ARankOpensItsShareOfTheFiles' |
    grep -E 'a rank opens|Failure|FAILED' || true
done
for count in 64 512 4096; do
  began=$(date +%s%N)
  "$build/fsdp-run" plan samples/gpt/gpt.onnx --world "$count" --global-batch-size 8192 --threads 1 >/dev/null
  echo "plan of $count ranks: $((($(date +%s%N) - began) / 1000000)) ms"
done
