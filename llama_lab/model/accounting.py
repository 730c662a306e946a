"""What a config costs, counted on the model itself, built on ``meta``: shapes without data."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from llama_lab.model.decoder import Decoder, DecoderConfig

# The first of these words in a parameter's dotted name says whose it is.
PART_OF = {
    "embedding": "embedding",
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


def count_parameters(config: DecoderConfig) -> ParameterCount:
    """Count the parameters of the decoder that ``config`` describes, without allocating them.

    Raises:
        SettingError: ``config.vocab_size`` is null.
    """
    with torch.device("meta"):
        decoder = Decoder(config)
    by_part = dict.fromkeys(PART_OF.values(), 0)
    for name, parameter in decoder.named_parameters():
        by_part[part_of(name)] += parameter.numel()
    return ParameterCount(total=sum(by_part.values()), by_part=by_part)


def part_of(name: str) -> str:
    """The part that the parameter called ``name`` belongs to, such as ``attention``."""
    return next(PART_OF[word] for word in name.split(".") if word in PART_OF)
