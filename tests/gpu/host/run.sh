#!/usr/bin/env bash
# All checks of the CUDA backend that need a host with a GPU, in parts; the last output is a table, and the exit status
# is 0 when no line in the table says FAIL.
#
#   tests/gpu/host/run.sh [PART...]
#     first      untried on a card so far: two and four ranks on one card (NCCL 2.30 or newer) through every strategy,
#                with and without a captured step, twice, against the CPU; the ranks' own tests; then BERT-base with
#                padding, BERT-base and GPT-2 against PyTorch, with their peaks. Prints card, date and commit first, and
#                begins nothing after ten minutes
#     checks     every test with the label gpu: a line each; the longest in eight shards at once
#     training   fixtures and samples: losses against PyTorch's or the CPU's; two runs, and one without a graph, must
#                have the same bits
#     sanitizer  compute-sanitizer memcheck, racecheck, initcheck and synccheck on small runs
#     products   bench/products: rates for every product in BERT-base and GPT-2 by eight algorithms, with each epilogue
#     kernels    bench/cuda_kernels: shares of the copy bandwidth
#     speed      the samples' step times in float32 and bfloat16
#     throughput bench/gpu_vs_pytorch.sh: BERT-base, GPT-2 and MNIST against PyTorch, with $OFSDP_THROUGHPUT as options;
#                about 8 minutes
#   Without PART: checks, training. Each part takes less than ten minutes.
#
# It unpacks build/gpu/bundle.tar.xz (pack.sh) if there is no build, and else builds. Logs are in $OUT, or build/gpu/out.
# OFSDP_BUILD         the build, build/cuda
# OFSDP_ONLY          a regular expression that names of tests and runs contain
# OFSDP_CUDA_LIBRARY  another device library: with the emulated one (docs/internals/cuda-checks.md) this script needs no
#                     GPU
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
. tests/gpu/host/environment.sh ofsdp_cuda tests_gpu bench_cuda_kernels bench_products
export OMP_WAIT_POLICY=passive
exec python3 tests/gpu/host/run.py "$@"
