"""The feed-forward sublayer, plain or gated.

D model width, F hidden width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llama_lab.model.settings import (
    refuse_idle,
    require,
    require_choice,
    require_positive,
    require_switch,
    require_whole,
)

FeedForwardKind = Literal[
    "relu", "gelu", "gelu_tanh", "silu", "glu", "bilinear", "reglu", "geglu", "swiglu"
]
Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig:
    """The feed-forward sublayer of every layer."""

    kind: FeedForwardKind = "swiglu"
    """Plain: relu (2017), gelu (exact), gelu_tanh (GPT-2), silu. Gated: glu (sigmoid gate),
    bilinear (no activation), reglu, geglu (exact gelu), swiglu (LLaMA)."""

    bias: bool = False
    """Whether its projections have a bias."""

    hidden_dim: int | None = None
    """Hidden width; null means 4 dim, or when gated int(dim_multiplier · int(8 dim / 3)), rounded
    up to multiple_of."""

    multiple_of: int | None = None
    """What a gated kind's hidden width is rounded up to; null means 32. Refused for plain kinds and
    beside hidden_dim."""

    dim_multiplier: float | None = None
    """Factor on a gated kind's hidden width before rounding; null means 1. Refused for plain kinds
    and beside hidden_dim."""

    def __post_init__(self) -> None:
        flag = "model.decoder.feed_forward"
        require_choice(f"{flag}.kind", self.kind, FeedForwardKind)
        require_switch(f"{flag}.bias", self.bias)
        if self.hidden_dim is not None:
            require_whole(f"{flag}.hidden_dim", self.hidden_dim)
        because = None
        if not FEED_FORWARDS[self.kind].layer.is_gated:
            because = f"feed_forward.kind {self.kind} is plain, and 4 dim wide"
        elif self.hidden_dim is not None:
            because = f"feed_forward.hidden_dim {self.hidden_dim} settles the width"
        if because is not None:
            refuse_idle(f"{flag}.multiple_of", self.multiple_of, because=because)
            refuse_idle(f"{flag}.dim_multiplier", self.dim_multiplier, because=because)
        if self.multiple_of is not None:
            require_whole(f"{flag}.multiple_of", self.multiple_of)
        if self.dim_multiplier is not None:
            require_positive(f"{flag}.dim_multiplier", self.dim_multiplier)

    def width(self, dim: int) -> int:
        """The hidden width F beside a model width of ``dim``."""
        if self.hidden_dim is not None:
            return self.hidden_dim
        if not FEED_FORWARDS[self.kind].layer.is_gated:
            return 4 * dim
        multiplier = 1.0 if self.dim_multiplier is None else self.dim_multiplier
        step = 32 if self.multiple_of is None else self.multiple_of
        least = int(multiplier * (8 * dim // 3))
        require(
            least >= 1,
            f"--model.decoder.feed_forward.dim_multiplier {multiplier} leaves no hidden width at "
            f"--model.decoder.dim {dim}: raise it",
        )
        return -(-least // step) * step


class PlainFeedForward(nn.Module):
    """down(activation(up(x))). Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.3."""

    is_gated = False

    def __init__(self, dim: int, hidden_dim: int, *, activation: Activation, bias: bool) -> None:
        super().__init__()
        self.activation = activation
        self.up = nn.Linear(dim, hidden_dim, bias=bias)
        self.down = nn.Linear(hidden_dim, dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., D]`` to ``[..., D]``, through ``[..., F]``."""
        return self.down(self.activation(self.up(x)))


class GatedFeedForward(PlainFeedForward):
    """down(activation(gate(x)) * up(x)): three matrices, so at F = 8/3 D as many weights as a
    plain one at F = 4 D. Source: Shazeer 2020, arXiv:2002.05202.
    """

    is_gated = True

    def __init__(self, dim: int, hidden_dim: int, *, activation: Activation, bias: bool) -> None:
        super().__init__(dim, hidden_dim, activation=activation, bias=bias)
        self.gate = nn.Linear(dim, hidden_dim, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., D]`` to ``[..., D]``, through ``[..., F]``."""
        return self.down(self.activation(self.gate(x)) * self.up(x))


def identity(x: Tensor) -> Tensor:
    """x."""
    return x


class FeedForwardParts(NamedTuple):
    """What a kind is made of."""

    layer: type[PlainFeedForward]
    activation: Activation


# GELU: Hendrycks & Gimpel 2016, arXiv:1606.08415; exact is x · Φ(x), tanh its approximation.
# SiLU, x · sigmoid(x): Elfwing et al. 2017, arXiv:1702.03118; Ramachandran et al. 2017, as Swish.
# GLU: Dauphin et al. 2017, arXiv:1612.08083. Its relatives: Shazeer 2020, arXiv:2002.05202.
FEED_FORWARDS: dict[FeedForwardKind, FeedForwardParts] = {
    "relu": FeedForwardParts(PlainFeedForward, F.relu),
    "gelu": FeedForwardParts(PlainFeedForward, F.gelu),
    "gelu_tanh": FeedForwardParts(PlainFeedForward, partial(F.gelu, approximate="tanh")),
    "silu": FeedForwardParts(PlainFeedForward, F.silu),
    "glu": FeedForwardParts(GatedFeedForward, torch.sigmoid),
    "bilinear": FeedForwardParts(GatedFeedForward, identity),
    "reglu": FeedForwardParts(GatedFeedForward, F.relu),
    "geglu": FeedForwardParts(GatedFeedForward, F.gelu),
    "swiglu": FeedForwardParts(GatedFeedForward, F.silu),
}


def build_feed_forward(config: FeedForwardConfig, dim: int) -> PlainFeedForward:
    """The feed-forward of vectors of width ``dim`` that ``config`` describes."""
    layer, activation = FEED_FORWARDS[config.kind]
    return layer(dim, config.width(dim), activation=activation, bias=config.bias)
