"""A window on CUDA, by flex attention: one kernel that visits only those tiles that a window shows.

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
"""Queries and keys on a tile's sides."""


def serves_heads(head_dim: int, dropout: float) -> bool:
    """Whether flex attention may stand in for blocks in layers of such heads, on this machine.

    It knows no dropout of weights, and its tiles are of powers of two. What is asked of torch came
    with 2.9; Triton makes the kernels, and needs a C compiler for that.
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
    """Whether it then does so for ``length`` tokens that follow ``past`` others.

    A kernel is compiled for the lengths that come, so only training, where they are alike, waits
    for one: without gradients, blocks serve as well. Texts fill their tiles.

    CUDA is told by name: to try another device would be to compile a kernel there, and that this
    kernel is the faster one was measured on CUDA alone.
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
    """The tiles of T × T scores that tokens see, which are themselves and W - 1 before them.

    It is worked out tile by tile: ``create_block_mask`` would hold the T × T mask that a window is
    there to avoid. Those that are seen in full are not masked again.
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
    """How many tiles of each row are true, ``[1, 1, rows]``, and which, these first."""
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
    """softmax(q kᵀ / √E, where ``tiles`` show it) v: ``[B, H, T, E]`` and twice ``[B, K, T, E]`` to
    the first.

    Scores are limited to ±``cap``. A sink, ``[H]``, adds exp(sink) to the softmax's denominator Z;
    what was divided by Z alone is multiplied by Z / (Z + exp(sink)) = σ(log Z - sink).
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
    """The change of a score, as flex attention asks for it."""

    def change(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return softcap(score, cap)

    return change


def kernel() -> Callable[..., Any]:
    """Flex attention, compiled; within something that is being compiled it is so with the rest."""
    plain: Callable[..., Any] = flex.flex_attention
    return plain if torch.compiler.is_compiling() else compiled()


@cache
def compiled() -> Callable[..., Any]:
    """Made on demand: the compiler takes seconds to import."""
    made: Callable[..., Any] = torch.compile(flex.flex_attention)
    return made
