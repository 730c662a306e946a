"""Sharding: the weights of each block are divided between processes, and gathered while it runs.

Zhao et al. 2023, arXiv:2304.11277, as torch's ``fully_shard`` (FSDP2) does it, after Rajbhandari et
al. 2020, arXiv:1910.02054 (ZeRO, stage 3).
"""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from llama_lab.model.config import DecoderConfig
from llama_lab.model.decoder import Decoder
from llama_lab.parallel.tensor_plan import parallelise

DATA, TENSOR = "data_parallel", "tensor_parallel"

# The dtypes in which weights are gathered and gradients are summed. Half precision for the sums
# would lose the small ones.
POLICIES = {
    "32-true": MixedPrecisionPolicy(),
    "bf16-mixed": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    "bf16-true": MixedPrecisionPolicy(reduce_dtype=torch.float32),
}


def sharded_decoder(
    config: DecoderConfig, mesh: DeviceMesh, device: torch.device, precision: str
) -> Decoder:
    """A decoder whose tensors are divided over ``mesh``; they have no values yet.

    It is built without memory (on ``meta``), divided, and only then is each process's shard
    allocated: no process ever holds the whole decoder.

    Args:
        config: The architecture.
        mesh: Processes by the dimensions :data:`DATA` and :data:`TENSOR`.
        device: Of the shards.
        precision: The trainer's, one of :data:`POLICIES`.
    """
    with torch.device("meta"):
        decoder = Decoder(config)
    if mesh[TENSOR].size() > 1:
        parallelise(decoder, mesh[TENSOR])
    policy = POLICIES[precision]
    for block in decoder.blocks:
        fully_shard(block, mesh=mesh[DATA], mp_policy=policy)
    # What is left: embeddings, final norm and head, as one group, gathered from the tokens to the
    # loss and through the backward.
    fully_shard(decoder, mesh=mesh[DATA], mp_policy=policy)
    register_fsdp_forward_method(decoder, "score")
    decoder.to_empty(device=device)
    return decoder


def free_gathered(decoder: torch.nn.Module) -> None:
    """Give back what a scoring without a backward has left gathered; every shard stays."""
    if isinstance(decoder, FSDPModule):
        decoder.reshard()


def sum_gradients(decoder: torch.nn.Module, now: bool) -> None:
    """Whether the next backwards exchange gradients, or keep them for one that does."""
    if isinstance(decoder, FSDPModule):
        decoder.set_requires_gradient_sync(now)
