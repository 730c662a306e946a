"""Muon against torch's own, and two optimisers as one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from llama_lab.model.settings import SettingError
from llama_lab.training import muon
from llama_lab.training.muon import Combined, Muon, orthogonal
from llama_lab.training.optimizers import OptimizerConfig, build_optimizer

CONFIG = DecoderConfig.from_dict(
    {"dim": 16, "n_layers": 2, "context_length": 8, "vocab_size": 11}
    | {"tie_embeddings": False}
    | {"attention": {"n_heads": 2, "n_kv_heads": 1}}
)
TOKENS = torch.arange(18).reshape(2, 9) % 11


def model() -> Decoder:
    built = Decoder(CONFIG)
    initialise(built, 0)
    return built


def step_alike(model: Decoder, optimizers: list[torch.optim.Optimizer], steps: int) -> None:
    """A few steps with gradients that no rounding of the steps before has changed."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        for optimizer in optimizers:
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] *= 0.5


def train(model: Decoder, optimizers: list[torch.optim.Optimizer], steps: int) -> None:
    """A few steps; the rate halves at each, as a schedule would have it."""
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        hidden = model(TOKENS[:, :-1])
        model.loss(hidden, TOKENS[:, 1:], reduction="mean").backward()
        for optimizer in optimizers:
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] *= 0.5


@pytest.mark.parametrize("stack", [muon.STACK, 1])
@pytest.mark.parametrize("rule", ["match_rms_adamw", "original"])
def test_it_steps_as_torchs_muon_and_adamw_do_side_by_side(
    rule: Any, stack: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(muon, "STACK", stack)
    ours, theirs = model(), model()
    config = OptimizerConfig(
        kind="muon", lr=0.05, rest_lr=0.01, weight_decay=0.3, momentum=0.8, step_scale=rule
    )
    step_alike(ours, [build_optimizer(ours, config)], 4)
    matrices = [p for p in theirs.blocks.parameters() if p.ndim == 2]
    known = {id(p) for p in matrices}
    rest = [p for p in theirs.parameters() if id(p) not in known]
    head = [theirs.head_weight]
    others = [p for p in rest if p is not head[0]]
    separate: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=0.05, weight_decay=0.3, momentum=0.8, adjust_lr_fn=rule),
        torch.optim.AdamW(
            [{"params": head, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}],
            lr=0.01,
            betas=config.betas,
        ),
    ]
    step_alike(theirs, separate, 4)
    start = dict(model().named_parameters())
    for (name, here), there in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        moved = (there - start[name]).norm()
        assert moved > 0, name
        # The products are in bfloat16, of which one has another order.
        assert (here - there).norm() < 0.02 * moved, name


@pytest.mark.parametrize("shape", [(3, 16, 16), (2, 40, 16), (1, 16, 40)])
def test_steps_have_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    stack = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    steps = orthogonal(stack, (3.4445, -4.775, 2.0315), 5).float()
    values = torch.linalg.svdvals(steps)
    assert values.min() > 0.5
    assert values.max() < 1.3
    u, _, vt = torch.linalg.svd(stack, full_matrices=False)
    cosine = (steps * (u @ vt)).sum((1, 2)) / steps.norm(dim=(1, 2)) / (u @ vt).norm(dim=(1, 2))
    assert cosine.min() > 0.95


def test_it_goes_on_from_its_state_to_the_bit() -> None:
    config = OptimizerConfig(kind="muon", lr=0.02, embedding_lr=0.05)
    whole = model()
    optimizer = build_optimizer(whole, config)
    train(whole, [optimizer], 2)
    halfway = copy.deepcopy(whole)
    state = copy.deepcopy(optimizer.state_dict())
    train(whole, [optimizer], 2)
    again = build_optimizer(halfway, config)
    again.load_state_dict(state)
    train(halfway, [again], 2)
    for here, there in zip(whole.parameters(), halfway.parameters(), strict=True):
        assert torch.equal(here, there)


def test_two_optimisers_share_groups_and_state_as_one() -> None:
    first, second = nn.Linear(3, 2, bias=False), nn.Linear(2, 2, bias=False)
    one, two = Muon(first.parameters()), torch.optim.SGD(second.parameters(), lr=0.5)
    both = Combined([one, two])
    for layer in (first, second):
        layer.weight.grad = torch.ones_like(layer.weight)
    before = second.weight.detach().clone()
    both.param_groups[1]["lr"] = 0.25
    assert both.step(lambda: torch.tensor(3.0)) == 3.0
    assert torch.equal(second.weight, before - 0.25)
    assert first.weight in both.state


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"momentum": 0.9}, "optimizer.momentum"),
        ({"rest_lr": 0.1}, "optimizer.rest_lr"),
        ({"step_scale": "original"}, "optimizer.step_scale"),
        ({"kind": "muon", "momentum": 1.0}, r"momentum 1.0: must be in \[0, 1\)"),
        ({"kind": "muon", "embedding_lr": 0.0}, "embedding_lr 0.0: must be above 0"),
    ],
)
def test_a_setting_that_does_nothing_or_cannot_be_is_refused(
    settings: dict[str, object], words: str
) -> None:
    with pytest.raises(SettingError, match=words):
        OptimizerConfig(**settings)  # type: ignore[arg-type]
