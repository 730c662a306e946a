"""Normalisation against its formula, and its place around the sublayers."""

from typing import Any

import pytest
import torch
from torch import nn

from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from llama_lab.model.norms import NormConfig, build_norm


def test_layernorm_centres_scales_and_shifts() -> None:
    norm: Any = build_norm(NormConfig(kind="layernorm", eps=0.25), 4)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        norm.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 0.5]))
    # Mean 2.5 and variance 1.25: the deviation with eps is sqrt(1.5).
    expected = torch.tensor([-1.5, -0.5, 0.5, 1.5]) / 1.5**0.5 * torch.tensor([1, 2, 3, 4.0])
    expected += torch.tensor([0.0, 0.0, 0.0, 0.5])
    torch.testing.assert_close(norm(torch.tensor([1.0, 2.0, 3.0, 4.0])), expected)


def test_rmsnorm_scales_without_centring() -> None:
    norm: Any = build_norm(NormConfig(kind="rmsnorm", eps=0.5), 4)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    # Mean square 7.5: with eps, 8.
    expected = torch.tensor([1.0, 4.0, 9.0, 16.0]) / 8**0.5
    torch.testing.assert_close(norm(torch.tensor([1.0, 2.0, 3.0, 4.0])), expected)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (NormConfig(kind="layernorm"), {"weight", "bias"}),
        (NormConfig(kind="layernorm", bias=True), {"weight", "bias"}),
        (NormConfig(kind="layernorm", bias=False), {"weight"}),
        (NormConfig(kind="rmsnorm"), {"weight"}),
    ],
)
def test_the_bias_is_there_when_asked_for(config: NormConfig, names: set[str]) -> None:
    assert set(dict(build_norm(config, 8).named_parameters())) == names


def tiny(**settings: Any) -> Any:
    config = {"dim": 16, "n_layers": 2, "context_length": 8, "vocab_size": 11, **settings}
    decoder = Decoder(DecoderConfig.from_dict(config)).eval()
    initialise(decoder, 0)
    return decoder


@torch.no_grad()
def test_pre_norm_leaves_the_stream_untouched_and_normalises_it_at_the_end() -> None:
    decoder = tiny(norm={"placement": "pre"})
    for block in decoder.blocks:
        block.attention.wo.weight.zero_()
        block.feed_forward.down.weight.zero_()
    tokens = torch.tensor([[1, 5, 9]])
    torch.testing.assert_close(
        decoder(tokens), nn.functional.rms_norm(decoder.embedding(tokens), (16,), eps=1e-5)
    )


@torch.no_grad()
def test_post_norm_normalises_every_sum_and_has_no_norm_at_the_end() -> None:
    decoder = tiny(norm={"placement": "post"})
    block = decoder.blocks[-1]
    block.feed_forward_norm.weight.fill_(3.0)
    hidden = decoder(torch.tensor([[1, 5, 9]]))
    torch.testing.assert_close(hidden.square().mean(-1), torch.full((1, 3), 9.0), rtol=0.01, atol=0)
    assert not any("final_norm" in name for name, _ in decoder.named_parameters())
