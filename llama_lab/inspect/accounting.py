"""Parameters, FLOPs and cache of a config, counted on the model built on ``meta``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from llama_lab.model.attention import Attention
from llama_lab.model.cache import DecoderCache
from llama_lab.model.config import DecoderConfig, layer_kinds
from llama_lab.model.decoder import Decoder

# The first of these words in a parameter's dotted name says whose it is.
PART_OF = {
    "embedding": "embedding",
    "token_shift": "embedding",
    "position_embedding": "position",
    "attention": "attention",
    "feed_forward": "feed_forward",
    "attention_norm": "norm",
    "attention_post_norm": "norm",
    "feed_forward_norm": "norm",
    "feed_forward_post_norm": "norm",
    "final_norm": "norm",
    "head": "head",
}


@dataclass(frozen=True)
class ParameterCount:
    """Parameters in all, and by part; a tied head counts once, as the embedding."""

    total: int
    by_part: dict[str, int]


def on_meta(config: DecoderConfig) -> Decoder:
    """The decoder that ``config`` describes, with shapes but no data.

    Raises:
        SettingError: ``config.vocab_size`` is null.
    """
    with torch.device("meta"):
        return Decoder(config)


def count_parameters(config: DecoderConfig) -> ParameterCount:
    """Count the parameters of the decoder that ``config`` describes, without allocating them.

    Raises:
        SettingError: ``config.vocab_size`` is null.
    """
    return parameters_of(on_meta(config))


def parameters_of(decoder: Decoder) -> ParameterCount:
    """Count the parameters of a decoder, on ``meta`` or not."""
    by_part = dict.fromkeys(PART_OF.values(), 0)
    for name, parameter in decoder.named_parameters():
        by_part[part_of(name)] += parameter.numel()
    return ParameterCount(total=sum(by_part.values()), by_part=by_part)


def part_of(name: str) -> str:
    """The part that the parameter called ``name`` belongs to, such as ``attention``."""
    return next(PART_OF[word] for word in name.split(".") if word in PART_OF)


@dataclass(frozen=True)
class FlopCount:
    """Floating-point operations per token; a multiply and an add are two."""

    forward: int

    @property
    def training(self) -> int:
        """Forward and backward, which is two products for each of the forward's: with respect to
        what came in, and to the other factor. Recomputation is not in it.
        """
        return 3 * self.forward


def flops_per_token(decoder: Decoder, context: int) -> FlopCount:
    """What matrices and attention cost a token among ``context`` tokens.

    Every matrix that a token passes takes 2 a weight, the head among them, tied or not; scores and
    values take 4 H E a layer for each position seen. All ``context`` positions count as seen (no
    causal discount, as in PaLM's appendix B, arXiv:2204.02311), in a windowed layer its window:
    what has to be computed. The scores that attention computes only to hide them are no work of the
    model's: a mask's, and in blocks of a window as many again, at most. Norms, activations and the
    embedding's lookup are left out.
    """
    config = decoder.config
    weights = sum(m.weight.numel() for m in decoder.modules() if isinstance(m, nn.Linear))
    if config.tie_embeddings:
        weights += decoder.head_weight.numel()
    layers = [module for module in decoder.modules() if isinstance(module, Attention)]
    attention = sum(
        4 * layer.wq.out_features * _seen(context, kind.window)
        for layer, kind in zip(layers, layer_kinds(config), strict=True)
    )
    return FlopCount(2 * weights + attention)


def _seen(context: int, window: int | None) -> int:
    """Positions that the last of ``context`` tokens sees."""
    return context if window is None else min(context, window)


@dataclass(frozen=True)
class CacheBytes:
    """What the cache of one text takes, in bytes."""

    per_token: int
    """One position in every layer."""

    seen: int
    """Keys and values that the last token of the context sees: a windowed layer's window."""

    storage: int
    """What is allocated for the context: with room to move a window in."""


def cache_bytes(config: DecoderConfig, context: int, dtype: torch.dtype) -> CacheBytes:
    """Count the storage of the very cache that generates with this decoder, built on ``meta``."""
    cache = DecoderCache(config, 1, length=context, device="meta", dtype=dtype)
    per_token = seen = storage = 0
    for layer, kind in zip(cache.layers, layer_kinds(config), strict=True):
        size = (layer.keys.numel() + layer.values.numel()) * dtype.itemsize
        a_position = size // layer.keys.size(2)
        per_token += a_position
        seen += a_position * _seen(context, kind.window)
        storage += size
    return CacheBytes(per_token, seen, storage)


def decoding_bytes(config: DecoderConfig, context: int, dtype: torch.dtype) -> int:
    """Bytes that the token behind ``context`` others makes a decoder of ``dtype`` read, one text.

    Every weight but the tables, of which a row is looked up (a tied one is the head as well, and
    read whole), and the keys and values that it sees.

    Raises:
        SettingError: ``config.vocab_size`` is null.
    """
    count = count_parameters(config)
    tables = ("position",) if config.tie_embeddings else ("embedding", "position")
    read = count.total - sum(count.by_part[table] for table in tables)
    return read * dtype.itemsize + cache_bytes(config, context, dtype).seen
