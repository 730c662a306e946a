"""Attention against the textbook: explicit softmax, explicit copies of shared heads."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from llama_lab.model.attention import (
    QK_NORMS,
    Attention,
    AttentionConfig,
    QKNorm,
    ScoredAttention,
    build_attention,
)
from llama_lab.model.masks import AttentionMask, Position
from llama_lab.model.norms import NORMS, NormConfig, NormKind, build_norm
from llama_lab.model.rope.rotation import RotaryPosition
from tests.model.conftest import assert_rounded

CPU = torch.device("cpu")


def textbook(
    attention: Any, x: Tensor, position: Position, n_heads: int, softcap: float | None = None
) -> Tensor:
    """Head by head, with the scores, the mask and the softmax written out."""
    head_dim = attention.wq.out_features // n_heads
    positions = position.at(0, x.size(1), CPU)
    q, k, v = (
        w(x).unflatten(-1, (-1, head_dim)) for w in (attention.wq, attention.wk, attention.wv)
    )
    q, k = positions.rotate(q), positions.rotate(k)
    outputs = []
    for head in range(n_heads):
        shared = head // (n_heads // k.size(2))
        scores = q[:, :, head] @ k[:, :, shared].transpose(1, 2) / head_dim**0.5
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        future = torch.ones(x.size(1), x.size(1)).triu(1).bool()
        raised = scores.masked_fill(future, float("-inf")).exp()
        total = raised.sum(-1, keepdim=True)
        if getattr(attention, "sinks", None) is not None:
            total = total + attention.sinks[head].exp()
        outputs.append(raised / total @ v[:, :, shared])
    mixed = torch.cat(outputs, dim=-1)
    if attention.wg is not None:
        mixed = mixed / (1 + torch.exp(-attention.wg(x)))
    return attention.wo(mixed)


def randomised(config: AttentionConfig, norm: NormConfig = NormConfig()) -> Attention:  # noqa: B008
    attention = build_attention(config, 16, norm=norm, dropout=0.0)
    for parameter in attention.parameters():
        parameter.normal_(std=0.5)
    return attention


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@torch.no_grad()
def test_attention_is_softmax_of_scaled_masked_scores(n_kv_heads: int, bias: bool) -> None:
    attention = Attention(16, 4, n_kv_heads, qkv_bias=bias, output_bias=bias, dropout=0.0)
    for parameter in attention.parameters():
        parameter.normal_(std=0.5)
    x = torch.randn(2, 6, 16)
    position = RotaryPosition(8, 4, theta=100.0, pairing="half")
    torch.testing.assert_close(
        attention(x, position.at(0, 6, CPU)), textbook(attention, x, position, 4)
    )


@pytest.mark.parametrize(
    ("n_kv_heads", "head_dim", "softcap", "sinks", "gate"),
    itertools.product([1, 2, 4], [None, 6], [None, 0.7], [False, True], [False, True]),
)
@torch.no_grad()
def test_heads_caps_sinks_and_gates_are_what_their_formulas_say(
    n_kv_heads: int, head_dim: int | None, softcap: float | None, sinks: bool, gate: bool
) -> None:
    config = AttentionConfig(
        n_kv_heads=n_kv_heads, head_dim=head_dim, softcap=softcap, sinks=sinks, gate=gate
    )
    attention = randomised(config)
    assert isinstance(attention, ScoredAttention) is (sinks or softcap is not None)
    x = torch.randn(2, 6, 16)
    position = RotaryPosition(8, head_dim or 4, theta=100.0, pairing="half")
    expected = textbook(attention, x, position, 4, softcap)
    assert_rounded(attention(x, position.at(0, 6, CPU)), expected)


@pytest.mark.parametrize("kind", NORMS)
@pytest.mark.parametrize("qk_norm", QK_NORMS)
@torch.no_grad()
def test_queries_and_keys_are_normalised_by_head_or_together_before_they_are_turned(
    qk_norm: QKNorm, kind: NormKind
) -> None:
    norm = NormConfig(kind=kind, eps=None if kind == "dyt" else 1e-2)
    attention = randomised(AttentionConfig(n_kv_heads=2, qk_norm=qk_norm), norm)
    x, position = torch.randn(1, 3, 16), RotaryPosition(8, 4, theta=100.0, pairing="half")
    positions = position.at(0, 3, CPU)
    heads = []
    for projection, own in ((attention.wq, attention.q_norm), (attention.wk, attention.k_norm)):
        projected = projection(x)
        pieces = {"none": 0, "head": projected.size(-1) // 4, "projection": 1}[qk_norm]
        if pieces:
            same: Any = build_norm(norm, projected.size(-1) // pieces)
            same.load_state_dict(own.state_dict())
            projected = torch.cat([same(piece) for piece in projected.chunk(pieces, -1)], dim=-1)
        heads.append(positions.rotate(projected.unflatten(-1, (-1, 4))).transpose(1, 2))
    q, k = heads
    v = attention.wv(x).unflatten(-1, (-1, 4)).transpose(1, 2)
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    future = torch.ones(3, 3).triu(1).bool()
    weights = (q @ k.mT / 2).masked_fill(future, float("-inf")).softmax(-1)
    expected = attention.wo((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, positions), expected)


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("kind", ["none", "causal", "mask", "bias"])
@torch.no_grad()
def test_held_scores_take_masks_and_biases_as_fused_attention_does(
    kind: str, n_kv_heads: int
) -> None:
    fused = randomised(AttentionConfig(n_kv_heads=n_kv_heads))
    scored = ScoredAttention(
        16, 4, n_kv_heads, cap=None, sinks=False, qkv_bias=False, output_bias=False, dropout=0.0
    )
    n_keys = 5 if kind == "causal" else 7
    q = torch.randn(2, 4, 5, 4)
    k, v = torch.randn(2, 2, n_kv_heads, n_keys, 4).unbind()
    mask = {
        "mask": torch.ones(5, 7, dtype=torch.bool).tril(2),
        "bias": torch.randn(4, 5, 7).masked_fill(torch.rand(5, 7) > 0.8, float("-inf")),
    }.get(kind)
    torch.testing.assert_close(
        scored.dot_product(q, k, v, mask, kind == "causal"),
        fused.dot_product(q, k, v, mask, kind == "causal"),
    )


@torch.no_grad()
def test_a_cap_spares_biases_and_masks() -> None:
    attention = randomised(AttentionConfig(softcap=0.1))
    q, k, v = torch.randn(3, 1, 4, 2, 4).unbind()
    far = torch.tensor([[0.0, -1e4], [-1e4, 0.0]])
    torch.testing.assert_close(attention.dot_product(q, k, v, far, False), v)


@torch.no_grad()
def test_a_sink_takes_attention_and_gives_nothing() -> None:
    attention: Any = randomised(AttentionConfig(sinks=True))
    plain = randomised(AttentionConfig())
    q, k, v = torch.randn(3, 1, 4, 3, 4).unbind()
    attention.sinks.fill_(-1e4)
    without = plain.dot_product(q, k, v, None, True)
    torch.testing.assert_close(attention.dot_product(q, k, v, None, True), without)
    # Equal to the only score that the first token sees, it takes half.
    attention.sinks.copy_((q[0, :, 0] * k[0, :, 0]).sum(-1) / 2)
    torch.testing.assert_close(
        attention.dot_product(q, k, v, None, True)[:, :, 0], without[:, :, 0] / 2
    )
    attention.sinks.fill_(1e4)
    assert attention.dot_product(q, k, v, None, True).abs().max() == 0


@pytest.mark.parametrize("settings", [{"sinks": True}, {"softcap": 5.0}])
@torch.no_grad()
def test_held_scores_are_dropped_in_training_only(settings: dict[str, Any]) -> None:
    config = AttentionConfig(n_heads=1, **settings)
    attention = build_attention(config, 16, norm=NormConfig(), dropout=0.5)
    x, positions = torch.randn(1, 4, 16), Position().at(0, 4, CPU)
    torch.testing.assert_close(attention.eval()(x, positions), attention(x, positions))
    first = torch.stack([attention.train()(x, positions)[0, 0] for _ in range(20)])
    # The first token sees itself alone: its weight is dropped, or doubled.
    assert len(first.unique(dim=0)) == 2


@pytest.mark.parametrize("qk_norm", QK_NORMS)
@pytest.mark.parametrize("kind", NORMS)
def test_heads_keep_the_precision_of_their_projection(kind: NormKind, qk_norm: QKNorm) -> None:
    attention = build_attention(
        AttentionConfig(qk_norm=qk_norm), 16, norm=NormConfig(kind=kind), dropout=0.0
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        projected = attention.wq(torch.randn(1, 3, 16))
        heads = attention.split(projected, attention.q_norm, attention.head_dim)
    assert projected.dtype == heads.dtype == torch.bfloat16


def test_biases_stand_where_they_were_asked_for() -> None:
    def biases(**switches: bool) -> set[str]:
        attention = Attention(16, 4, 2, dropout=0.0, **switches)
        return {name for name, _ in attention.named_parameters() if name.endswith("bias")}

    assert biases(qkv_bias=False, output_bias=False) == set()
    assert biases(qkv_bias=True, output_bias=False) == {"wq.bias", "wk.bias", "wv.bias"}
    assert biases(qkv_bias=False, output_bias=True) == {"wo.bias"}
    gated = {"wq.bias", "wk.bias", "wv.bias", "wg.bias"}
    assert biases(qkv_bias=True, output_bias=False, gate=True) == gated
    assert biases(qkv_bias=False, output_bias=True, gate=True) == {"wo.bias"}


def test_the_mask_of_tokens_that_follow_others_is_aligned_with_the_end() -> None:
    mask_for = Position().mask_for
    mask = mask_for(2, 2, CPU).tensor
    assert mask.int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert not mask_for(2, 2, CPU).is_causal
    assert mask_for(0, 4, CPU) == AttentionMask(None, is_causal=True)
    assert mask_for(5, 1, CPU) == AttentionMask(None, is_causal=False)
    assert mask_for(0, 1, CPU) == AttentionMask(None, is_causal=False)
