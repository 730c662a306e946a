"""Choices that ``on_cuda.py`` weighs one by one: attention, optimiser, regions, checkpointing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from peers.models import BUILDERS, OWN, Shape
from peers.steps import Batch, Training, Way
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BF16 = Way("bf16", "regions")


def attentions(shape: Shape, dtype: torch.dtype, device: str) -> dict[str, Callable[[], Tensor]]:
    """Causal grouped-query attention in every way that there is."""
    width, rows = shape.dim // shape.n_heads, max(1, shape.rows // 4)
    q, k, v = (
        torch.randn(rows, n, shape.context, width, device=device, dtype=dtype, requires_grad=True)
        for n in (shape.n_heads, shape.kv_heads, shape.kv_heads)
    )

    def fused(backend: SDPBackend, *, copies: bool) -> Callable[[], Tensor]:
        def attend() -> Tensor:
            group = shape.n_heads // shape.kv_heads
            kk, vv = (x.repeat_interleave(group, dim=1) if copies else x for x in (k, v))
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(
                    q, kk, vv, is_causal=True, enable_gqa=not copies
                )

        return attend

    ways = {
        f"{backend.name.lower()}, {'keys copied' if copies else 'gqa'}": fused(
            backend, copies=copies
        )
        for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
        for copies in (False, True)
    }
    if device == "cuda":
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        mask = create_block_mask(
            lambda b, h, i, j: i >= j, None, None, shape.context, shape.context, device=device
        )
        flex = torch.compile(flex_attention)
        ways["flex, gqa"] = lambda: flex(q, k, v, block_mask=mask, enable_gqa=True)
    return ways


def adamw(shape: Shape, device: str, dtype: torch.dtype, **settings: Any) -> Callable[[], object]:
    """A step of the optimiser alone over a model's weights."""
    with torch.device(device):
        model = BUILDERS[OWN](shape).to(dtype)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    return torch.optim.AdamW(model.parameters(), **settings).step


def stepper(
    shape: Shape, batch: Batch, device: str, compiling: Callable[..., Any]
) -> Callable[[], object]:
    """A whole training step of llama-lab."""
    training = Training(OWN, shape, BF16, device, compiling=compiling)
    return lambda: training.step(batch)


def checkpointed(model: Any) -> Any:
    """Blocks that are computed again in the backward."""
    from torch.utils.checkpoint import checkpoint

    for block in model.decoder.blocks:
        block.forward = lambda *a, f=block.forward: checkpoint(f, *a, use_reentrant=False)
    return model
