#!/usr/bin/env bash
#SBATCH --job-name=fsdp-run
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
# One task a rank: srun starts all, and fsdp-run reads its rank from SLURM_PROCID. Two minutes before the time is up
# Slurm sends SIGTERM: the run saves and ends; queued again, it goes on from there.
#   sbatch slurm.sh model.onnx [options of fsdp-run]
set -euo pipefail
: "${1:?usage: sbatch slurm.sh model.onnx [options]}"
# The meeting point of the ranks: any host in the job, and a port that no other job uses.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export MASTER_ADDR MASTER_PORT
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
exec srun --kill-on-bad-exit=1 fsdp-run "$@" --checkpoint-dir "$SLURM_SUBMIT_DIR/checkpoints" --resume latest
