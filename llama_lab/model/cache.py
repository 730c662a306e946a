"""The KV cache of a decoder: every layer keeps its keys and values while a text is generated."""

from __future__ import annotations

import torch

from llama_lab.model.config import DecoderConfig, layer_kinds
from llama_lab.model.layer_cache import LayerCache, WindowCache


class DecoderCache:
    """One :class:`LayerCache` per layer, and the tokens whose keys and values they hold.

    Args:
        config: Gives the number of layers and the shape of their heads.
        batch_size: Number of texts that are generated at once.
        length: Capacity in tokens; ``None`` means the config's context length.
        device: Device of the storage.
        dtype: Type of the storage: the type in which the decoder computes keys and values.
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
        """Number of tokens that are held."""
        return self.layers[0].length

    def require_room(self, batch_size: int, n_tokens: int) -> None:
        """Refuse tokens that do not fit, before anything is written.

        Raises:
            ValueError: There are too many tokens, or the number of texts is not the cache's.
        """
        if batch_size != self.batch_size:
            raise ValueError(
                f"a cache for {self.batch_size} texts got {batch_size} texts: make a cache of that "
                "batch size"
            )
        if self.length + n_tokens > self.capacity:
            raise ValueError(
                f"a cache of {self.capacity} positions holds {self.length} and got {n_tokens} "
                "more: make a longer cache, or reset this one"
            )

    def advance(self, n_tokens: int) -> None:
        """Add to the length the ``n_tokens`` tokens that every layer has written."""
        for layer in self.layers:
            layer.length += n_tokens

    def reset(self) -> None:
        """Forget all tokens; the storage stays allocated."""
        for layer in self.layers:
            layer.length = 0
