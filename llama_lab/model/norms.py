"""Normalisation: what it computes. Where it stands around a sublayer is ``block.py``'s matter.

D model width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llama_lab.model.settings import (
    refuse_idle,
    require_choice,
    require_positive,
    require_switch,
)

NormKind = Literal["layernorm", "rmsnorm"]
NormPlacement = Literal["pre", "post"]


@dataclass(frozen=True, kw_only=True)
class NormConfig:
    """The normalisation of every layer, and its place around the sublayers."""

    kind: NormKind = "rmsnorm"
    """layernorm (centre and scale: GPT-2, the 2017 Transformer) or rmsnorm (scale only: LLaMA)."""

    placement: NormPlacement = "pre"
    """pre (before a sublayer, and once at the end: LLaMA) or post (after the sum: 2017)."""

    eps: float = 1e-5
    """Added to the variance or to the mean square, so that a zero vector can be divided."""

    bias: bool | None = None
    """Whether layernorm adds a learned bias; null means true. Refused with rmsnorm."""

    def __post_init__(self) -> None:
        require_choice("model.decoder.norm.kind", self.kind, NormKind)
        require_choice("model.decoder.norm.placement", self.placement, NormPlacement)
        require_positive("model.decoder.norm.eps", self.eps)
        if self.kind == "rmsnorm":
            refuse_idle(
                "model.decoder.norm.bias", self.bias, because="norm.kind rmsnorm has no bias"
            )
        elif self.bias is not None:
            require_switch("model.decoder.norm.bias", self.bias)


class LayerNorm(nn.Module):
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, over the last axis.

    The variance divides by D. Source: Ba et al. 2016, arXiv:1607.06450.
    """

    def __init__(self, dim: int, *, eps: float, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """``[..., D]`` to ``[..., D]``."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x²) + eps) * weight, over the last axis.

    Source: Zhang & Sennrich 2019, arXiv:1910.07467.
    """

    def __init__(self, dim: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., D]`` to ``[..., D]``."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


NORMS: dict[NormKind, Callable[[NormConfig, int], nn.Module]] = {
    "layernorm": lambda config, dim: LayerNorm(dim, eps=config.eps, bias=config.bias is not False),
    "rmsnorm": lambda config, dim: RMSNorm(dim, eps=config.eps),
}


def build_norm(config: NormConfig, dim: int) -> nn.Module:
    """The normalisation of vectors of width ``dim`` that ``config`` describes."""
    return NORMS[config.kind](config, dim)
