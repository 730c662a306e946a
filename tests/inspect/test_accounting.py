"""Parameter counts, worked out by hand."""

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from llama_lab.inspect.accounting import (
    cache_bytes,
    count_parameters,
    decoding_bytes,
    flops_per_token,
    on_meta,
)
from llama_lab.model.cache import DecoderCache
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.settings import SettingError

TWO_THOUSAND_SEVENTEEN = {
    "norm": {"kind": "layernorm", "placement": "post"},
    "position": {"kind": "learned"},
    "feed_forward": {"kind": "gelu"},
}
BASE = {
    "dim": 512,
    "n_layers": 6,
    "vocab_size": 37000,
    "tie_embeddings": True,
    "norm": {"kind": "layernorm", "placement": "post"},
    "position": {"kind": "sinusoidal"},
    "attention": {"n_heads": 8, "qkv_bias": True, "output_bias": True},
    "feed_forward": {"kind": "relu", "bias": True, "hidden_dim": 2048},
}


def wide(n_kv_heads: int) -> dict:
    return {
        "vocab_size": 32000,
        "dim": 512,
        "attention": {"n_heads": 8, "n_kv_heads": n_kv_heads},
        "feed_forward": {"hidden_dim": 1365},
    }


QWEN3_600M = {
    "dim": 1024,
    "n_layers": 28,
    "vocab_size": 151936,
    "tie_embeddings": True,
    "attention": {"n_heads": 16, "n_kv_heads": 8, "head_dim": 128, "qk_norm": "head"},
    "feed_forward": {"hidden_dim": 3072},
}
GEMMA3_1B = {
    "dim": 1152,
    "n_layers": 26,
    "vocab_size": 262144,
    "tie_embeddings": True,
    "norm": {"kind": "rmsnorm_offset", "placement": "sandwich"},
    "attention": {"n_heads": 4, "n_kv_heads": 1, "head_dim": 256, "qk_norm": "head"},
    "feed_forward": {"kind": "geglu_tanh", "hidden_dim": 6912},
}
OLMO2_7B = {
    "dim": 4096,
    "n_layers": 32,
    "vocab_size": 100352,
    "norm": {"placement": "reordered"},
    "attention": {"n_heads": 32, "qk_norm": "projection"},
    "feed_forward": {"hidden_dim": 11008},
}


@pytest.mark.parametrize(
    ("settings", "total"),
    [
        ({"vocab_size": 1719, **TWO_THOUSAND_SEVENTEEN}, 1_244_928),
        ({"vocab_size": 1719, "attention": {"n_kv_heads": 2}}, 1_178_496),
        (wide(2), 43_780_608),
        (wide(8), 45_353_472),
        (BASE, 37_858_304),
        (QWEN3_600M, 596_049_920),
        (GEMMA3_1B, 999_885_952),
        (OLMO2_7B, 7_298_617_344),
    ],
)
def test_totals_are_exact(settings: dict, total: int) -> None:
    count = count_parameters(DecoderConfig.from_dict(settings))
    assert count.total == total
    assert sum(count.by_part.values()) == total


def test_parts_are_told_apart() -> None:
    settings = {"vocab_size": 1719, **TWO_THOUSAND_SEVENTEEN, "norm": {"kind": "layernorm"}}
    assert count_parameters(DecoderConfig.from_dict(settings)).by_part == {
        "embedding": 1719 * 128,
        "position": 128 * 128,
        "attention": 4 * 4 * 128 * 128,
        "feed_forward": 4 * 2 * 128 * 512,
        "norm": (2 * 4 + 1) * 2 * 128,
        "head": 1719 * 128,
    }


# Per layer beside the LLaMA of width 16 with 4 heads of 4: what each part adds.
@pytest.mark.parametrize(
    ("settings", "part", "more"),
    [
        ({"attention": {"head_dim": 6}}, "attention", 4 * 16 * (24 - 16)),
        ({"attention": {"head_dim": 6, "n_kv_heads": 1}}, "attention", 2 * 16 * (24 + 6 - 32)),
        ({"attention": {"qk_norm": "head"}}, "attention", 4 + 4),
        ({"attention": {"qk_norm": "projection", "n_kv_heads": 2}}, "attention", 16 + 8 - 2 * 128),
        ({"attention": {"sinks": True}}, "attention", 4),
        ({"attention": {"gate": True}}, "attention", 16 * 16),
        ({"attention": {"gate": True, "qkv_bias": True}}, "attention", 16 * 16 + 4 * 16),
        ({"feed_forward": {"swish_beta": "learned"}}, "feed_forward", 1),
        ({"norm": {"placement": "sandwich"}}, "norm", 2 * 16),
        ({"norm": {"placement": "reordered"}}, "norm", 0),
        ({"norm": {"placement": "parallel"}}, "norm", -16),
    ],
)
def test_each_part_adds_what_its_formula_has(settings: dict, part: str, more: int) -> None:
    def counted(**switches: dict) -> dict[str, int]:
        sizes = {"dim": 16, "n_layers": 3, "vocab_size": 7}
        return count_parameters(DecoderConfig.from_dict({**sizes, **switches})).by_part

    plain = counted()
    assert counted(**settings) == {**plain, part: plain[part] + 3 * more}


@pytest.mark.parametrize(
    ("kind", "a_norm"), [("rmsnorm_offset", 16), ("rmsnorm_plain", 0), ("dyt", 2 * 16 + 1)]
)
def test_every_norm_of_a_kind_counts(kind: str, a_norm: int) -> None:
    settings = {"dim": 16, "n_layers": 3, "vocab_size": 7, "norm": {"kind": kind}}
    assert count_parameters(DecoderConfig.from_dict(settings)).by_part["norm"] == 7 * a_norm


def test_a_tied_head_counts_once() -> None:
    config = DecoderConfig(vocab_size=1719, tie_embeddings=True)
    count = count_parameters(config)
    assert count.by_part["embedding"] == 1719 * 128
    assert count.by_part["head"] == 0
    assert count.total == sum(parameter.numel() for parameter in Decoder(config).parameters())


def test_a_large_model_is_counted_without_being_allocated() -> None:
    # LLaMA-7B as published: 6.74 billion, 26 GB in float32.
    config = DecoderConfig.from_dict(
        {
            "dim": 4096,
            "n_layers": 32,
            "vocab_size": 32000,
            "context_length": 2048,
            "attention": {"n_heads": 32},
            "feed_forward": {"multiple_of": 256},
        }
    )
    assert count_parameters(config).total == 6_738_415_616


def test_counting_does_not_wait_for_symbolic_algebra() -> None:
    program = """if True:
        import sys
        from llama_lab.inspect.accounting import count_parameters
        from llama_lab.model.decoder import DecoderConfig
        count_parameters(DecoderConfig(vocab_size=7))
        sys.exit("sympy" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_a_vocabulary_there_is_nothing_to_count() -> None:
    with pytest.raises(SettingError, match="vocab_size"):
        count_parameters(DecoderConfig())


def test_the_mini_of_2017_has_its_weights_a_layer() -> None:
    config = DecoderConfig.from_dict({"vocab_size": 1719, **TWO_THOUSAND_SEVENTEEN})
    by_part = count_parameters(config).by_part
    assert by_part["attention"] == config.n_layers * 65_536
    assert by_part["feed_forward"] == config.n_layers * 131_072


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"attention": {"n_kv_heads": 2}},
        {"attention": {"n_kv_heads": 1, "head_dim": 48, "qkv_bias": True, "output_bias": True}},
        {"attention": {"gate": True}},
        {"attention": {"qk_norm": "head"}},
        {"attention": {"sinks": True, "n_kv_heads": 2}},
        {"feed_forward": {"kind": "relu"}},
        {"tie_embeddings": True},
        {"position": {"kind": "learned"}, "norm": {"placement": "post"}},
    ],
)
@pytest.mark.parametrize("context", [32, 100])
def test_flops_are_those_that_torch_counts(settings: dict, context: int) -> None:
    decoder = on_meta(DecoderConfig.from_dict({"vocab_size": 300, **settings}))
    forward, training = counted_by_torch(decoder, (2, context))
    flops = flops_per_token(decoder, context)
    assert flops.forward == pytest.approx(forward, rel=0.01)
    assert flops.training == pytest.approx(training, rel=0.01)


def counted_by_torch(decoder: Decoder, shape: tuple[int, int]) -> tuple[float, float]:
    """FLOPs a token of a forward, and of a forward and backward, over texts of ``shape``."""
    # On `meta` the counter sees attention as two products of all positions, without discount.
    tokens = torch.zeros(shape, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        logits = decoder.logits(decoder(tokens))
        forward = counter.get_total_flops()
        logits.sum().backward()
    return forward / tokens.numel(), counter.get_total_flops() / tokens.numel()


@pytest.mark.parametrize("holds_scores", [False, True])
def test_windows_cost_no_less_than_is_counted_and_blocks_of_them_at_most_twice(
    holds_scores: bool,
) -> None:
    attention = {"window": 16, "softcap": 30.0 if holds_scores else None}
    decoder = on_meta(DecoderConfig.from_dict({"vocab_size": 300, "attention": attention}))
    matrices = flops_per_token(decoder, 0)
    # A mask over all below two windows, blocks from there on; 100 tokens fill 7 blocks of 16.
    for context, most in ((16, 1), (31, 31 / 16), (32, 2), (128, 2), (100, 2 * 7 * 16 / 100)):
        counts = zip(counted_by_torch(decoder, (1, context)), (1, 3), strict=True)
        of_scores = flops_per_token(decoder, context).forward - matrices.forward
        for torchs, factor in counts:
            ratio = (torchs / factor - matrices.forward) / of_scores
            assert 0.99 < ratio < 1.01 * most, context


def test_a_windowed_layer_costs_its_window() -> None:
    windowed = {"attention": {"window": 16, "window_pattern": "LG"}}
    plain, narrow = (
        on_meta(DecoderConfig.from_dict({"vocab_size": 300, **settings}))
        for settings in ({}, windowed)
    )
    for context, saved in ((16, 0), (17, 1), (128, 112)):
        difference = flops_per_token(plain, context).forward - (
            flops_per_token(narrow, context).forward
        )
        assert difference == 2 * 4 * 128 * saved  # two layers of four, 4 H E a position


def test_llama_7b_costs_twice_its_matrices_and_attention() -> None:
    settings = {
        "dim": 4096,
        "n_layers": 32,
        "vocab_size": 32000,
        "attention": {"n_heads": 32},
        "feed_forward": {"hidden_dim": 11008},
    }
    flops = flops_per_token(on_meta(DecoderConfig.from_dict(settings)), 2048)
    expected = 2 * (6.738e9 - 32000 * 4096) + 32 * 4 * 4096 * 2048
    assert flops.forward == pytest.approx(expected, rel=1e-3)


def test_cache_bytes_are_those_of_the_cache_that_is_filled() -> None:
    attention = {"n_kv_heads": 2, "window": 16, "window_pattern": "LLG"}
    config = DecoderConfig.from_dict({"vocab_size": 7, "n_layers": 3, "attention": attention})
    counted = cache_bytes(config, 100, torch.bfloat16)
    cache = DecoderCache(config, 1, length=100, dtype=torch.bfloat16)
    held = [layer.keys.nbytes + layer.values.nbytes for layer in cache.layers]
    assert counted.storage == sum(held)
    a_position = 2 * 2 * 32 * 2  # keys and values, 2 heads of 32, 2 bytes
    assert counted.per_token == 3 * a_position
    assert counted.seen == (16 + 16 + 100) * a_position
    assert cache_bytes(config, 100, torch.float32).seen == 2 * counted.seen
    assert cache_bytes(config, 9, torch.bfloat16).seen == 9 * 3 * a_position


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_decoded_token_reads_every_weight_but_what_is_looked_up(is_tied: bool) -> None:
    config = DecoderConfig.from_dict(
        {
            "dim": 16,
            "n_layers": 2,
            "context_length": 32,
            "vocab_size": 50,
            "tie_embeddings": is_tied,
            "position": {"kind": "learned"},
            "attention": {"n_heads": 4, "n_kv_heads": 2},
        }
    )
    total = sum(p.numel() for p in on_meta(config).parameters())
    looked_up = 32 * 16 + (0 if is_tied else 50 * 16)
    keys_and_values = 2 * 2 * 2 * 4 * 10
    assert decoding_bytes(config, 10, torch.float32) == 4 * (total - looked_up + keys_and_values)
    assert decoding_bytes(config, 10, torch.bfloat16) == 2 * (total - looked_up + keys_and_values)
