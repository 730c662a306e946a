"""Shared by the tests that hold the model against transformers' own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

LLAMA_WORDS = {
    "model.embed_tokens": "embedding",
    "model.norm": "final_norm",
    "lm_head": "head",
    "model.layers": "blocks",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "feed_forward_norm",
    "self_attn": "attention",
    "mlp": "feed_forward",
    **{f"{w}_proj": f"w{w}" for w in "qkvo"},
    **{f"{w}_proj": w for w in ("gate", "up", "down")},
}


def randomised(model: Any) -> Any:
    """Every parameter random, so that one that is not copied, or copied elsewhere, shows."""
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
            parameter.copy_(noise * 0.3)
    return model.eval()


def renamed(state: Mapping[str, Tensor], words: Mapping[str, str]) -> dict[str, Tensor]:
    """Their tensors under our names: each word that occurs is replaced."""
    result = {}
    for key, value in state.items():
        for word, ours in words.items():
            key = key.replace(word, ours)
        result[key] = value
    return result


def assert_rounded(actual: Tensor, expected: Tensor) -> None:
    """Equal up to float32's rounding, whatever the size of the numbers.

    A sum of n products is off by about √n roundings of its largest entry: 11 for the 128 that are
    summed at most here. Attention multiplies that by its scores, of up to 8 or so: 84 roundings are
    1e-5 of the largest entry.
    """
    largest = float(expected.abs().max())
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5 * largest)
