"""The feed-forward sublayer, plain or gated.

D model width, F hidden width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llama_lab.model.init_schemes import WithStartValues
from llama_lab.model.settings import (
    refuse_idle,
    require,
    require_choice,
    require_positive,
    require_switch,
    require_whole,
)

FeedForwardKind = Literal[
    "relu",
    "gelu",
    "gelu_tanh",
    "silu",
    "relu_squared",
    "glu",
    "bilinear",
    "reglu",
    "geglu",
    "geglu_tanh",
    "swiglu",
]
SwishBeta = Literal["fixed", "learned"]
Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig:
    """The feed-forward sublayer of every layer."""

    kind: FeedForwardKind = "swiglu"
    """Plain: relu (2017), gelu (exact), gelu_tanh (GPT-2), silu, relu_squared (Primer). Gated: glu
    (sigmoid gate), bilinear (no activation), reglu, geglu (exact gelu), geglu_tanh (Gemma), swiglu
    (LLaMA)."""

    bias: bool = False
    """Add a bias to the projections of the feed-forward."""

    hidden_dim: int | None = None
    """Hidden width. Null means 4 · dim for a plain kind; for a gated kind it means
    int(dim_multiplier · int(8 · dim / 3)), rounded up to multiple_of."""

    multiple_of: int | None = None
    """A gated kind's hidden width is rounded up to a multiple of this number; null means 32.
    Refused for plain kinds and together with hidden_dim."""

    dim_multiplier: float | None = None
    """Factor on a gated kind's hidden width before rounding; null means 1. Refused for plain kinds
    and together with hidden_dim."""

    swish_beta: SwishBeta | None = None
    """The beta of x · sigmoid(beta · x): fixed (always 1) or learned (one number per layer, which
    starts at 1); null means fixed. Refused unless the kind is silu or swiglu."""

    def __post_init__(self) -> None:
        flag = "model.decoder.feed_forward"
        require_choice(f"{flag}.kind", self.kind, FeedForwardKind)
        require_switch(f"{flag}.bias", self.bias)
        if self.hidden_dim is not None:
            require_whole(f"{flag}.hidden_dim", self.hidden_dim)
        because = None
        if not FEED_FORWARDS[self.kind].layer.is_gated:
            because = f"feed_forward.kind {self.kind} is plain, so its width is 4 dim"
        elif self.hidden_dim is not None:
            because = f"feed_forward.hidden_dim {self.hidden_dim} already sets the width"
        if because is not None:
            refuse_idle(f"{flag}.multiple_of", self.multiple_of, because=because)
            refuse_idle(f"{flag}.dim_multiplier", self.dim_multiplier, because=because)
        if FEED_FORWARDS[self.kind].activation is not F.silu:
            because = f"feed_forward.kind {self.kind} does not use Swish"
            refuse_idle(f"{flag}.swish_beta", self.swish_beta, because=because)
        if self.swish_beta is not None:
            require_choice(f"{flag}.swish_beta", self.swish_beta, SwishBeta)
        if self.multiple_of is not None:
            require_whole(f"{flag}.multiple_of", self.multiple_of)
        if self.dim_multiplier is not None:
            require_positive(f"{flag}.dim_multiplier", self.dim_multiplier)

    def width(self, dim: int) -> int:
        """The hidden width F for a model width of ``dim``."""
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


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)²."""
    return F.relu(x).square()


class LearnedSwish(WithStartValues):
    """x · sigmoid(beta · x), where beta is one learned number.

    Source: Ramachandran et al. 2017, arXiv:1710.05941.
    """

    starts = MappingProxyType({"beta": 1.0})

    def __init__(self) -> None:
        super().__init__()
        self.beta = self.start("beta", 1)

    def forward(self, x: Tensor) -> Tensor:
        """``x`` of any shape, to the same shape."""
        return x * torch.sigmoid(self.beta.to(x.dtype) * x)


class FeedForwardParts(NamedTuple):
    """The layer and the activation of one kind."""

    layer: type[PlainFeedForward]
    activation: Activation


# GELU: Hendrycks & Gimpel 2016, arXiv:1606.08415; exact is x · Φ(x), tanh its approximation.
# SiLU, x · sigmoid(x): Elfwing et al. 2017, arXiv:1702.03118; Ramachandran et al. 2017, as Swish.
# Squared ReLU: So et al. 2021, arXiv:2109.08668 (Primer).
# GLU: Dauphin et al. 2017, arXiv:1612.08083. Its relatives: Shazeer 2020, arXiv:2002.05202;
# geglu_tanh as in Gemma (2024, arXiv:2403.08295).
FEED_FORWARDS: dict[FeedForwardKind, FeedForwardParts] = {
    "relu": FeedForwardParts(PlainFeedForward, F.relu),
    "gelu": FeedForwardParts(PlainFeedForward, F.gelu),
    "gelu_tanh": FeedForwardParts(PlainFeedForward, partial(F.gelu, approximate="tanh")),
    "silu": FeedForwardParts(PlainFeedForward, F.silu),
    "relu_squared": FeedForwardParts(PlainFeedForward, relu_squared),
    "glu": FeedForwardParts(GatedFeedForward, torch.sigmoid),
    "bilinear": FeedForwardParts(GatedFeedForward, identity),
    "reglu": FeedForwardParts(GatedFeedForward, F.relu),
    "geglu": FeedForwardParts(GatedFeedForward, F.gelu),
    "geglu_tanh": FeedForwardParts(GatedFeedForward, partial(F.gelu, approximate="tanh")),
    "swiglu": FeedForwardParts(GatedFeedForward, F.silu),
}

SWISH_BETAS: dict[SwishBeta, Callable[[], Activation]] = {
    "fixed": lambda: F.silu,
    "learned": LearnedSwish,
}


def build_feed_forward(config: FeedForwardConfig, dim: int) -> PlainFeedForward:
    """Build the feed-forward that ``config`` describes, for vectors of width ``dim``."""
    layer, activation = FEED_FORWARDS[config.kind]
    if config.swish_beta is not None:
        activation = SWISH_BETAS[config.swish_beta]()
    return layer(dim, config.width(dim), activation=activation, bias=config.bias)
