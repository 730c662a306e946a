"""Which parameters an optimiser moves how, and which of them decay."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from llama_lab.model.attention import AttentionConfig
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.feed_forward import FeedForwardConfig
from llama_lab.model.initialise import initialise
from llama_lab.model.norms import NORMS, NormConfig
from llama_lab.model.positions import PositionConfig
from llama_lab.training.optimizers import (
    OPTIMIZERS,
    OptimizerConfig,
    OptimizerKind,
    build_optimizer,
    parameter_groups,
)

SWITCHES = list(itertools.product(NORMS, ("learned", "rope"), (False, True), (False, True)))


def decoder(norm: str, position: str, bias: bool, tied: bool) -> Decoder:
    """A model with every part that has parameters; with its biases, or none."""
    config = DecoderConfig(
        dim=16,
        n_layers=2,
        context_length=8,
        vocab_size=11,
        tie_embeddings=tied,
        norm=NormConfig(kind=norm, placement="sandwich"),  # type: ignore[arg-type]
        position=PositionConfig(kind=position),  # type: ignore[arg-type]
        attention=AttentionConfig(
            n_heads=2, qkv_bias=bias, output_bias=bias, qk_norm="head", sinks=True, gate=True
        ),
        feed_forward=FeedForwardConfig(swish_beta="learned", bias=bias),
    )
    built = Decoder(config)
    initialise(built, 0)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.5)  # a zero would not show that it decays
    return built


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(("norm", "position", "bias", "tied"), SWITCHES)
def test_with_zero_gradients_only_the_matrices_shrink(
    norm: str, position: str, bias: bool, tied: bool, kind: OptimizerKind
) -> None:
    model = decoder(norm, position, bias, tied)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    build_optimizer(model, OptimizerConfig(kind=kind, lr=0.1, weight_decay=2.0)).step()
    shrunk = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    matrices = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert shrunk == matrices
    for name in shrunk:
        torch.testing.assert_close(dict(model.named_parameters())[name], before[name] * 0.8)


@pytest.mark.parametrize("embedding_lr", [None, 0.01])
@pytest.mark.parametrize(("norm", "position", "bias", "tied"), SWITCHES)
def test_every_parameter_is_in_exactly_one_group_and_a_tied_one_once(
    norm: str, position: str, bias: bool, tied: bool, embedding_lr: float | None
) -> None:
    model = decoder(norm, position, bias, tied)
    groups = parameter_groups(model, OptimizerConfig(embedding_lr=embedding_lr))
    grouped = [id(p) for group in groups for p in group["params"]]
    assert sorted(grouped) == sorted({id(p) for p in model.parameters()})
    assert all(p.ndim >= 2 for g in groups if g["weight_decay"] for p in g["params"])


def test_fused_adamw_steps_like_the_formula() -> None:
    layer = nn.Linear(2, 1, bias=False)
    weight = layer.weight.detach().clone()
    gradient = torch.tensor([[0.5, -2.0]])
    layer.weight.grad = gradient.clone()
    optimizer = build_optimizer(layer, OptimizerConfig(lr=0.01, weight_decay=0.1))
    optimizer.step()
    assert optimizer.defaults["fused"]
    # After one step both running means, corrected for their start at 0, are g and g².
    expected = weight * (1 - 0.01 * 0.1) - 0.01 * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(layer.weight.detach(), expected)


def rates(model: Decoder, config: OptimizerConfig) -> dict[str, float]:
    """The peak learning rate of each parameter."""
    names = {id(p): name for name, p in model.named_parameters()}
    groups = build_optimizer(model, config).param_groups
    return {names[id(p)]: group["lr"] for group in groups for p in group["params"]}


def test_the_embedding_and_what_is_no_block_matrix_have_rates_of_their_own() -> None:
    model = decoder("rmsnorm", "learned", True, False)
    config = OptimizerConfig(kind="muon", lr=0.1, rest_lr=0.2, embedding_lr=0.3)
    found = rates(model, config)
    assert found["embedding.weight"] == found["position_embedding.weight"] == 0.3
    assert found["head.weight"] == found["final_norm.weight"] == 0.2
    in_blocks = {name: rate for name, rate in found.items() if name.startswith("blocks")}
    matrices = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert in_blocks == {name: 0.1 if name in matrices else 0.2 for name in in_blocks}
    assert set(rates(model, OptimizerConfig(kind="muon", lr=0.1)).values()) == {0.1}
    tied = rates(decoder("rmsnorm", "rope", False, True), OptimizerConfig(embedding_lr=0.3))
    assert tied["embedding.weight"] == 0.3


def test_kinds_and_tables_agree() -> None:
    assert set(OPTIMIZERS) == set(OptimizerKind.__args__)  # type: ignore[attr-defined]
