"""Settings: what is refused and how, what is documented, and what survives a checkpoint."""

import io
from contextlib import redirect_stdout
from dataclasses import asdict, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import jsonargparse
import pytest

from llama_lab.model.attention import QK_NORMS, AttentionConfig, QKNorm
from llama_lab.model.block import BLOCKS
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.feed_forward import (
    FEED_FORWARDS,
    SWISH_BETAS,
    FeedForwardConfig,
    FeedForwardKind,
    SwishBeta,
)
from llama_lab.model.init_schemes import INITS, InitConfig, InitKind
from llama_lab.model.norms import NORMS, NormConfig, NormKind, NormPlacement
from llama_lab.model.positions import POSITIONS, PositionConfig, PositionKind
from llama_lab.model.rope.rotation import ROPE_PAIRINGS, RopePairing
from llama_lab.model.rope.scaling import ROPE_SCALINGS, RopeScalingConfig, RopeScalingKind
from llama_lab.model.settings import SettingError


@pytest.mark.parametrize(
    ("kinds", "table"),
    [
        (NormKind, NORMS),
        (NormPlacement, BLOCKS),
        (PositionKind, POSITIONS),
        (RopePairing, ROPE_PAIRINGS),
        (QKNorm, QK_NORMS),
        (RopeScalingKind, ROPE_SCALINGS),
        (FeedForwardKind, FEED_FORWARDS),
        (SwishBeta, SWISH_BETAS),
        (InitKind, INITS),
    ],
)
def test_every_word_of_a_switch_has_its_entry(kinds: Any, table: dict[str, Any]) -> None:
    assert get_args(kinds) == tuple(table)


# What arrives, the flag that the error names, and words that its reason and remedy hold.
REFUSED = [
    ({"dim": 0}, "dim 0", "at least 1"),
    ({"dim": -8}, "dim -8", "at least 1"),
    ({"dim": 128.0}, "dim 128.0", "whole number"),
    ({"dim": True}, "dim true", "whole number"),
    ({"n_layers": 0}, "n_layers 0", "at least 1"),
    ({"context_length": 0}, "context_length 0", "at least 1"),
    ({"vocab_size": 0}, "vocab_size 0", "at least 1"),
    ({"dropout": 1.0}, "dropout 1.0", "below 1"),
    ({"dropout": -0.1}, "dropout -0.1", "at least 0"),
    ({"dropout": float("nan")}, "dropout nan", "at least 0"),
    ({"tie_embeddings": "yes"}, "tie_embeddings yes", "true or false"),
    ({"embedding_scale": 2}, "embedding_scale 2", "true or false"),
    ({"token_shift": 1}, "token_shift 1", "true or false"),
    ({"norm": {"kind": "batchnorm"}}, "norm.kind batchnorm", "layernorm, rmsnorm"),
    ({"norm": {"placement": "middle"}}, "norm.placement middle", "pre, post"),
    ({"norm": {"eps": 0.0}}, "norm.eps 0.0", "above 0"),
    ({"norm": {"eps": float("inf")}}, "norm.eps inf", "finite"),
    ({"norm": {"eps": "small"}}, "norm.eps small", "above 0"),
    (
        {"norm": {"kind": "dyt", "eps": 1e-5}},
        "norm.eps 1e-05",
        "norm.kind dyt does not divide; set --model.decoder.norm.eps null",
    ),
    ({"norm": {"bias": True}}, "norm.bias true", "set --model.decoder.norm.bias null"),
    *(
        ({"norm": {"kind": kind, "bias": bias}}, f"norm.bias {word}", f"norm.kind {kind} has no")
        for kind in NORMS
        if kind != "layernorm"
        for bias, word in ((True, "true"), (False, "false"))
    ),
    ({"norm": {"kind": "layernorm", "bias": 1}}, "norm.bias 1", "true or false"),
    ({"position": {"kind": "alibis"}}, "position.kind alibis", "sinusoidal, rope, alibi, none"),
    ({"position": {"rope_theta": 0}}, "position.rope_theta 0", "above 0"),
    ({"position": {"rope_pairing": "thirds"}}, "position.rope_pairing thirds", "half, interleaved"),
    (
        {"position": {"kind": "none", "rope_theta": 1e4}},
        "position.rope_theta 10000.0",
        "set --model.decoder.position.rope_theta null",
    ),
    (
        {"position": {"kind": "learned", "rope_pairing": "half"}},
        "position.rope_pairing half",
        "position.kind learned rotates nothing",
    ),
    (
        {"position": {"kind": "sinusoidal", "rope_pairing": "half"}},
        "position.rope_pairing half",
        "position.kind sinusoidal rotates nothing",
    ),
    ({"position": {"rope_theta": "long"}}, "position.rope_theta long", "above 0"),
    ({"position": {"rope_fraction": 0}}, "position.rope_fraction 0", "above 0 and up to 1"),
    ({"position": {"rope_fraction": 1.5}}, "position.rope_fraction 1.5", "above 0 and up to 1"),
    (
        {"position": {"rope_fraction": 0.1}},
        "position.rope_fraction 0.1",
        "heads of width 32 turns 3 coordinates, which do not form pairs: give a fraction such as 0.125",
    ),
    *(
        ({"position": {"kind": kind, name: value}}, f"position.{name} {value}", "rotates nothing")
        for kind in POSITIONS
        if kind != "rope"
        for name, value in (("rope_fraction", 0.5), ("rope_local_theta", 100.0))
    ),
    *(
        (
            {"position": {"kind": kind, "rope_scaling": {"kind": "linear"}}},
            "position.rope_scaling.kind linear",
            f"position.kind {kind} rotates nothing; set --model.decoder.position.rope_scaling.kind",
        )
        for kind in POSITIONS
        if kind != "rope"
    ),
    ({"position": {"rope_local_theta": 0}}, "position.rope_local_theta 0", "above 0"),
    (
        {"position": {"rope_local_theta": 100.0}},
        "position.rope_local_theta 100.0",
        "attention.window null makes every layer global",
    ),
    (
        {
            "position": {"rope_local_theta": 100.0, "nope_every": 2},
            "attention": {"window": 8, "window_pattern": "GL"},
        },
        "position.rope_local_theta 100.0",
        "nope_every 2 removes positions from every windowed layer",
    ),
    (
        {
            "position": {"rope_local_theta": 100.0, "rope_theta": 1e6},
            "attention": {"window": 8},
        },
        "position.rope_theta 1000000.0",
        "rope_local_theta 100.0 replaces it in every layer",
    ),
    (
        {
            "position": {"rope_local_theta": 100.0, "rope_scaling": {"kind": "yarn"}},
            "attention": {"window": 8},
        },
        "position.rope_scaling.kind yarn",
        "rope_local_theta 100.0 replaces it in every layer",
    ),
    ({"position": {"nope_every": 0}}, "position.nope_every 0", "at least 1"),
    ({"position": {"nope_every": 1}}, "position.nope_every 1", "position.kind none"),
    ({"position": {"nope_every": 5}}, "position.nope_every 5", "n_layers 4 is smaller"),
    *(
        (
            {"position": {"kind": kind, "nope_every": 2}},
            "position.nope_every 2",
            f"position.kind {kind} adds no positions inside",
        )
        for kind in ("learned", "sinusoidal", "none")
    ),
    (
        {"position": {"rope_scaling": {"kind": "longer"}}},
        "position.rope_scaling.kind longer",
        "linear, ntk, dynamic, yarn, llama3",
    ),
    *(
        (
            {"position": {"rope_scaling": {"kind": kind, name: 8}}},
            f"position.rope_scaling.{name} 8",
            f"rope_scaling.kind {kind} does not use it",
        )
        for kind, scaling in ROPE_SCALINGS.items()
        for name in (field.name for field in fields(RopeScalingConfig))
        if name != "kind" and name not in scaling.settings
    ),
    *(
        (
            {"position": {"rope_scaling": {"kind": kind, name: 0}}},
            f"position.rope_scaling.{name} 0",
            "is impossible",
        )
        for kind, scaling in ROPE_SCALINGS.items()
        for name in scaling.settings
    ),
    (
        {"position": {"rope_scaling": {"kind": "linear", "factor": 1.0}}},
        "position.rope_scaling.factor 1.0",
        "set --model.decoder.position.rope_scaling.kind none",
    ),
    (
        {"position": {"rope_scaling": {"kind": "llama3", "low_freq_factor": 4}}},
        "position.rope_scaling.low_freq_factor 4",
        "not below --model.decoder.position.rope_scaling.high_freq_factor 4",
    ),
    (
        {"position": {"rope_scaling": {"kind": "yarn", "beta_fast": 0.5}}},
        "position.rope_scaling.beta_slow 1",
        "not below --model.decoder.position.rope_scaling.beta_fast 0.5",
    ),
    *(
        (
            {"dim": 8, "position": {"rope_scaling": {"kind": kind}}},
            f"position.rope_scaling.kind {kind}",
            "a head's 2 rotated coordinates have no other",
        )
        for kind in ("ntk", "dynamic")
    ),
    (
        {"position": {"rope_theta": 1.0, "rope_scaling": {"kind": "yarn"}}},
        "position.rope_scaling.kind yarn",
        "--model.decoder.position.rope_theta above 1",
    ),
    ({"attention": {"window": 0}}, "attention.window 0", "at least 1"),
    ({"attention": {"window": 1}}, "attention.window 1", "give 2 or more"),
    ({"attention": {"window": 2.5}}, "attention.window 2.5", "whole number"),
    *(
        (
            {"attention": {"window": window}},
            f"attention.window {window}",
            "not below context_length 128; set --model.decoder.attention.window null",
        )
        for window in (128, 4096)
    ),
    (
        {"attention": {"window_pattern": "LG"}},
        "attention.window_pattern LG",
        "attention.window null makes every layer global",
    ),
    *(
        (
            {"attention": {"window": 8, "window_pattern": pattern}},
            f"attention.window_pattern {pattern}",
            "L (windowed) and G (global)",
        )
        for pattern in ("", "G", "GGG", "LXG", "lg")
    ),
    (
        {"attention": {"window": 8, "window_pattern": "GGGGL"}},
        "attention.window 8",
        "window_pattern GGGGL has no L within n_layers 4",
    ),
    ({"attention": {"n_heads": 0}}, "attention.n_heads 0", "at least 1"),
    ({"attention": {"n_heads": 3}}, "dim 128", "n_heads 3: set dim to one, such as 129"),
    ({"attention": {"n_kv_heads": 0}}, "attention.n_kv_heads 0", "at least 1"),
    (
        {"attention": {"n_kv_heads": 3}},
        "attention.n_kv_heads 3",
        "n_heads 4: choose one of 1, 2, 4",
    ),
    (
        {"attention": {"n_kv_heads": 8}},
        "attention.n_kv_heads 8",
        "n_heads 4: choose one of 1, 2, 4",
    ),
    ({"attention": {"qkv_bias": 1}}, "attention.qkv_bias 1", "true or false"),
    ({"attention": {"output_bias": "on"}}, "attention.output_bias on", "true or false"),
    ({"attention": {"sinks": 4}}, "attention.sinks 4", "true or false"),
    ({"attention": {"gate": "sigmoid"}}, "attention.gate sigmoid", "true or false"),
    ({"attention": {"head_dim": 0}}, "attention.head_dim 0", "at least 1"),
    ({"attention": {"head_dim": 31}}, "attention.head_dim 31", "position.kind rope turns pairs"),
    ({"attention": {"qk_norm": True}}, "attention.qk_norm true", "none, head, projection"),
    ({"attention": {"softcap": 0}}, "attention.softcap 0", "above 0"),
    ({"logit_softcap": -30.0}, "logit_softcap -30.0", "above 0"),
    ({"dim": 12}, "position.kind rope", "odd width 3: set --model.decoder.dim to a multiple of 8"),
    ({"feed_forward": {"kind": "moe"}}, "feed_forward.kind moe", "swiglu"),
    ({"feed_forward": {"bias": 0}}, "feed_forward.bias 0", "true or false"),
    ({"feed_forward": {"hidden_dim": 0}}, "feed_forward.hidden_dim 0", "at least 1"),
    ({"feed_forward": {"multiple_of": 0}}, "feed_forward.multiple_of 0", "at least 1"),
    ({"feed_forward": {"dim_multiplier": 0}}, "feed_forward.dim_multiplier 0", "above 0"),
    (
        {"feed_forward": {"dim_multiplier": 1e-4}},
        "feed_forward.dim_multiplier 0.0001",
        "no hidden width at --model.decoder.dim 128",
    ),
    (
        {"feed_forward": {"kind": "gelu", "multiple_of": 32}},
        "feed_forward.multiple_of 32",
        "feed_forward.kind gelu is plain",
    ),
    (
        {"feed_forward": {"kind": "relu", "dim_multiplier": 1.0}},
        "feed_forward.dim_multiplier 1.0",
        "feed_forward.kind relu is plain",
    ),
    (
        {"feed_forward": {"hidden_dim": 64, "multiple_of": 32}},
        "feed_forward.multiple_of 32",
        "feed_forward.hidden_dim 64 already sets the width",
    ),
    (
        {"feed_forward": {"hidden_dim": 64, "dim_multiplier": 1.3}},
        "feed_forward.dim_multiplier 1.3",
        "feed_forward.hidden_dim 64 already sets the width",
    ),
    (
        {"feed_forward": {"swish_beta": "free"}},
        "feed_forward.swish_beta free",
        "fixed, learned",
    ),
    *(
        (
            {"feed_forward": {"kind": kind, "swish_beta": beta}},
            f"feed_forward.swish_beta {beta}",
            f"feed_forward.kind {kind} does not use Swish",
        )
        for kind in FEED_FORWARDS
        if kind not in ("silu", "swiglu")
        for beta in SWISH_BETAS
    ),
    (
        {"init": {"kind": "xavier", "std": 0.02}},
        "init.std 0.02",
        "init.kind xavier uses each matrix's own size; set --model.decoder.init.std null",
    ),
    ({"init": {"kind": "zeros"}}, "init.kind zeros", "normal, depth_scaled"),
    ({"init": {"std": 0.0}}, "init.std 0.0", "above 0"),
    ({"init": {"std": -0.02}}, "init.std -0.02", "above 0"),
    ({"widht": 3}, "widht 3", "no such setting"),
    ({"norm": {"epsilon": 3}}, "norm.epsilon 3", "did you mean eps?"),
    ({"norm": "rmsnorm"}, "norm rmsnorm", "give its settings by name"),
]


@pytest.mark.parametrize(("values", "flag", "remedy"), REFUSED)
def test_an_impossible_or_idle_setting_is_refused_with_its_remedy(
    values: dict[str, Any], flag: str, remedy: str
) -> None:
    with pytest.raises(SettingError) as refusal:
        DecoderConfig.from_dict(values)
    message = str(refusal.value)
    assert message.startswith(f"--model.decoder.{flag}")
    assert remedy in message
    assert "\n" not in message


def test_a_decoder_without_a_vocabulary_is_refused() -> None:
    with pytest.raises(SettingError, match=r"--model\.decoder\.vocab_size null"):
        Decoder(DecoderConfig())


@pytest.mark.parametrize(
    "config",
    [
        DecoderConfig(),
        DecoderConfig(
            dim=12,
            vocab_size=7,
            dropout=0.1,
            tie_embeddings=True,
            embedding_scale=True,
            norm=NormConfig(kind="layernorm", placement="post", bias=False, eps=1e-6),
            position=PositionConfig(kind="learned"),
            attention=AttentionConfig(n_heads=6, n_kv_heads=2, qkv_bias=True, output_bias=True),
            feed_forward=FeedForwardConfig(kind="geglu", multiple_of=8, dim_multiplier=1.5),
            init=InitConfig(kind="depth_scaled", std=0.1),
        ),
        DecoderConfig(
            logit_softcap=30.0,
            norm=NormConfig(kind="rmsnorm_offset", placement="sandwich"),
            position=PositionConfig(
                rope_theta=1e6,
                rope_local_theta=1e4,
                rope_fraction=0.5,
                nope_every=2,
                rope_scaling=RopeScalingConfig(kind="yarn", factor=8.0, beta_fast=16.0),
            ),
            attention=AttentionConfig(
                n_heads=3,
                head_dim=16,
                qk_norm="head",
                softcap=50.0,
                sinks=True,
                gate=True,
                window=16,
                window_pattern="LLG",
            ),
            feed_forward=FeedForwardConfig(swish_beta="learned"),
            init=InitConfig(kind="xavier"),
        ),
    ],
)
def test_a_config_survives_as_plain_values(config: DecoderConfig) -> None:
    assert DecoderConfig.from_dict(asdict(config)) == config


def test_a_head_width_of_its_own_need_not_divide_the_model_width() -> None:
    attention = AttentionConfig(n_heads=3, head_dim=10)
    assert DecoderConfig(dim=128, attention=attention).head_dim == 10
    assert DecoderConfig(dim=128).head_dim == 32


def test_an_eps_that_is_not_given_is_one_in_a_hundred_thousand() -> None:
    assert NormConfig().epsilon == NormConfig(eps=1e-5).epsilon == 1e-5
    assert NormConfig(eps=1e-6).epsilon == 1e-6


def test_values_that_are_absent_keep_their_defaults() -> None:
    config = DecoderConfig.from_dict({"norm": {"eps": 1e-6}})
    assert config == DecoderConfig(norm=NormConfig(eps=1e-6))


class Model:
    """Takes a decoder, as the training module does."""

    def __init__(self, decoder: DecoderConfig) -> None:
        self.decoder = decoder


def setting_names(config_class: Any, prefix: str) -> list[str]:
    """Every flag below ``prefix``, groups opened."""
    types = get_type_hints(config_class)
    names = []
    for field in fields(config_class):
        name = f"{prefix}.{field.name}"
        is_group = is_dataclass(types[field.name])
        names += setting_names(types[field.name], name) if is_group else [name]
    return names


@pytest.fixture
def parser() -> jsonargparse.ArgumentParser:
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Model, "model")
    return parser


def test_the_command_line_has_every_setting_with_choices_default_and_text(
    parser: jsonargparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    with redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    lines = out.getvalue().splitlines()
    names = setting_names(DecoderConfig, "--model.decoder")
    assert len(names) == 46
    for name in names:
        at = next(i for i, line in enumerate(lines) if line.strip().startswith(f"{name} "))
        entry = " ".join(lines[at : at + 2])
        assert "default: " in entry
        text = entry.split("(type: ")[0].removeprefix(f"  {name} ")
        assert len(text.split()) > 5, f"{name} has no text: {entry}"
    assert f"{{{','.join(NORMS)}}}" in out.getvalue()
    assert f"{{{','.join(BLOCKS)}}}" in out.getvalue()


def test_the_command_line_builds_the_config(parser: jsonargparse.ArgumentParser) -> None:
    arguments = parser.parse_args(
        ["--model.decoder.norm.kind=layernorm", "--model.decoder.attention.n_kv_heads=2"]
    )
    assert parser.instantiate_classes(arguments).model.decoder == DecoderConfig(
        norm=NormConfig(kind="layernorm"), attention=AttentionConfig(n_kv_heads=2)
    )
