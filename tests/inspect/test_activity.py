"""What is observed of the layers, against softmaxes, sums and masks written out by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from llama_lab.inspect.activity import observe
from llama_lab.inspect.faults import plant_fault
from llama_lab.model.attention import AttentionConfig
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.feed_forward import FEED_FORWARDS, FeedForwardConfig
from llama_lab.model.positions import PositionConfig

N_TOKENS, N_HEADS = 11, 4


def build(
    attention: dict[str, Any] | None = None,
    position: str = "rope",
    feed_forward: str = "swiglu",
    **settings: Any,
) -> tuple[Decoder, Tensor]:
    """A decoder whose weights are large enough to matter, and texts for it."""
    config = DecoderConfig(
        dim=16,
        n_layers=2,
        context_length=16,
        vocab_size=20,
        attention=AttentionConfig(n_heads=N_HEADS, **(attention or {})),
        position=PositionConfig(kind=position),
        feed_forward=FeedForwardConfig(kind=feed_forward),
        **settings,
    )
    draws = torch.Generator().manual_seed(1)
    decoder = Decoder(config).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(std=0.5, generator=draws)
    return decoder, torch.randint(20, (3, N_TOKENS), generator=draws)


def turned(heads: Tensor) -> Tensor:
    """``[B, T, H, E]`` turned by rope, coordinate i with i + E/2."""
    half = heads.size(-1) // 2
    angles = torch.arange(heads.size(1))[:, None] * 10000.0 ** (-torch.arange(half) / half)
    pairs = torch.complex(heads[..., :half], heads[..., half:])
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def entropy_by_hand(decoder: Decoder, layer: int, x: Tensor) -> float:
    """Of the layer whose attention reads ``x``: query by query, key by key."""
    config, attention = decoder.config.attention, decoder.blocks[layer].attention
    is_global = config.window is None or config.window_of(layer) is None
    window = N_TOKENS if is_global else config.window
    q, k = (w(x).unflatten(-1, (-1, attention.head_dim)) for w in (attention.wq, attention.wk))
    if config.qk_norm == "head":
        q, k = attention.q_norm(q), attention.k_norm(k)
    if decoder.config.position.kind == "rope":
        q, k = turned(q), turned(k)
    found = []
    for text in range(x.size(0)):
        for head in range(N_HEADS):
            shared = head // (N_HEADS // config.kv_heads)
            for t in range(N_TOKENS):
                seen = range(max(0, t - window + 1), t + 1)
                scores = [q[text, t, head] @ k[text, s, shared] for s in seen]
                scores = [s / math.sqrt(attention.head_dim) for s in scores]
                if config.softcap is not None:
                    scores = [config.softcap * torch.tanh(s / config.softcap) for s in scores]
                if decoder.config.position.kind == "alibi":
                    slope = 2 ** (-8 * (head + 1) / N_HEADS)
                    scores = [s - slope * (t - at) for s, at in zip(scores, seen, strict=True)]
                if config.sinks:
                    scores.append(attention.sinks[head])
                weights = [math.exp(s) for s in scores]
                shares = [w / sum(weights) for w in weights]
                found.append(-sum(p * math.log(p) for p in shares))
    return sum(found) / len(found)


@pytest.mark.parametrize(
    ("attention", "position"),
    [
        ({}, "none"),
        ({"n_kv_heads": 2}, "rope"),
        ({"n_kv_heads": 1, "head_dim": 6}, "rope"),
        ({"qk_norm": "head"}, "rope"),
        ({"window": 3}, "rope"),
        ({"window": 7, "n_kv_heads": 2}, "none"),
        ({"window": 2, "window_pattern": "GL"}, "rope"),
        ({}, "alibi"),
        ({"window": 3}, "alibi"),
        ({"softcap": 0.7, "window": 3}, "alibi"),
        ({"sinks": True, "n_kv_heads": 2}, "rope"),
        ({"sinks": True, "softcap": 2.0, "window": 4}, "rope"),
    ],
    ids=str,
)
@torch.no_grad()
def test_attention_entropy_is_that_of_a_softmax_by_hand(
    attention: dict[str, Any], position: str
) -> None:
    decoder, tokens = build(attention, position)
    read: list[Tensor] = []
    hooks = [
        block.attention.register_forward_pre_hook(lambda _, arguments: read.append(arguments[0]))
        for block in decoder.blocks
    ]
    decoder(tokens)
    for hook in hooks:
        hook.remove()
    for layer, found in enumerate(observe(decoder, tokens)):
        by_hand = entropy_by_hand(decoder, layer, read[layer])
        assert found.attention_entropy.item() == pytest.approx(by_hand, rel=1e-5, abs=1e-5)


@torch.no_grad()
def test_even_attention_has_the_entropy_of_a_count_and_a_planted_fault_shows() -> None:
    decoder, tokens = build(position="none")
    for block in decoder.blocks:
        block.attention.wq.weight.zero_()
    even = math.log(math.factorial(N_TOKENS)) / N_TOKENS  # the mean of log t, t from 1
    assert observe(decoder, tokens)[1].attention_entropy.item() == pytest.approx(even, rel=1e-5)
    plant_fault(decoder, "no_causal_mask")
    found = observe(decoder, tokens)[1].attention_entropy.item()
    assert found == pytest.approx(math.log(N_TOKENS), rel=1e-5)


@torch.no_grad()
def test_tiled_heads_are_observed_as_they_are_read() -> None:
    decoder, tokens = build({"n_kv_heads": 2})
    order = [0, 2, 1, 3]  # tiled, query head h reads kv head h mod 2: a sound one, reordered
    plain = build({"n_kv_heads": 2})[0]
    for block in plain.blocks:
        for weight, axis in ((block.attention.wq.weight, 0), (block.attention.wo.weight, 1)):
            heads = weight.unflatten(axis, (N_HEADS, -1)).index_select(axis, torch.tensor(order))
            weight.copy_(heads.flatten(axis, axis + 1))
    plant_fault(decoder, "kv_tiled")
    for tiled, sound in zip(observe(decoder, tokens), observe(plain, tokens), strict=True):
        torch.testing.assert_close(tiled.attention_entropy, sound.attention_entropy)


@torch.no_grad()
def test_activation_rms_is_that_of_the_stream_behind_each_layer() -> None:
    decoder, tokens = build()
    x = decoder.embedding(tokens)
    positions = decoder.layer_positions.at(0, N_TOKENS, x.device)
    for block, place, found in zip(
        decoder.blocks, positions, observe(decoder, tokens), strict=True
    ):
        x = block(x, place)
        assert found.activation_rms.item() == pytest.approx(
            math.sqrt(sum(v * v for v in x.flatten().tolist()) / x.numel()), rel=1e-5
        )


@pytest.mark.parametrize("kind", FEED_FORWARDS)
@torch.no_grad()
def test_dead_units_are_those_that_no_token_switches_on(kind: str) -> None:
    decoder, tokens = build(feed_forward=kind)
    first = decoder.blocks[0].feed_forward
    switch = first.gate if kind == "reglu" else first.up
    switch.weight[:5] = 0  # 0 behind a relu, whatever comes in
    inputs: list[Tensor] = []
    with first.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0])):
        decoder(tokens)
    found = observe(decoder, tokens)[0].dead_units
    if kind not in ("relu", "relu_squared", "reglu"):
        assert found is None
        return
    on = (F.linear(inputs[0], switch.weight) > 0).flatten(0, 1).any(dim=0)
    assert found is not None
    assert found.item() == pytest.approx(1 - on.sum().item() / on.numel())
    assert 5 <= (~on).sum() < on.numel()


def test_observing_changes_nothing_and_sees_no_dropout() -> None:
    decoder, tokens = build(dropout=0.5)
    sober = observe(decoder, tokens)
    decoder.train()
    before = torch.get_rng_state()
    assert observe(decoder, tokens) == sober
    assert torch.equal(torch.get_rng_state(), before)
    assert decoder.training
    assert all(parameter.grad is None for parameter in decoder.parameters())
    for module in decoder.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_a_compiled_decoder_is_observed_all_the_same_and_not_compiled_again() -> None:
    decoder, tokens = build({"window": 3, "n_kv_heads": 2})
    plain = observe(decoder, tokens)
    compiled: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    for block in decoder.blocks:
        block.compile(backend=backend)
    decoder.train()(tokens).sum().backward()
    n_compiled = len(compiled)
    assert n_compiled > 0
    assert observe(decoder, tokens) == plain
    decoder(tokens).sum().backward()
    assert len(compiled) == n_compiled


@torch.no_grad()
def test_under_autocast_the_scores_are_those_of_half_precision_and_their_softmax_is_not() -> None:
    decoder, tokens = build()
    full = observe(decoder, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        half = observe(decoder, tokens)
    for a, b in zip(full, half, strict=True):
        assert a.attention_entropy != b.attention_entropy
        torch.testing.assert_close(a.attention_entropy, b.attention_entropy, rtol=3e-2, atol=0)
        torch.testing.assert_close(a.activation_rms, b.activation_rms, rtol=1e-2, atol=0)
        assert b.attention_entropy.dtype == torch.float32
