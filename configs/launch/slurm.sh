#!/usr/bin/env bash
# A run on several machines of a SLURM cluster: sbatch slurm.sh --config llama.yaml --trainer.strategy fsdp
#
# Set the machines, the devices of each and the time below. SLURM starts one process for each device.
# SIGTERM comes 120 s before the time is up: the run saves and ends. Submitting the job again with
# `--ckpt_path last` in the place of the config goes on. The working folder lies on a disk that all
# machines see.
#SBATCH --job-name=llama-lab
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=slurm-%j.log
set -euo pipefail

# A process that fails ends the others, which would wait for it.
exec srun --kill-on-bad-exit=1 llama-lab fit "$@" \
  --trainer.num_nodes "$SLURM_NNODES" --trainer.devices "$SLURM_NTASKS_PER_NODE"
