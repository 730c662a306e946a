"""Normalisation against its formula, and its place around the sublayers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llama_lab.model.block import BLOCKS
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from llama_lab.model.norms import NORMS, NormConfig, NormKind, build_norm


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


@pytest.mark.parametrize("shape", [(16,), (7, 16), (2, 3, 4, 16)], ids=str)
def test_rmsnorm_and_its_gradients_are_those_of_torch(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    norm: Any = build_norm(NormConfig(kind="rmsnorm", eps=0.1), 16)
    torch.nn.init.normal_(norm.weight)
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)
    expected = nn.functional.rms_norm(x, (16,), norm.weight, 0.1)
    torch.testing.assert_close(norm(x), expected)
    leaves = (x, norm.weight)
    torch.testing.assert_close(
        torch.autograd.grad(norm(x), leaves, grad), torch.autograd.grad(expected, leaves, grad)
    )


def test_an_offset_is_added_to_the_gain() -> None:
    norm: Any = build_norm(NormConfig(kind="rmsnorm_offset", eps=0.5), 4)
    assert torch.equal(norm.weight, torch.zeros(4))
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.0, 1.0, 2.0, -1.0]))
    expected = torch.tensor([1.0, 4.0, 9.0, 0.0]) / 8**0.5
    torch.testing.assert_close(norm(torch.tensor([1.0, 2.0, 3.0, 4.0])), expected)


def test_an_offset_too_small_for_bfloat16_beside_one_still_counts() -> None:
    norm: Any = build_norm(NormConfig(kind="rmsnorm_offset"), 4).bfloat16()
    with torch.no_grad():
        norm.weight.fill_(0.003)
    x = torch.full((4,), 256.0, dtype=torch.bfloat16)
    assert norm(x).dtype == torch.bfloat16
    gain = 1 + norm.weight.float()
    assert torch.equal(norm(x), gain.bfloat16())
    x = x * torch.tensor([1, 1, 1, 1.1875], dtype=torch.bfloat16)
    exact = x.float() / x.float().square().mean().sqrt() * gain
    assert torch.equal(norm(x), exact.bfloat16())


def test_without_a_gain_only_the_scale_is_taken_out() -> None:
    norm: Any = build_norm(NormConfig(kind="rmsnorm_plain", eps=0.5), 4)
    expected = torch.tensor([1.0, 2.0, 3.0, 4.0]) / 8**0.5
    torch.testing.assert_close(norm(torch.tensor([1.0, 2.0, 3.0, 4.0])), expected)


def test_dyt_squashes_each_entry_by_itself() -> None:
    norm: Any = build_norm(NormConfig(kind="dyt"), 4)
    x = torch.tensor([0.0, 1.0, -2.0, 100.0])
    torch.testing.assert_close(norm(x), torch.tensor([0.0, 0.4621172, -0.7615942, 1.0]))
    with torch.no_grad():
        norm.alpha.fill_(2.0)
        norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        norm.bias.copy_(torch.tensor([5.0, 6.0, 7.0, 8.0]))
    expected = torch.tensor([5.0, 2 * 0.9640276 + 6, 3 * -0.9993293 + 7, 12.0])
    torch.testing.assert_close(norm(x), expected)


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (NormConfig(kind="layernorm"), {"weight", "bias"}),
        (NormConfig(kind="layernorm", bias=True), {"weight", "bias"}),
        (NormConfig(kind="layernorm", bias=False), {"weight"}),
        (NormConfig(kind="rmsnorm"), {"weight"}),
        (NormConfig(kind="rmsnorm_offset"), {"weight"}),
        (NormConfig(kind="rmsnorm_plain"), set()),
        (NormConfig(kind="dyt"), {"alpha", "weight", "bias"}),
    ],
)
def test_a_kind_has_its_parameters_and_a_bias_when_asked_for(
    config: NormConfig, names: set[str]
) -> None:
    assert set(dict(build_norm(config, 8).named_parameters())) == names


def tiny(**settings: Any) -> Any:
    config = {"dim": 16, "n_layers": 2, "context_length": 8, "vocab_size": 11, **settings}
    decoder = Decoder(DecoderConfig.from_dict(config)).eval()
    initialise(decoder, 0)
    return decoder


@pytest.mark.parametrize("kind", [kind for kind in NORMS if kind != "dyt"])
def test_eps_is_one_in_a_hundred_thousand_unless_given(kind: NormKind) -> None:
    x = torch.tensor([1e-3, -1e-3, 1e-3, -1e-3])
    for eps, size in ((None, (1e-6 / 1.1e-5) ** 0.5), (3e-6, 0.5)):
        norm: Any = build_norm(NormConfig(kind=kind, eps=eps), 4)
        torch.testing.assert_close(norm(x).abs(), torch.full((4,), size))


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


def rms(x: Tensor, norm: Any) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight


@pytest.mark.parametrize("placement", ["sandwich", "reordered", "parallel"])
@torch.no_grad()
def test_a_layout_is_its_equation_and_ends_with_a_norm(placement: str) -> None:
    decoder = tiny(norm={"placement": placement}, n_layers=1, init={"std": 0.3})
    norms = {name for name, _ in decoder.named_parameters() if "norm" in name}
    (block,) = decoder.blocks
    for name, parameter in decoder.named_parameters():
        if name in norms:
            parameter.copy_(torch.rand(parameter.shape) + 0.5)
    tokens = torch.tensor([[1, 5, 9]])
    x = decoder.embedding(tokens)
    (positions,) = decoder.layer_positions.at(0, 3, torch.device("cpu"))

    def attention(y: Tensor) -> Tensor:
        return block.attention(y, positions)

    if placement == "sandwich":
        x = x + rms(attention(rms(x, block.attention_norm)), block.attention_post_norm)
        hidden = block.feed_forward(rms(x, block.feed_forward_norm))
        x = x + rms(hidden, block.feed_forward_post_norm)
        expected = {"attention_norm", "feed_forward_norm"}
        expected |= {"attention_post_norm", "feed_forward_post_norm"}
    elif placement == "reordered":
        x = x + rms(attention(x), block.attention_post_norm)
        x = x + rms(block.feed_forward(x), block.feed_forward_post_norm)
        expected = {"attention_post_norm", "feed_forward_post_norm"}
    else:
        normed = rms(x, block.attention_norm)
        x = x + attention(normed) + block.feed_forward(normed)
        expected = {"attention_norm"}
    torch.testing.assert_close(decoder(tokens), rms(x, decoder.final_norm))
    assert norms == {f"blocks.0.{name}.weight" for name in expected} | {"final_norm.weight"}


@pytest.mark.parametrize("placement", BLOCKS)
def test_dropout_reaches_what_each_sublayer_adds(placement: str) -> None:
    decoder = tiny(norm={"placement": placement}, dropout=0.5).train()
    seen: list[Tensor] = []
    for block in decoder.blocks:
        block.dropout.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    decoder(torch.tensor([[1, 5, 9]]))
    assert len(seen) == 2 * 2
    assert all(0.2 < (output == 0).float().mean() < 0.8 for output in seen)
