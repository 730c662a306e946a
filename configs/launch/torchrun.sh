#!/usr/bin/env bash
# A run on several machines, each of which is told to start by hand or by a scheduler:
#
#     NODES=2 NODE=0 MAIN=first-machine GPUS=8 bash torchrun.sh --config llama.yaml --trainer.strategy fsdp
#     NODES=2 NODE=1 MAIN=first-machine GPUS=8 bash torchrun.sh --config llama.yaml --trainer.strategy fsdp
#
# The same command goes to every machine, with its own NODE, from 0 on. MAIN is the name or address
# of machine 0, and PORT is free there. The working folder lies on a disk that all machines see.
set -euo pipefail
: "${NODES:?how many machines}" "${NODE:?the number of this one, from 0}" "${MAIN:?address of machine 0}"
: "${GPUS:?processes on each machine}" "${PORT:=29400}"

exec torchrun --nnodes "$NODES" --node-rank "$NODE" --nproc-per-node "$GPUS" \
  --master-addr "$MAIN" --master-port "$PORT" --no-python \
  llama-lab fit "$@" --trainer.num_nodes "$NODES" --trainer.devices "$GPUS"
