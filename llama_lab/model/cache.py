"""The KV cache of a decoder: every layer keeps its keys and values while a text is generated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from llama_lab.model.config import DecoderConfig, layer_kinds
from llama_lab.model.layer_cache import LayerCache, WindowCache
from llama_lab.model.masks import Documents


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

    @property
    def documents(self) -> Documents | None:
        """Where the next token of each text stands; ``None`` where all are equally long."""
        return None

    @property
    def last_tokens(self) -> Tensor | None:
        """The last token of each text ``[B, 1]``, if there is one."""
        return self.tokens[:, self.length - 1 : self.length] if self.length else None

    def write(self, tokens: Tensor) -> None:
        """Keep tokens ``[B, T]`` that every layer is about to read."""
        self.tokens[:, self.length : self.length + tokens.size(1)] = tokens

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


class RaggedCache(DecoderCache):
    """A cache of texts of unequal length, which end side by side.

    A text's positions are the last columns, so that all of them get their next token in the same
    one; whatever stands before a shorter text is hidden from it. :meth:`put` brings a text in, and
    then one token of each text is read at a time.

    Args:
        config: As in :class:`DecoderCache`.
        batch_size: Texts side by side, at first.
        length: Positions of the longest text, in tokens.
        device: Where the storage lies.
        dtype: Of the storage.
    """

    layers: list[WindowCache]  # type: ignore[assignment]

    def __init__(
        self,
        config: DecoderConfig,
        batch_size: int,
        *,
        length: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.batch_size = batch_size
        self.capacity = length
        self.lengths = [0] * batch_size
        place = None if device is None else torch.device(device)
        # Texts that came later stand further right, and a text that is read anew becomes shorter:
        # the columns go on where the longest text's would have ended.
        shape = (batch_size, config.attention.kv_heads, 2 * length, config.head_dim)
        self.last = torch.zeros((batch_size, 1), dtype=torch.long, device=place)
        self.layers = [
            WindowCache(shape, min(kind.window or length, length), place, dtype)
            for kind in layer_kinds(config)
        ]

    @property
    def documents(self) -> Documents | None:
        longest = self.length
        if min(self.lengths) == longest:
            return None
        return Documents.behind(torch.tensor(self.lengths, device=self.last.device), longest)

    @property
    def last_tokens(self) -> Tensor | None:
        return self.last if self.length else None

    def write(self, tokens: Tensor) -> None:
        self.last = tokens

    def require_room(self, batch_size: int, n_tokens: int) -> None:
        super().require_room(batch_size, n_tokens)
        if n_tokens != 1:
            raise ValueError(f"got {n_tokens} tokens of each text: use `put`, then one at a time")

    def advance(self, n_tokens: int) -> None:
        self._set_lengths([length + n_tokens for length in self.lengths])

    def put(self, rows: Sequence[int], texts: DecoderCache) -> None:
        """Exchange some texts for others of equal length, which another cache has read."""
        for layer, read in zip(self.layers, texts.layers, strict=True):
            layer.put(list(rows), *read.newest(layer.reach))
        if texts.last_tokens is not None:
            self.last[list(rows)] = texts.last_tokens
        changed = dict.fromkeys(rows, texts.length)
        self._set_lengths([changed.get(row, n) for row, n in enumerate(self.lengths)])

    def add(self, n_texts: int) -> None:
        """Make room for more texts, behind the others."""
        if not n_texts:
            return
        for layer in self.layers:
            layer.add(n_texts)
        self.batch_size += n_texts
        self.last = torch.cat((self.last, self.last.new_zeros(n_texts, 1)))
        self._set_lengths([*self.lengths, *[0] * n_texts])

    def keep(self, rows: Sequence[int]) -> None:
        """Forget all texts but these, which keep their order."""
        for layer in self.layers:
            layer.keep(list(rows))
        self.batch_size, self.last = len(rows), self.last[list(rows)]
        self._set_lengths([self.lengths[row] for row in rows])

    def _set_lengths(self, lengths: list[int]) -> None:
        self.lengths = lengths
        for layer in self.layers:
            layer.length = max(lengths, default=0)
