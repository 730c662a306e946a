"""Activations that are computed a second time in the backward, in the place of being kept."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from llama_lab.model.block import Block
from llama_lab.model.decoder import Decoder

CheckpointActivations = Literal["none", "block", "attention"]


def recompute(decoder: Decoder, what: CheckpointActivations) -> None:
    """Keep of each block, or of its attention alone, only what goes in until the backward.

    The numbers stay the same; a step takes up to a third longer (Chen et al. 2016,
    arXiv:1604.06174). No weight is named otherwise.
    """
    if what == "none":
        return
    for block in decoder.blocks:
        assert isinstance(block, Block)
        recompute_forward(block if what == "block" else block.attention, decoder.config.dropout)


def recompute_forward(module: nn.Module, dropout: float) -> None:
    """Let a module's forward be run again in the backward, with the same dropout masks."""
    plain = module.forward

    def call(*inputs: Any, cache: Any = None) -> Any:
        if not torch.is_grad_enabled() or cache is not None:
            return plain(*inputs, cache=cache) if cache is not None else plain(*inputs)
        return checkpoint(plain, *inputs, use_reentrant=False, preserve_rng_state=dropout > 0)

    module.forward = call
