"""Windowed attention on CUDA with flex attention: one kernel that computes only visible tiles.

B batch, T time, H query heads, K key/value heads, E head width, W window.

Source: Dong et al. 2024, arXiv:2412.05496; ``torch.nn.attention.flex_attention``, which has no
backward on the CPU.
"""

import importlib.util
import os
import shutil
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import BlockMask

from llama_lab.model.softcap import softcap

TILE = 128
"""Number of queries, and of keys, in a tile."""


def serves_heads(head_dim: int, dropout: float) -> bool:
    """Whether this machine can use flex attention in layers with such heads, instead of blocks.

    It has no dropout of attention weights, and its tiles need a width that is a power of two. It
    needs torch 2.9 or newer, Triton, and a C compiler, with which Triton makes the kernels.
    """
    compilers = (os.environ.get("CC"), "cc", "gcc", "clang")
    return (
        dropout == 0
        and head_dim in (16, 32, 64, 128)
        and hasattr(flex, "AuxRequest")
        and importlib.util.find_spec("triton") is not None
        and any(shutil.which(name) for name in compilers if name)
    )


def serves_text(past: int, length: int, device: torch.device) -> bool:
    """Whether flex attention is used for ``length`` tokens that follow ``past`` others.

    A kernel is compiled for each length. Only training, where all lengths are equal, waits for
    that; without gradients, blocks are as good. The text must fill its tiles.

    CUDA is recognised by its name: trying another device would compile a kernel there, and only on
    CUDA was this kernel measured to be faster.
    """
    return (
        device.type == "cuda"
        and torch.is_grad_enabled()
        and past == 0
        and length % TILE == 0
        and torch.cuda.get_device_properties(device).major >= 8
    )


@lru_cache(maxsize=16)
def sliding_tiles(window: int, length: int, device: torch.device) -> BlockMask:
    """The tiles of the T × T scores in which a token sees itself and the W - 1 tokens before it.

    The tiles are computed directly: ``create_block_mask`` would hold the T × T mask, which a window
    is meant to avoid. Tiles that are fully visible are not masked again.
    """
    positions = torch.arange(length // TILE, device=device)
    nearest = TILE * (positions[:, None] - positions) - (TILE - 1)
    furthest = nearest + 2 * (TILE - 1)
    seen = (furthest >= 0) & (nearest < window)
    is_full = (nearest >= 0) & (furthest < window)

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < window)

    return BlockMask.from_kv_blocks(
        *listed(seen & ~is_full), *listed(is_full), BLOCK_SIZE=TILE, mask_mod=visible
    )


def listed(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Number of true tiles per row ``[1, 1, rows]``, and their indices, before those of the
    others.
    """
    order = tiles.int().argsort(dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32)[None, None], order.int()[None, None]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: BlockMask,
    *,
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """softmax(q kᵀ / √E + mask) v, with the mask as tiles: q ``[B, H, T, E]``, k and v
    ``[B, K, T, E]``, to q's shape.

    Scores are limited to ±``cap``. A sink ``[H]`` adds exp(sink) to the softmax's denominator Z.
    The kernel divides by Z, so its result is multiplied by Z / (Z + exp(sink)) = σ(log Z - sink).
    """
    settings: dict[str, Any] = {
        "score_mod": None if cap is None else capped(cap),
        "block_mask": tiles,
        "enable_gqa": k.size(1) < q.size(1),
    }
    if sinks is None:
        return kernel()(q, k, v, **settings)
    mixed, aux = kernel()(q, k, v, **settings, return_aux=flex.AuxRequest(lse=True))
    return mixed * (aux.lse - sinks.float()[:, None]).sigmoid()[..., None].to(mixed.dtype)


def capped(cap: float) -> Callable[..., Tensor]:
    """The soft limit of a score, in the form that flex attention asks for."""

    def change(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap(score, cap)

    return change


def kernel() -> Callable[..., Any]:
    """Flex attention, compiled; inside code that is being compiled, it is compiled with that
    code.
    """
    plain: Callable[..., Any] = flex.flex_attention
    return plain if torch.compiler.is_compiling() else compiled()


@cache
def compiled() -> Callable[..., Any]:
    """Compile flex attention when it is first needed: the compiler takes seconds to import."""
    made: Callable[..., Any] = torch.compile(flex.flex_attention)
    return made
