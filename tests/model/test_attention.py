"""Attention against the textbook: explicit softmax, explicit copies of shared heads."""

import pytest
import torch
from torch import Tensor

from llama_lab.model.attention import Attention
from llama_lab.model.places import Position, Sight
from llama_lab.model.rope import RotaryPosition

CPU = torch.device("cpu")


def textbook(attention: Attention, x: Tensor, position: Position, n_heads: int) -> Tensor:
    """Head by head, with the scores, the mask and the softmax written out."""
    head_dim = x.size(-1) // n_heads
    places = position.at(0, x.size(1), CPU)
    q, k, v = (
        w(x).unflatten(-1, (-1, head_dim)) for w in (attention.wq, attention.wk, attention.wv)
    )
    q, k = places.rotate(q), places.rotate(k)
    outputs = []
    for head in range(n_heads):
        shared = head // (n_heads // k.size(2))
        scores = q[:, :, head] @ k[:, :, shared].transpose(1, 2) / head_dim**0.5
        future = torch.ones(x.size(1), x.size(1)).triu(1).bool()
        outputs.append(scores.masked_fill(future, float("-inf")).softmax(-1) @ v[:, :, shared])
    return attention.wo(torch.cat(outputs, dim=-1))


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


def test_biases_stand_where_they_were_asked_for() -> None:
    def biases(**switches: bool) -> set[str]:
        attention = Attention(16, 4, 2, dropout=0.0, **switches)
        return {name for name, _ in attention.named_parameters() if name.endswith("bias")}

    assert biases(qkv_bias=False, output_bias=False) == set()
    assert biases(qkv_bias=True, output_bias=False) == {"wq.bias", "wk.bias", "wv.bias"}
    assert biases(qkv_bias=False, output_bias=True) == {"wo.bias"}


def test_the_mask_of_tokens_that_follow_others_is_aligned_with_the_end() -> None:
    sight = Position().sight
    mask = sight(2, 2, CPU).mask
    assert mask.int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert not sight(2, 2, CPU).is_causal
    assert sight(0, 4, CPU) == Sight(None, is_causal=True)
    assert sight(5, 1, CPU) == Sight(None, is_causal=False)
    assert sight(0, 1, CPU) == Sight(None, is_causal=False)
