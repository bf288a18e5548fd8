#!/usr/bin/env bash
#SBATCH --job-name=fsdp-run
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
# One launcher a host, each with eight ranks: if a rank fails, all start again from the latest checkpoint, without
# leaving the queue. --no-kill and --min-nodes let the run go on when a host is lost.
#   sbatch slurm_restarts.sh model.onnx [options of fsdp-run]
set -euo pipefail
: "${1:?usage: sbatch slurm_restarts.sh model.onnx [options]}"
first_host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
exec srun --no-kill --kill-on-bad-exit=0 fsdp-run "$@" \
  --nnodes "$SLURM_NNODES" --min-nodes 1 --nproc-per-node 8 \
  --rdzv-endpoint "$first_host:$((20000 + SLURM_JOB_ID % 20000))" --rdzv-id "$SLURM_JOB_ID" \
  --checkpoint-dir "$SLURM_SUBMIT_DIR/checkpoints" --resume latest --max-restarts 3
