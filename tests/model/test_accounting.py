"""Parameter counts, worked out by hand."""

import subprocess
import sys

import pytest

from llama_lab.model.accounting import count_parameters
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
        from llama_lab.model.accounting import count_parameters
        from llama_lab.model.decoder import DecoderConfig
        count_parameters(DecoderConfig(vocab_size=7))
        sys.exit("sympy" in sys.modules)
    """
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_a_vocabulary_there_is_nothing_to_count() -> None:
    with pytest.raises(SettingError, match="vocab_size"):
        count_parameters(DecoderConfig())
