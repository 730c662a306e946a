"""The KV cache of one layer.

B batch, T new time steps, P positions held, K key/value heads, E head width.
"""

from __future__ import annotations

import torch
from torch import Tensor


class LayerCache:
    """Keys and values of one layer, in storage ``[B, K, capacity, E]`` that is allocated once."""

    def __init__(
        self, shape: tuple[int, int, int, int], device: torch.device | None, dtype: torch.dtype
    ) -> None:
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.length = 0

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values ``[B, K, T, E]``, and return all of them ``[B, K, P+T, E]``.

        The result is a view of the storage. No gradient passes: a cache is for generation only.
        """
        end = self.length + k.size(2)
        self.keys[:, :, self.length : end] = k.detach()
        self.values[:, :, self.length : end] = v.detach()
        return self.keys[:, :, :end], self.values[:, :, :end]

    def newest(self, n_tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the last ``n_tokens`` positions, or of all that are held."""
        begin = max(0, self.length - n_tokens)
        return self.keys[:, :, begin : self.length], self.values[:, :, begin : self.length]


class WindowCache(LayerCache):
    """Keys and values of a windowed layer: only those that the next token can see, in order.

    The storage holds the window and an eighth more. When it is full, the tokens that the window
    still shows are moved to the front. ``length`` counts all tokens, including the forgotten ones.
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
        """Append ``[B, K, T, E]``, and return what these T see, ``[B, K, min(P, W-1)+T, E]``.

        Of more tokens than fit, only the last are stored, and the result is then not a view.
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

    def newest(self, n_tokens: int) -> tuple[Tensor, Tensor]:
        """Keys and values of the last ``n_tokens`` positions, or of all that are still held."""
        begin = self.end - min(n_tokens, self.length, self.reach, self.end)
        return self.keys[:, :, begin : self.end], self.values[:, :, begin : self.end]

    def put(self, rows: list[int], k: Tensor, v: Tensor) -> None:
        """Let keys and values ``[rows, K, P, E]`` be the last ones of some of the texts."""
        n_tokens = k.size(2)
        if self.end < n_tokens:  # the others move to the right
            for held in (self.keys, self.values):
                held[:, :, n_tokens - self.end : n_tokens] = held[:, :, : self.end].clone()
            self.end = n_tokens
        self.keys[rows, :, self.end - n_tokens : self.end] = k
        self.values[rows, :, self.end - n_tokens : self.end] = v

    def add(self, n_texts: int) -> None:
        """Make room for more texts, behind the others."""
        more = self.keys.new_zeros(n_texts, *self.keys.shape[1:])
        self.keys, self.values = torch.cat((self.keys, more)), torch.cat((self.values, more))

    def keep(self, rows: list[int]) -> None:
        """Forget all texts but these."""
        self.keys, self.values = self.keys[rows], self.values[rows]
