#!/usr/bin/env bash
# fsdp-run against PyTorch on one GPU, in turn (A B A B) in one run: BERT-base with 128 and 512 tokens, GPT-2 124M with
# 1024, all in bfloat16 with float32 master weights and AdamW, 65536 tokens a step. They run without masks and, as
# -mask, with texts that fill half to all of a row. Also the MNIST sample's network in float32, batch 64. Prints a line
# for each run at once, then a table of median ratios next to the goals; a failed part is a line with the reason. One
# pair of each takes about 8 minutes on an H200; then nothing new begins.
#
#   bench/gpu_vs_pytorch.sh [--models mnist,bert-128,gpt2-1024,bert-512,bert-512-mask,gpt2-1024-mask] [--pairs 1] [--steps 10] [--batch MODEL=N]...
#                           [--minutes 8] [--results FILE] [--log FILE]
#   bench/gpu_vs_pytorch.sh --tiny --peer-device cpu      tries the script without a GPU (docs/internals/cuda-checks.md)
#
# A pair is fsdp-run --deterministic on, eager FSDP2 at world 1, fsdp-run --deterministic off, torch.compile with FSDP2;
# for MNIST plain eager is the one peer. bench/pytorch_gpu.py is the peer, and exports our model from the same code: no
# dropout, a mask only where the name has it, SDPA there and Attention here, cross entropy over all positions, the same
# batch. Both sides leave out the first steps (compiling, choosing, capturing) and time three windows of steps; the
# median counts. Our data is uploaded in every step, the peer's is there already.
#
# MFU = tokens/s x (6 N + 12 x layers x width x sequence, half of the latter if causal) / peak; N counts the parameters
# without position and type embeddings. Memory: `peak` is our metrics' peak_bytes; `allocated` and `reserved` are
# torch.cuda.max_memory_allocated and max_memory_reserved; `card` is the growth of the card's used memory, by NVML, with
# contexts and libraries.
#
# PEAK_TFLOPS  the card's peak for dense bfloat16: 989 (H200)
# PEER_PYTHON  a Python with torch, transformers, onnx and onnxscript: python3
# OFSDP_BUILD, OFSDP_CUDA_LIBRARY, and a packed build: tests/gpu/host/environment.sh
set -euo pipefail
export OFSDP_RUN_DIR=none
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tests/gpu/host/environment.sh fsdp-run ofsdp_cuda
exec python3 bench/gpu_vs_pytorch.py "$@"
