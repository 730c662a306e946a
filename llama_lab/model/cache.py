"""The cache of a decoder: every layer keeps its keys and values while a text is generated."""

from __future__ import annotations

import torch

from llama_lab.model.config import DecoderConfig, layer_kinds
from llama_lab.model.layer_cache import LayerCache, WindowCache


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
