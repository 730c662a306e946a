"""Planted faults, each against the mistake spelt out by hand, place by place and head by head."""

import math
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from llama_lab.inspect.causality import probe_causality
from llama_lab.inspect.faults import FAULTS, FaultKind, check_fault, plant_fault
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.settings import SettingError
from tests.model.conftest import assert_rounded
from tests.model.test_switches import (
    check_that_a_cache_changes_nothing,
    check_that_no_token_sees_its_future,
    random_decoder,
)

GROUPED = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 4}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "interleaved": {"position": {"rope_pairing": "interleaved"}},
    "part of each head": {"attention": {"head_dim": 8}, "position": {"rope_fraction": 0.5}},
    "without positions in a layer": {"position": {"nope_every": 2}},
    "window": {"attention": {"window": 3, "window_pattern": "LG"}},
    "softcap": {"attention": {"softcap": 2.0}},
    "sinks": {"attention": {"sinks": True}},
    "alibi": {"position": {"kind": "alibi"}},
    "alibi and window": {"position": {"kind": "alibi"}, "attention": {"window": 3}},
    "no positions, tied": {"position": {"kind": "none"}, "tie_embeddings": True},
}


def complete(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "attention": {**GROUPED, **settings.get("attention", {})}}


def combinations() -> Iterator[Any]:
    for fault in FAULTS:
        for name, settings in SETTINGS.items():
            is_rope = settings.get("position", {}).get("kind", "rope") == "rope"
            if is_rope or fault not in ("rope_queries_only", "mixed_rope_pairing"):
                yield pytest.param(fault, complete(settings), id=f"{fault}-{name}")


def turned(x: Tensor, place: int, config: DecoderConfig, pairing: str) -> Tensor:
    """One head's vector ``[E]`` at its place, as complex numbers times e^(i angle)."""
    width = int(x.numel() * (config.position.rope_fraction or 1))
    x = x.clone()
    for pair in range(width // 2):
        a, b = (pair, pair + width // 2) if pairing == "half" else (2 * pair, 2 * pair + 1)
        angle = place * 10000 ** (-2 * pair / width)
        z = complex(x[a], x[b]) * complex(math.cos(angle), math.sin(angle))
        x[a], x[b] = z.real, z.imag
    return x


def score(
    q: Tensor, k: Tensor, t: int, s: int, head: int, config: DecoderConfig, fault: str | None
):
    """The score of the query at t with the key at s; -inf where it is not seen."""
    attention = config.attention
    value = (q @ k).item()
    if fault != "unscaled_scores":
        value /= math.sqrt(config.head_dim)
    if attention.softcap is not None:
        value = attention.softcap * math.tanh(value / attention.softcap)
    if config.position.kind == "alibi":
        value -= 2 ** (-8 * (head + 1) / attention.n_heads) * (t - s)
    return -math.inf if s > t and fault != "no_causal_mask" else value


def attended(decoder: Decoder, layer: int, x: Tensor, fault: str | None) -> Tensor:
    """What a layer's attention reads for ``[T, D]``, before the projection back."""
    config, own = decoder.config, decoder.blocks[layer].attention
    n_heads, kv_heads = config.attention.n_heads, config.attention.kv_heads
    pairing = config.position.rope_pairing or "half"
    others = {"half": "interleaved", "interleaved": "half"}
    every, window = config.position.nope_every, config.attention.window_of(layer)
    rotates = config.position.kind == "rope" and not (every and (layer + 1) % every == 0)
    q, k, v = (f(x).view(len(x), -1, config.head_dim) for f in (own.wq, own.wk, own.wv))
    mixed = torch.zeros_like(q)
    for t in range(len(x)):
        for head in range(n_heads):
            group = head % kv_heads if fault == "kv_tiled" else head // (n_heads // kv_heads)
            scores = []
            for s in range(len(x)):
                query, key = q[t, head], k[s, group]
                if rotates:
                    query = turned(query, t, config, pairing)
                    other = others[pairing] if fault == "mixed_rope_pairing" else pairing
                    key = key if fault == "rope_queries_only" else turned(key, s, config, other)
                hidden = window is not None and t - s >= window
                value = score(query, key, t, s, head, config, fault)
                scores.append(-math.inf if hidden else value)
            weights = [math.exp(value) for value in scores]
            total = sum(weights)
            if config.attention.sinks:
                total += math.exp(own.sinks[head])
            mixed[t, head] = sum(w / total * v[s, group] for s, w in enumerate(weights))
    return mixed.flatten(1)


def by_hand(decoder: Decoder, text: Tensor, fault: str | None) -> Tensor:
    """Logits ``[T, V]`` of a pre-norm decoder with the mistake in it."""
    x = decoder.embedding.weight[text]
    for layer, block in enumerate(decoder.blocks):
        normed = block.attention_norm(x)
        x = x + attended(decoder, layer, normed, fault) @ block.attention.wo.weight.T
        x = x + block.feed_forward(block.feed_forward_norm(x))
    return (x if fault == "no_final_norm" else decoder.final_norm(x)) @ decoder.head_weight.T


def test_every_fault_of_the_table_can_be_chosen() -> None:
    assert set(FAULTS) == set(get_args(FaultKind))
    assert all(len(fault.plant.__doc__.split("Symptom:")) == 2 for fault in FAULTS.values())


@pytest.mark.parametrize(("fault", "settings"), combinations())
@torch.no_grad()
def test_a_fault_computes_the_mistake_and_nothing_else(
    fault: FaultKind, settings: dict[str, Any]
) -> None:
    text = torch.tensor([1, 7, 3, 10, 0, 3, 5, 2])
    # A sound decoder of the same weights gives what it must, which the mistake does not.
    sound, faulty = random_decoder(settings), random_decoder(settings)
    expected = by_hand(sound, text, None)
    assert_rounded(sound.logits(sound(text[None]))[0], expected)
    mistaken = by_hand(sound, text, fault)
    plant_fault(faulty, fault)
    assert_rounded(faulty.logits(faulty(text[None]))[0], mistaken)
    assert (mistaken - expected).abs().max() > 1e-2
    assert faulty.state_dict().keys() == sound.state_dict().keys()


@pytest.mark.parametrize(("fault", "settings"), combinations())
@torch.no_grad()
def test_the_probe_and_a_cache_tell_the_missing_mask_from_all_others(
    fault: FaultKind, settings: dict[str, Any]
) -> None:
    decoder = random_decoder(settings)
    plant_fault(decoder, fault)
    found = probe_causality(decoder)
    if fault == "no_causal_mask":
        assert not found.causal
        assert found.max_difference > 1e-2
        return
    assert found.causal
    assert found.max_difference <= 1e-5
    check_that_no_token_sees_its_future(decoder)
    check_that_a_cache_changes_nothing(decoder)


def test_a_norm_that_is_not_called_is_not_trained() -> None:
    decoder = random_decoder({})
    plant_fault(decoder, "no_final_norm")
    decoder.logits(decoder(torch.tensor([[1, 2, 3]]))).sum().backward()
    without = [name for name, p in decoder.named_parameters() if p.grad is None]
    assert without == ["final_norm.weight"]
    assert not decoder.final_norm.weight.requires_grad


@pytest.mark.parametrize("fault", FAULTS)
def test_every_other_parameter_gets_a_gradient_in_bfloat16_too(fault: FaultKind) -> None:
    decoder = random_decoder(complete({})).bfloat16()
    plant_fault(decoder, fault)
    hidden = decoder(torch.tensor([[1, 2, 3, 4]]))
    assert hidden.dtype == torch.bfloat16
    decoder.logits(hidden).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in decoder.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("fault", "settings", "words"),
    [
        ("rope_queries_only", {"position": {"kind": "alibi"}}, "position.kind alibi"),
        ("rope_queries_only", {"context_length": 1}, "context_length 1"),
        (
            "rope_queries_only",
            {"context_length": 1, "attention": {"sinks": True}},
            "context_length 1",
        ),
        ("mixed_rope_pairing", {"position": {"kind": "learned"}}, "position.kind learned"),
        ("mixed_rope_pairing", {"attention": {"head_dim": 2}}, "attention.head_dim 2"),
        ("mixed_rope_pairing", {"position": {"rope_fraction": 0.5}}, "position.rope_fraction 0.5"),
        ("no_final_norm", {"norm": {"placement": "post"}}, "norm.placement post"),
        ("kv_tiled", {"attention": {"n_kv_heads": 1}}, "attention.n_kv_heads 1"),
        ("kv_tiled", {"attention": {"n_kv_heads": 4}}, "attention.n_kv_heads 4"),
        ("kv_tiled", {"attention": {"n_kv_heads": None}}, "attention.n_heads 4"),
        ("no_causal_mask", {"context_length": 1}, "context_length 1"),
        ("unscaled_scores", {"context_length": 1}, "context_length 1"),
        (
            "unscaled_scores",
            {"attention": {"head_dim": 1}, "position": {"kind": "none"}},
            "attention.head_dim 1",
        ),
    ],
)
def test_a_fault_that_would_do_nothing_is_refused_with_both_settings(
    fault: FaultKind, settings: dict[str, Any], words: str
) -> None:
    config = DecoderConfig.from_dict({"dim": 16, "context_length": 8, **complete(settings)})
    with pytest.raises(SettingError) as refused:
        check_fault(config, fault)
    line = str(refused.value)
    assert f"--model.fault {fault} would do nothing" in line
    assert words in line
    assert "set --model.fault null" in line
    assert "\n" not in line


@torch.no_grad()
def test_sinks_make_the_score_of_a_lone_token_count() -> None:
    settings = complete({"attention": {"sinks": True}})
    sound, faulty = random_decoder(settings), random_decoder(settings)
    plant_fault(faulty, "unscaled_scores")
    check_fault(
        DecoderConfig.from_dict({"dim": 16, **settings, "context_length": 1}), "unscaled_scores"
    )
    text = torch.tensor([[1]])
    assert (sound(text) - faulty(text)).abs().max() > 1e-3


def test_an_unknown_fault_is_refused_with_the_choices() -> None:
    with pytest.raises(SettingError, match=r"--model\.fault none is unknown.*kv_tiled"):
        plant_fault(random_decoder({}), "none")  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"context_length": 1}, {"vocab_size": 1}])
def test_a_probe_without_a_later_token_to_change_is_refused(settings: dict[str, int]) -> None:
    name = next(iter(settings))
    with pytest.raises(SettingError, match=f"{name} 1"):
        probe_causality(random_decoder(settings))
