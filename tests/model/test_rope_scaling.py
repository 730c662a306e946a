"""Scaled rotary positions: frequencies, texts past the original context, precision, fractions."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from llama_lab.model.cache import DecoderCache
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from llama_lab.model.layers import LayerKind
from llama_lab.model.positions import POSITIONS, PositionConfig, PositionSizes
from llama_lab.model.rope.rotation import ROPE_PAIRINGS, RopePairing, RotaryPosition
from llama_lab.model.rope.scaling import RopeScalingConfig, build_rope_scaling

CPU = torch.device("cpu")
GLOBAL, LOCAL = LayerKind(None, True), LayerKind(4, True)


def frequencies(
    length: int = 0, *, theta: float = 10000.0, width: int = 64, **config: Any
) -> Tensor:
    """Of a model of context 256, for a text of ``length`` tokens."""
    scaling = build_rope_scaling(RopeScalingConfig(**config), 256)
    return scaling.frequencies(theta, width, scaling.span(length), CPU)


PLAIN = 10000.0 ** -(torch.arange(32, dtype=torch.float64) / 32)


def test_linear_divides_every_frequency() -> None:
    torch.testing.assert_close(frequencies(kind="linear", factor=3.0), PLAIN / 3)


def test_ntk_keeps_the_fastest_frequency_and_divides_the_slowest_by_the_factor() -> None:
    scaled = frequencies(kind="ntk", factor=8.0)
    torch.testing.assert_close(scaled[[0, -1]], PLAIN[[0, -1]] / torch.tensor([1.0, 8.0]).double())
    ratio = (PLAIN / scaled).log()
    # The base grows, so the logarithm of the division rises evenly from pair to pair.
    torch.testing.assert_close(ratio, torch.arange(32).double() / 31 * math.log(8))


def test_dynamic_is_ntk_by_as_much_as_the_text_is_longer() -> None:
    dynamic = {"kind": "dynamic", "factor": 2.0, "original_context_length": 100}
    for length in (1, 99, 100):
        torch.testing.assert_close(frequencies(length, **dynamic), PLAIN)
    # 2 · 250/100 - 1 = 4
    torch.testing.assert_close(frequencies(250, **dynamic), frequencies(kind="ntk", factor=4.0))
    by_length = {**dynamic, "factor": 1.0}
    torch.testing.assert_close(frequencies(250, **by_length), frequencies(kind="ntk", factor=2.5))


def test_yarn_keeps_many_turns_and_divides_few() -> None:
    scaled = frequencies(kind="yarn", factor=4.0, original_context_length=2048)
    turns = 2048 * PLAIN / (2 * math.pi)
    torch.testing.assert_close(scaled[turns > 40], PLAIN[turns > 40])
    torch.testing.assert_close(scaled[turns < 0.8], PLAIN[turns < 0.8] / 4)
    between = (turns < 20) & (turns > 2)
    assert between.any()
    assert (scaled[between] < PLAIN[between]).all()
    assert (scaled[between] > PLAIN[between] / 4).all()


def test_llama3_blends_by_the_number_of_turns() -> None:
    scaled = frequencies(kind="llama3", original_context_length=2048)
    for plain, got in zip(PLAIN.tolist(), scaled.tolist(), strict=True):
        turns = 2048 / (2 * math.pi / plain)
        share = min(max((turns - 1) / (4 - 1), 0), 1)
        assert got == pytest.approx(share * plain + (1 - share) * plain / 8)


def test_yarn_sharpens_attention_by_its_factor() -> None:
    def length_after(**config: Any) -> float:
        scaling = build_rope_scaling(RopeScalingConfig(kind="yarn", **config), 16)
        rope = RotaryPosition(16, 8, theta=100.0, pairing="half", scaling=scaling)
        return rope.at(3, 1, CPU).rotate(torch.full((1, 1, 1, 8), 8**-0.5)).norm().item()

    assert length_after(factor=4.0) == pytest.approx(0.1 * math.log(4) + 1)
    assert length_after(factor=4.0, attention_factor=1.5) == pytest.approx(1.5)


# What transformers calls it, and the settings of both.
CASES = [
    ("linear", {"factor": 3.0}),
    ("dynamic", {"factor": 2.0}),
    ("dynamic", {"factor": 1.0}),
    ("yarn", {"factor": 8.0}),
    ("yarn", {"factor": 8.0, "beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 1.3}),
    ("llama3", {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    ("llama3", {"factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 5.0}),
]


@pytest.mark.parametrize(("kind", "factors"), CASES)
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("length", [10, 256, 1000])
def test_frequencies_are_those_of_transformers(
    kind: str, factors: dict[str, float], theta: float, length: int
) -> None:
    transformers = pytest.importorskip("transformers")
    table = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    scaling = {"rope_type": kind, **factors}
    original: dict[str, Any] = {}
    if kind in ("yarn", "llama3"):
        scaling["original_max_position_embeddings"] = original["original_context_length"] = 96
    config = transformers.LlamaConfig(
        hidden_size=256,
        num_attention_heads=4,
        max_position_embeddings=256,
        rope_theta=theta,
        rope_scaling=scaling,
    )
    theirs, amplitude = table[kind](config, CPU, seq_len=length)
    ours = build_rope_scaling(RopeScalingConfig(kind=kind, **factors, **original), 256)
    got = ours.frequencies(theta, 64, ours.span(length), CPU)
    torch.testing.assert_close(got.float(), theirs, rtol=1e-5, atol=1e-9)
    assert ours.amplitude == pytest.approx(amplitude)


def tiny(**position: Any) -> Decoder:
    config = DecoderConfig.from_dict(
        {
            "dim": 32,
            "n_layers": 2,
            "context_length": 32,
            "vocab_size": 11,
            "position": position,
            "init": {"std": 0.4},
        }
    )
    decoder = Decoder(config).eval()
    initialise(decoder, 0)
    return decoder


@torch.no_grad()
def test_a_text_that_outgrows_dynamic_is_read_anew_and_so_continued_as_without_a_cache() -> None:
    scaling = {"kind": "dynamic", "original_context_length": 8}
    decoder = tiny(rope_scaling=scaling)
    tokens = torch.randint(11, (2, 32), generator=torch.Generator().manual_seed(0))
    cache = DecoderCache(decoder.config, 2)
    for end in range(1, 33):
        last = decoder(tokens[:, end - 1 : end], cache)[:, -1]
        torch.testing.assert_close(last, decoder(tokens[:, :end])[:, -1], rtol=1e-4, atol=1e-4)
    # The longer text does change what the layers make of the earlier tokens.
    early = decoder(tokens)[:, :16] - decoder(tokens[:, :16])
    assert early.abs().amax() > 1e-2
    # A short text after a long one is read as if the long one had not been.
    assert torch.equal(decoder(tokens[:, :5]), tiny(rope_scaling=scaling)(tokens[:, :5]))


@torch.no_grad()
def test_other_scalings_leave_what_a_cache_holds_alone() -> None:
    lengths: list[int] = []

    def note(_module: object, tokens: tuple[Tensor], _output: Tensor) -> None:
        lengths.append(tokens[0].size(1))

    for kind in ("none", "linear", "ntk", "yarn", "llama3"):
        decoder = tiny(rope_scaling={"kind": kind})
        decoder.embedding.register_forward_hook(
            lambda _m, args, _o: lengths.append(args[0].size(1))
        )
        cache = DecoderCache(decoder.config, 1)
        decoder(torch.zeros(1, 30, dtype=torch.long), cache)
        decoder(torch.zeros(1, 1, dtype=torch.long), cache)
    assert lengths == [30, 1] * 5


@pytest.mark.parametrize("pairing", ROPE_PAIRINGS)
def test_a_fraction_turns_the_first_coordinates_as_heads_of_that_width(
    pairing: RopePairing,
) -> None:
    config = PositionConfig(rope_fraction=0.25, rope_pairing=pairing)
    sizes = PositionSizes(context_length=16, dim=64, head_dim=16, n_heads=4)
    heads = torch.randn(2, 9, 3, 16)
    turned = POSITIONS["rope"].attention(config, sizes, GLOBAL).at(2, 9, CPU).rotate(heads)
    narrow = RotaryPosition(16, 4, theta=10000.0, pairing=pairing).at(2, 9, CPU)
    assert torch.equal(turned[..., 4:], heads[..., 4:])
    torch.testing.assert_close(turned[..., :4], narrow.rotate(heads[..., :4]))


def test_windowed_layers_may_have_a_base_of_their_own_which_is_not_scaled() -> None:
    def table(layer: LayerKind, **config: Any) -> Tensor:
        sizes = PositionSizes(context_length=16, dim=64, head_dim=16, n_heads=4)
        position = POSITIONS["rope"].attention(PositionConfig(**config), sizes, layer)
        assert isinstance(position, RotaryPosition)
        return position.table

    linear = RopeScalingConfig(kind="linear")
    assert torch.equal(table(LOCAL, rope_scaling=linear), table(GLOBAL, rope_scaling=linear))
    both = {"rope_theta": 1e6, "rope_local_theta": 500.0, "rope_scaling": linear}
    assert torch.equal(table(LOCAL, **both), table(GLOBAL, rope_theta=500.0))
    assert torch.equal(table(GLOBAL, **both), table(GLOBAL, rope_theta=1e6, rope_scaling=linear))


@pytest.mark.parametrize("pairing", ROPE_PAIRINGS)
@pytest.mark.parametrize(
    "settings",
    [{}, {"rope_theta": 500000.0}, {"rope_fraction": 0.5}]
    + [{"rope_scaling": RopeScalingConfig(kind=kind)} for kind in ("ntk", "yarn", "llama3")],
)
def test_bfloat16_loses_no_more_far_from_the_beginning_than_near_it(
    settings: dict[str, Any], pairing: RopePairing
) -> None:
    config = PositionConfig(rope_pairing=pairing, **settings)
    sizes = PositionSizes(context_length=2048, dim=256, head_dim=64, n_heads=4)
    position = POSITIONS["rope"].attention(config, sizes, GLOBAL)
    heads = torch.randn(1, 2048, 4, 64, generator=torch.Generator().manual_seed(0))
    q, k = heads.bfloat16(), heads.flip(1).bfloat16()
    exact = position.at(0, 2048, CPU)
    position.to(torch.bfloat16)
    rough = position.at(0, 2048, CPU)
    error = (rough.rotate(q).float() - exact.rotate(q.float())).abs().mean((0, 2, 3))
    assert error[1500:].mean() <= 3 * error[:500].mean()
    # The scores of neighbours, whose distance both rotations have to agree on.
    scores = [
        (a[:, 1:] * b[:, :-1]).sum(-1)
        for a, b in (
            (rough.rotate(q).float(), rough.rotate(k).float()),
            (exact.rotate(q.float()), exact.rotate(k.float())),
        )
    ]
    error = (scores[0] - scores[1]).abs().mean((0, 2))
    assert error[1499:].mean() <= 3 * error[:500].mean()
