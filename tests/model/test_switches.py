"""What holds whatever is switched: no token sees its future, and a cache changes nothing."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from llama_lab.model.attention import QK_NORMS
from llama_lab.model.block import BLOCKS
from llama_lab.model.cache import DecoderCache
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.feed_forward import FEED_FORWARDS, SWISH_BETAS
from llama_lab.model.init_schemes import INITS
from llama_lab.model.initialise import initialise
from llama_lab.model.norms import NORMS
from llama_lab.model.positions import POSITIONS
from llama_lab.model.rope.rotation import ROPE_PAIRINGS
from llama_lab.model.rope.scaling import ROPE_SCALINGS
from llama_lab.model.settings import SettingError

CONTEXT = 8
VOCABULARY = 11
SIZES = {"dim": 16, "n_layers": 2, "context_length": CONTEXT, "vocab_size": VOCABULARY}

POSITION_SETTINGS = [
    {"kind": kind, **pairing}
    for kind in POSITIONS
    for pairing in ([{"rope_pairing": p} for p in ROPE_PAIRINGS] if kind == "rope" else [{}])
]


def random_decoder(settings: dict[str, Any]) -> Decoder:
    """A tiny decoder in which every parameter, biases and gains too, has something to say."""
    decoder = Decoder(DecoderConfig.from_dict({**SIZES, **settings})).eval()
    initialise(decoder, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return decoder


def check_that_no_token_sees_its_future(decoder: Decoder) -> None:
    changed_at = 4
    text = torch.arange(CONTEXT) % VOCABULARY
    other = text.clone()
    other[changed_at] = VOCABULARY - 1
    first, second = decoder.logits(decoder(torch.stack((text, other))))
    torch.testing.assert_close(first[:changed_at], second[:changed_at], rtol=1e-5, atol=1e-5)
    later = (first - second)[changed_at:].abs().amax(dim=-1)
    assert (later > 1e-4).all(), later


def greedy(decoder: Decoder, prompt: Tensor) -> tuple[Tensor, Tensor]:
    """The prompt, continued to the context's end, and each new token's logits."""
    text, scores = prompt, []
    while text.size(1) < CONTEXT:
        scores.append(decoder.logits(decoder(text))[:, -1])
        text = torch.cat((text, scores[-1].argmax(-1, keepdim=True)), dim=1)
    return text, torch.stack(scores)


def cached_greedy(decoder: Decoder, prompt: Tensor) -> tuple[Tensor, Tensor]:
    """The same, through a cache that takes the prompt in two pieces."""
    cache = DecoderCache(decoder.config, prompt.size(0), device=prompt.device)
    decoder(prompt[:, :1], cache)
    text, new, scores = prompt, prompt[:, 1:], []
    while text.size(1) < CONTEXT:
        scores.append(decoder.logits(decoder(new, cache))[:, -1])
        new = scores[-1].argmax(-1, keepdim=True)
        text = torch.cat((text, new), dim=1)
    assert cache.length == CONTEXT - 1
    return text, torch.stack(scores)


def check_that_a_cache_changes_nothing(decoder: Decoder) -> None:
    prompt = torch.tensor([[1, 2, 3, 4], [7, 0, 10, 2]])
    text, scores = greedy(decoder, prompt)
    cached_text, cached_scores = cached_greedy(decoder, prompt)
    assert torch.equal(text, cached_text)
    torch.testing.assert_close(scores, cached_scores, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("position", POSITION_SETTINGS, ids=lambda p: "-".join(p.values()))
@pytest.mark.parametrize("placement", BLOCKS)
@pytest.mark.parametrize("norm", NORMS)
@torch.no_grad()
def test_every_architecture_is_causal_and_generates_with_a_cache_as_without(
    norm: str, placement: str, position: dict[str, str]
) -> None:
    decoder = random_decoder({"norm": {"kind": norm, "placement": placement}, "position": position})
    check_that_no_token_sees_its_future(decoder)
    check_that_a_cache_changes_nothing(decoder)


@pytest.mark.parametrize("position", POSITION_SETTINGS, ids=lambda p: "-".join(p.values()))
@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@torch.no_grad()
def test_from_the_2017_decoder_to_llama_the_whole_product_holds(
    norm: str, placement: str, position: dict[str, str]
) -> None:
    """Over norm, placement, position, kv heads and feed-forward: nothing is left to pairs."""
    for n_kv_heads, feed_forward in itertools.product((1, 2, 4), FEED_FORWARDS):
        settings = {
            "norm": {"kind": norm, "placement": placement},
            "position": position,
            "attention": {"n_heads": 4, "n_kv_heads": n_kv_heads},
            "feed_forward": {"kind": feed_forward},
        }
        decoder = random_decoder(settings)
        check_that_no_token_sees_its_future(decoder)
        check_that_a_cache_changes_nothing(decoder)


# Wide enough that a token reaches the context's end through both layers, and narrower than it.
WINDOWS: list[dict[str, Any]] = [
    {"window": 3},
    {"window": 3, "window_pattern": "LG"},
    {"window": 4, "window_pattern": "GL"},
]


@pytest.mark.parametrize("window", WINDOWS, ids=lambda w: "-".join(map(str, w.values())))
@pytest.mark.parametrize("position", POSITION_SETTINGS, ids=lambda p: "-".join(p.values()))
@torch.no_grad()
def test_every_position_is_causal_and_generates_with_a_cache_as_without_through_a_window(
    position: dict[str, str], window: dict[str, Any]
) -> None:
    settings = [position]
    if position["kind"] == "rope":
        settings += [{**position, "rope_local_theta": 20.0}, {**position, "rope_fraction": 0.5}]
    for each in settings:
        decoder = random_decoder({"position": each, "attention": window})
        check_that_no_token_sees_its_future(decoder)
        check_that_a_cache_changes_nothing(decoder)


# Half of the context, so that texts outgrow it.
ORIGINAL = {kind: {"original_context_length": 4} for kind in ("dynamic", "yarn", "llama3")}

# The other flags, one or more settings a value; every pair of values meets in some decoder below.
FLAGS: dict[str, list[dict[str, Any]]] = {
    "norm": [
        *({"kind": kind} for kind in NORMS),
        *({"kind": "layernorm", "bias": bias} for bias in (True, False)),
    ],
    "placement": [{"placement": placement} for placement in BLOCKS],
    "qkv_bias": [{"qkv_bias": False}, {"qkv_bias": True}],
    "output_bias": [{"output_bias": False}, {"output_bias": True}],
    "n_kv_heads": [{"n_kv_heads": 1}, {"n_kv_heads": 2}, {"n_kv_heads": 4}],
    "head_dim": [{"head_dim": None}, {"head_dim": 6}],
    "qk_norm": [{"qk_norm": kind} for kind in QK_NORMS],
    "softcap": [{"softcap": None}, {"softcap": 0.5}],
    "sinks": [{"sinks": False}, {"sinks": True}],
    "gate": [{"gate": False}, {"gate": True}],
    "feed_forward": [
        *({"kind": kind} for kind in FEED_FORWARDS),
        *({"kind": kind, "swish_beta": b} for kind in ("silu", "swiglu") for b in SWISH_BETAS),
        {"kind": "gelu", "hidden_dim": 24},
        {"kind": "swiglu", "hidden_dim": 24},
        {"kind": "swiglu", "multiple_of": 5},
        {"kind": "swiglu", "multiple_of": 8, "dim_multiplier": 1.3},
    ],
    "bias": [{"bias": False}, {"bias": True}],
    "tie_embeddings": [{"tie_embeddings": False}, {"tie_embeddings": True}],
    "token_shift": [{"token_shift": False}, {"token_shift": True}],
    "embedding_scale": [{"embedding_scale": False}, {"embedding_scale": True}],
    "logit_softcap": [{"logit_softcap": None}, {"logit_softcap": 2.0}],
    "dropout": [{"dropout": 0.0}, {"dropout": 0.5}],
    "init": [{"kind": kind} for kind in INITS],
    "position": [{"kind": kind} for kind in POSITIONS],
    "pairing": [{}, *({"rope_pairing": pairing} for pairing in ROPE_PAIRINGS)],
    "theta": [{"rope_theta": None}, {"rope_theta": 50.0}],
    "rope": [
        {},
        {"rope_fraction": 0.7},
        *({"rope_scaling": {"kind": kind, **ORIGINAL.get(kind, {})}} for kind in ROPE_SCALINGS),
        {"rope_scaling": {"kind": "yarn", **ORIGINAL["yarn"]}, "rope_fraction": 0.7},
    ],
    "nope_every": [{}, {"nope_every": 2}],
    "window": [{}, *WINDOWS],
}
GROUP = {
    "norm": "norm",
    "placement": "norm",
    "qkv_bias": "attention",
    "output_bias": "attention",
    "n_kv_heads": "attention",
    "head_dim": "attention",
    "qk_norm": "attention",
    "softcap": "attention",
    "sinks": "attention",
    "gate": "attention",
    "feed_forward": "feed_forward",
    "bias": "feed_forward",
    "init": "init",
    "position": "position",
    "pairing": "position",
    "theta": "position",
    "rope": "position",
    "nope_every": "position",
    "window": "attention",
}


Pair = tuple[int, int, int, int]


def settings_of(row: Mapping[int, int]) -> dict[str, Any]:
    """The decoder's settings for a choice of values, by the numbers of flag and value."""
    settings: dict[str, Any] = {}
    for number, (flag, values) in enumerate(FLAGS.items()):
        if number in row:
            group = settings.setdefault(GROUP[flag], {}) if flag in GROUP else settings
            group.update(values[row[number]])
    return settings


def is_valid(pair: Pair) -> bool:
    """Whether two values may stand together, all else at its default."""
    i, a, j, b = pair
    try:
        DecoderConfig.from_dict({**SIZES, **settings_of({i: a, j: b})})
    except SettingError:
        return False
    return True


def pairs_of(row: Mapping[int, int]) -> set[Pair]:
    """The pairs (flag, value, other flag, other value) that a choice of values covers."""
    return {(i, a, j, b) for (i, a), (j, b) in itertools.combinations(sorted(row.items()), 2)}


def pairs_with(row: Mapping[int, int], flag: int, value: int) -> set[Pair]:
    """The pairs that ``value`` would make with the values already in ``row``."""
    one = (flag, value)
    return {(*min(one, other), *max(one, other)) for other in row.items()}


def pairwise(sizes: Sequence[int], valid: set[Pair]) -> Iterator[dict[int, int]]:
    """Choices of one value a flag, until every valid pair has met; greedily few."""
    missing = set(valid)
    while missing:
        i, a, j, b = min(missing)
        row = {i: a, j: b}
        for flag in range(len(sizes)):
            if flag not in row:
                fitting = [v for v in range(sizes[flag]) if pairs_with(row, flag, v) <= valid]
                gains = {v: len(pairs_with(row, flag, v) & missing) for v in fitting}
                row[flag] = max(fitting, key=gains.__getitem__)
        missing -= pairs_of(row)
        yield row


COUNTS = [len(values) for values in FLAGS.values()]
PAIRS = {
    pair
    for i, j in itertools.combinations(range(len(COUNTS)), 2)
    for pair in itertools.product((i,), range(COUNTS[i]), (j,), range(COUNTS[j]))
}
VALID = {pair for pair in PAIRS if is_valid(pair)}
ROWS = list(pairwise(COUNTS, VALID))


def test_every_valid_pair_of_flag_values_meets_in_some_decoder() -> None:
    assert set().union(*map(pairs_of, ROWS)) == VALID


def test_only_flags_of_positions_clash() -> None:
    names = list(FLAGS)
    clashing = {(names[i], names[j]) for i, _, j, _ in PAIRS - VALID}
    of_rope = ("pairing", "theta", "rope", "nope_every")
    assert clashing == {("position", flag) for flag in of_rope}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(map(str, row.values())))
@torch.no_grad()
def test_every_pair_of_flags_is_causal_and_generates_with_a_cache_as_without(
    row: dict[int, int],
) -> None:
    decoder = random_decoder(settings_of(row))
    check_that_no_token_sees_its_future(decoder)
    check_that_a_cache_changes_nothing(decoder)
