"""The feed-forward kinds against their formulas, and their widths."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from llama_lab.model.feed_forward import (
    FEED_FORWARDS,
    FeedForwardConfig,
    FeedForwardKind,
    build_feed_forward,
)


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Tensor) -> Tensor:
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


ACTIVATIONS: dict[FeedForwardKind, Callable[[Tensor], Tensor]] = {
    "relu": lambda x: x.clamp_min(0),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x * sigmoid(x),
    "relu_squared": lambda x: x * x * (x > 0),
    "glu": sigmoid,
    "bilinear": lambda x: x,
    "reglu": lambda x: x.clamp_min(0),
    "geglu": gelu,
    "geglu_tanh": gelu_tanh,
    "swiglu": lambda x: x * sigmoid(x),
}
GATED = {"glu", "bilinear", "reglu", "geglu", "geglu_tanh", "swiglu"}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", FEED_FORWARDS)
@torch.no_grad()
def test_a_kind_computes_its_formula(kind: FeedForwardKind, bias: bool) -> None:
    layer = build_feed_forward(FeedForwardConfig(kind=kind, bias=bias, hidden_dim=6), 4)
    weights = {name: torch.randn(tensor.shape) for name, tensor in layer.state_dict().items()}
    layer.load_state_dict(weights)
    matrices = ["gate", "up", "down"] if kind in GATED else ["up", "down"]
    assert set(weights) == {f"{m}.{p}" for m in matrices for p in ["weight", "bias"][: 1 + bias]}

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", torch.zeros(()))

    x = torch.randn(5, 4)
    if kind in GATED:
        hidden = ACTIVATIONS[kind](linear("gate", x)) * linear("up", x)
    else:
        hidden = ACTIVATIONS[kind](linear("up", x))
    torch.testing.assert_close(layer(x), linear("down", hidden), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["silu", "swiglu"])
@torch.no_grad()
def test_a_learned_beta_is_one_number_that_starts_as_the_fixed_one(kind: FeedForwardKind) -> None:
    learned, fixed, unsaid = (
        build_feed_forward(FeedForwardConfig(kind=kind, hidden_dim=6, swish_beta=beta), 4)
        for beta in ("learned", "fixed", None)
    )
    weights = {name: torch.randn(tensor.shape) for name, tensor in fixed.state_dict().items()}
    for layer in (fixed, unsaid):
        layer.load_state_dict(weights)
    beta = torch.ones(1)
    learned.load_state_dict({**weights, "activation.beta": beta})
    x = torch.randn(5, 4)
    torch.testing.assert_close(learned(x), fixed(x))
    assert torch.equal(unsaid(x), fixed(x))
    learned.activation.beta.fill_(-1.7)
    up = x @ weights["up.weight"].T
    inner = x @ weights["gate.weight"].T if kind in GATED else up
    hidden = inner * sigmoid(-1.7 * inner) * (up if kind in GATED else 1)
    torch.testing.assert_close(learned(x), hidden @ weights["down.weight"].T)


@pytest.mark.parametrize(
    ("config", "dim", "width"),
    [
        (FeedForwardConfig(kind="gelu"), 128, 512),
        (FeedForwardConfig(kind="gelu", hidden_dim=100), 128, 100),
        (FeedForwardConfig(), 128, 352),
        (FeedForwardConfig(), 100, 288),
        (FeedForwardConfig(hidden_dim=1365), 512, 1365),
        (FeedForwardConfig(multiple_of=1), 128, 341),
        (FeedForwardConfig(multiple_of=11), 128, 341),
        # Published: LLaMA-7B, LLaMA-2-70B, LLaMA-3-8B.
        (FeedForwardConfig(multiple_of=256), 4096, 11008),
        (FeedForwardConfig(multiple_of=4096, dim_multiplier=1.3), 8192, 28672),
        (FeedForwardConfig(multiple_of=1024, dim_multiplier=1.3), 4096, 14336),
    ],
)
def test_widths_follow_the_rule(config: FeedForwardConfig, dim: int, width: int) -> None:
    with torch.device("meta"):
        layer = build_feed_forward(config, dim)
    assert layer.up.weight.shape == (width, dim)
    assert layer.down.weight.shape == (dim, width)
