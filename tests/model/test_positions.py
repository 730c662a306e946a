"""Positions: their values, what rotation keeps, precision, and texts past the context."""

from typing import Any

import pytest
import torch
from torch import Tensor

from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from llama_lab.model.masks import FIRST_POSITIONS, Position
from llama_lab.model.positions import POSITIONS, AlibiPosition, SinusoidalPosition
from llama_lab.model.rope.rotation import ROPE_PAIRINGS, RopePairing, RotaryPosition
from llama_lab.model.settings import SettingError

CPU = torch.device("cpu")
BOTH_PAIRINGS = pytest.mark.parametrize("pairing", ROPE_PAIRINGS)


def rope(pairing: RopePairing, head_dim: int = 8, theta: float = 10000.0) -> RotaryPosition:
    return RotaryPosition(16, head_dim, theta=theta, pairing=pairing)


def turned(position: Position, heads: Tensor, place: int) -> Tensor:
    """Heads ``[E]``, turned to one place."""
    return position.at(place, 1, CPU).rotate(heads[None, None, None])[0, 0, 0]


def test_sinusoidal_positions_have_the_published_values() -> None:
    # PE(p, 2i) = sin(p / 10000^(2i/4)), PE(p, 2i+1) = cos: wavelengths 1 and 100.
    expected = torch.tensor(
        [
            [0.0, 1.0, 0.0, 1.0],
            [0.8414710, 0.5403023, 0.0099998, 0.9999500],
            [0.9092974, -0.4161468, 0.0199987, 0.9998000],
        ]
    )
    x = torch.full((2, 3, 4), 10.0)
    torch.testing.assert_close(SinusoidalPosition(8, 4).embed(x, 0), x + expected)
    torch.testing.assert_close(SinusoidalPosition(8, 4).embed(x[:, :2], 1), x[:, :2] + expected[1:])


def test_an_odd_width_ends_with_a_sine() -> None:
    added = SinusoidalPosition(8, 3).embed(torch.zeros(1, 3, 3), 0)[0]
    positions = torch.arange(3)
    torch.testing.assert_close(added[:, 1], positions.cos())
    torch.testing.assert_close(added[:, 2], torch.sin(positions / 10000 ** (2 / 3)))


@BOTH_PAIRINGS
def test_rope_turns_each_pair_by_its_own_angle(pairing: RopePairing) -> None:
    # Width 4, theta 100: at place 3 the pairs turn by 3 and by 3 / 100^(2/4) = 0.3.
    result = turned(rope(pairing, head_dim=4, theta=100.0), torch.tensor([1.0, 1, 0, 0]), 3)
    cos3, sin3, cos03, sin03 = -0.9899925, 0.1411200, 0.9553365, 0.2955202
    expected = {
        "half": [cos3, cos03, sin3, sin03],
        "interleaved": [cos3 - sin3, sin3 + cos3, 0.0, 0.0],
    }
    torch.testing.assert_close(result, torch.tensor(expected[pairing]))


@BOTH_PAIRINGS
def test_scores_depend_on_the_distance_alone(pairing: RopePairing) -> None:
    position = rope(pairing)
    q, k = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))

    def score(q_place: int, k_place: int) -> Tensor:
        return turned(position, q, q_place) @ turned(position, k, k_place)

    torch.testing.assert_close(score(5, 2), score(12, 9))
    torch.testing.assert_close(score(5, 2), score(105, 102), rtol=1e-4, atol=1e-4)
    assert (score(5, 2) - score(6, 2)).abs() > 1e-2
    assert (score(5, 2) - score(5, 3)).abs() > 1e-2


@BOTH_PAIRINGS
def test_rotation_keeps_lengths_and_leaves_place_zero_alone(pairing: RopePairing) -> None:
    heads = torch.randn(2, 16, 3, 8)
    result = rope(pairing).at(0, 16, CPU).rotate(heads)
    torch.testing.assert_close(result.norm(dim=-1), heads.norm(dim=-1))
    torch.testing.assert_close(result[:, 0], heads[:, 0])
    assert not torch.allclose(result[:, 1], heads[:, 1], atol=1e-2)


def test_the_two_pairings_are_one_rotation_of_coordinates_in_another_order() -> None:
    heads = torch.randn(1, 16, 2, 8)
    # Coordinates 0 1 2 3 4 5 6 7 of the adjacent pairs, as halves: 0 2 4 6 1 3 5 7.
    order = torch.arange(8).reshape(4, 2).T.flatten()
    half = rope("half").at(0, 16, CPU).rotate(heads[..., order])
    interleaved = rope("interleaved").at(0, 16, CPU).rotate(heads)
    torch.testing.assert_close(half, interleaved[..., order])
    assert not torch.allclose(half, interleaved, atol=1e-2)


@BOTH_PAIRINGS
def test_rope_rotates_in_float32_whatever_the_precision_of_the_model(pairing: RopePairing) -> None:
    position = rope(pairing)
    exact = RotaryPosition(4096, 8, theta=10000.0, pairing=pairing)
    position.to(torch.bfloat16)
    assert position.table.dtype == torch.float32
    heads = torch.randn(1, 1, 2, 8).bfloat16()
    result = position.at(4000, 1, CPU).rotate(heads)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, exact.at(4000, 1, CPU).rotate(heads.float()).bfloat16())


def test_angles_are_as_exact_far_away_as_near() -> None:
    place = 1_000_003
    table = rope("half").rows(place, 1, CPU)
    angles = torch.tensor(place, dtype=torch.float64) / 10 ** torch.arange(4, dtype=torch.float64)
    assert torch.equal(table[0, 0], torch.cat((angles.cos(), angles.cos())).float())


@pytest.mark.parametrize("kind", ["rope", "sinusoidal"])
def test_tables_grow_by_doubling_up_to_the_context(kind: str) -> None:
    position = {
        "rope": lambda: RotaryPosition(10_000, 4, theta=10000.0, pairing="half"),
        "sinusoidal": lambda: SinusoidalPosition(10_000, 4),
    }[kind]()
    sizes = []
    for n_tokens in (1, FIRST_POSITIONS + 1, 9000, 10_001):
        rows = position.rows(0, n_tokens, CPU)
        exact = position.make(torch.arange(n_tokens, dtype=torch.float64)).float()
        torch.testing.assert_close(rows, exact, rtol=0, atol=1e-7)
        sizes.append(position.table.size(-2))
    assert sizes == [FIRST_POSITIONS, 2 * FIRST_POSITIONS, 10_000, 10_001]


def test_a_table_grows_within_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_lab.model.masks.FIRST_POSITIONS", 4)
    settings = {"dim": 8, "n_layers": 1, "context_length": 16, "vocab_size": 5}
    decoder = Decoder(DecoderConfig.from_dict(settings))
    initialise(decoder, 0)
    text = torch.arange(16)[None] % 5
    score = torch.compile(decoder.score, backend="eager", fullgraph=True, dynamic=False)
    found = score(text, text, reduction="mean")
    torch.testing.assert_close(found, decoder.score(text, text, reduction="mean"))


def test_a_table_moves_with_the_model_and_does_not_grow() -> None:
    position = RotaryPosition(1 << 24, 4, theta=10000.0, pairing="half").to("meta")
    assert (position.table.device.type, position.table.size(-2)) == ("meta", FIRST_POSITIONS)


@pytest.mark.parametrize(
    ("model", "expected"), [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)]
)
def test_sinusoidal_positions_keep_the_precision_of_the_embeddings(
    model: torch.dtype, expected: torch.dtype
) -> None:
    position = SinusoidalPosition(8, 4).to(model)
    assert position.table.dtype == torch.float32
    assert position.embed(torch.zeros(1, 3, 4, dtype=model), 0).dtype == expected


def tiny(**settings: Any) -> Decoder:
    config = {"dim": 16, "n_layers": 2, "context_length": 8, "vocab_size": 11, **settings}
    decoder = Decoder(DecoderConfig.from_dict(config)).eval()
    initialise(decoder, 0)
    return decoder


@pytest.mark.parametrize(
    "position",
    [
        {"kind": "sinusoidal"},
        {"rope_theta": 500.0},
        {"rope_fraction": 0.5},
        {"kind": "alibi"},
        {"kind": "none"},
    ],
)
def test_a_text_may_be_longer_than_the_context(position: dict[str, Any]) -> None:
    tokens = torch.arange(24)[None] % 11
    short = tiny(position=position)
    with torch.inference_mode():
        hidden = short(tokens)
        torch.testing.assert_close(hidden, tiny(position=position, context_length=24)(tokens))
    # A table that inference has grown must still serve training.
    short(tokens).sum().backward()


def test_learned_positions_end_with_the_context() -> None:
    decoder = tiny(position={"kind": "learned"})
    decoder(torch.zeros(1, 8, dtype=torch.long))
    with pytest.raises(SettingError, match=r"9 tokens .* --model\.decoder\.context_length 8"):
        decoder(torch.zeros(1, 9, dtype=torch.long))


@torch.no_grad()
def test_only_without_positions_does_the_order_of_the_past_not_matter() -> None:
    def moved(**position: Any) -> float:
        # One layer: its last token attends to a set, which has an order through positions only.
        decoder = tiny(n_layers=1, init={"std": 0.5}, position=position)
        first, second = decoder(torch.tensor([[1, 2, 3, 4], [3, 1, 2, 4]]))[:, -1]
        return (first - second).abs().max().item()

    assert moved(kind="none") < 1e-5
    kinds = [{"kind": kind} for kind in POSITIONS if kind != "none"]
    for position in (*kinds, {"rope_fraction": 0.5}):
        assert moved(**position) > 1e-3


@pytest.mark.parametrize(
    ("n_heads", "slopes"),
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (8, [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]),
        # Those of 4 heads, and then the first and third of 8.
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_alibi_has_the_slopes_of_the_paper(n_heads: int, slopes: list[float]) -> None:
    torch.testing.assert_close(AlibiPosition(n_heads).slopes(CPU), torch.tensor(slopes))


@pytest.mark.parametrize("n_heads", [3, 4, 5, 7, 12, 20, 71])
def test_alibi_has_the_slopes_of_transformers(n_heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 2), n_heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(AlibiPosition(n_heads).slopes(CPU), theirs)


def test_alibi_lowers_scores_by_the_distance_and_hides_the_future() -> None:
    mask = AlibiPosition(2).at(2, 2, CPU).mask.tensor
    inf = float("inf")
    distance = torch.tensor([[2.0, 1, 0, inf], [3, 2, 1, 0]])
    torch.testing.assert_close(mask, torch.stack((-distance / 16, -distance / 256))[None])


@torch.no_grad()
def test_alibi_is_the_same_in_bfloat16_up_to_its_precision() -> None:
    decoder = tiny(position={"kind": "alibi"}, attention={"n_kv_heads": 2})
    tokens = torch.arange(24)[None] % 11
    exact = decoder(tokens)
    rough = decoder.to(torch.bfloat16)(tokens)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), exact, rtol=5e-2, atol=5e-2)
