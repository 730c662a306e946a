"""What the layers remember while a text is generated, so that no token is computed twice.

B batch, T new time steps, P positions held, K key/value heads, E head width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from llama_lab.model.layers import layer_kinds

if TYPE_CHECKING:
    from llama_lab.model.decoder import DecoderConfig


class LayerCache:
    """Keys and values of one layer, in storage ``[B, K, capacity, E]`` that is allocated once."""

    def __init__(
        self, shape: tuple[int, int, int, int], device: torch.device | None, dtype: torch.dtype
    ) -> None:
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.length = 0

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values ``[B, K, T, E]`` after those held; all of them, ``[B, K, P+T, E]``.

        The result is a view of the storage. No gradient passes: a cache serves generation alone.
        """
        end = self.length + k.size(2)
        self.keys[:, :, self.length : end] = k.detach()
        self.values[:, :, self.length : end] = v.detach()
        return self.keys[:, :, :end], self.values[:, :, :end]


class WindowCache(LayerCache):
    """Keys and values of a windowed layer: those that the next token sees, in order.

    Storage is for the window and an eighth of it: where that is full, what the window still shows
    is moved to its front. ``length`` counts all positions, those forgotten too.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        window: int,
        device: torch.device | None,
        dtype: torch.dtype,
    ) -> None:
        batch, heads, capacity, width = shape
        self.reach = window - 1
        capacity = min(capacity, self.reach + max(1, window // 8))
        super().__init__((batch, heads, capacity, width), device, dtype)
        self.end = 0

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write ``[B, K, T, E]`` after those held; what these T see, ``[B, K, min(P, W-1)+T, E]``.

        Many at once are not stored but for the last, and the result is then no view.
        """
        n_held = min(self.length, self.reach)
        begin, end = self.end - n_held, self.end + k.size(2)
        if end > self.keys.size(2):
            seen = [
                torch.cat((held[:, :, begin : self.end], new.detach().to(held.dtype)), dim=2)
                for held, new in ((self.keys, k), (self.values, v))
            ]
            kept = min(self.reach, n_held + k.size(2))
            self.keys[:, :, :kept] = seen[0][:, :, seen[0].size(2) - kept :]
            self.values[:, :, :kept] = seen[1][:, :, seen[1].size(2) - kept :]
            self.end = kept
            return seen[0], seen[1]
        self.keys[:, :, self.end : end] = k.detach()
        self.values[:, :, self.end : end] = v.detach()
        self.end = end
        return self.keys[:, :, begin:end], self.values[:, :, begin:end]


class DecoderCache:
    """One :class:`LayerCache` a layer, of the same positions, and the tokens that stand there.

    Args:
        config: Gives the number of layers and the shape of their heads.
        batch_size: Texts that are generated side by side.
        length: Positions that fit, in tokens; the config's context length where it is ``None``.
        device: Where the storage lies.
        dtype: Of the storage; the dtype that the decoder computes keys and values in.
    """

    def __init__(
        self,
        config: DecoderConfig,
        batch_size: int,
        *,
        length: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.batch_size = batch_size
        self.capacity = config.context_length if length is None else length
        shape = (batch_size, config.attention.kv_heads, self.capacity, config.head_dim)
        place = None if device is None else torch.device(device)
        self.tokens = torch.zeros((batch_size, self.capacity), dtype=torch.long, device=place)
        self.layers = [
            LayerCache(shape, place, dtype)
            if kind.window is None
            else WindowCache(shape, kind.window, place, dtype)
            for kind in layer_kinds(config)
        ]

    @property
    def length(self) -> int:
        """Positions held, in tokens."""
        return self.layers[0].length

    def require_room(self, batch_size: int, n_tokens: int) -> None:
        """Refuse, before anything is written, tokens that the storage does not fit.

        Raises:
            ValueError: Too many tokens, or another number of texts than the cache was made for.
        """
        if batch_size != self.batch_size:
            raise ValueError(
                f"a cache for {self.batch_size} texts got {batch_size}: make one of that batch size"
            )
        if self.length + n_tokens > self.capacity:
            raise ValueError(
                f"a cache of {self.capacity} positions holds {self.length} and got {n_tokens} "
                "more: make a longer one, or reset it"
            )

    def advance(self, n_tokens: int) -> None:
        """Count ``n_tokens`` positions that every layer has written."""
        for layer in self.layers:
            layer.length += n_tokens

    def reset(self) -> None:
        """Forget everything held; the storage stays."""
        for layer in self.layers:
            layer.length = 0
