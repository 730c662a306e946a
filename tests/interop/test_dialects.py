"""What the keys of a config stand for, in the old dialect and the new, without any weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from llama_lab.errors import UserError
from llama_lab.interop.families import FAMILIES
from llama_lab.interop.parts import differing, layer_windows, resolved, windows
from llama_lab.interop.values import Values

LLAMA = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
GPT2 = {"vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}


def read(family: str, **keys: Any) -> dict[str, Any]:
    sizes = GPT2 if family == "gpt2" else {**LLAMA, "max_position_embeddings": 8192}
    return resolved(FAMILIES[family].read(Values({**sizes, **keys}, "config.json: ")))


def written(family: str, parts: dict[str, Any]) -> dict[str, Any]:
    return FAMILIES[family].write(parts)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_family_writes_it_reads_again(family: str) -> None:
    parts = read(family)
    keys = written(family, parts)
    assert not differing(resolved(FAMILIES[family].read(Values(keys, ""))), parts)
    assert keys["model_type"] == family
    assert keys["architectures"] == [FAMILIES[family].architecture]


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LLAMA3_PARTS = {
    "position.rope_scaling.kind": "llama3",
    "position.rope_scaling.factor": 8.0,
    "position.rope_scaling.low_freq_factor": 1.0,
    "position.rope_scaling.high_freq_factor": 4.0,
    "position.rope_scaling.original_context_length": 32,
}


@pytest.mark.parametrize(
    ("keys", "theta", "scaling"),
    [
        ({}, 10000.0, {}),
        ({"rope_theta": 5e5}, 5e5, {}),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, {}),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5, {}),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_theta": 5e5}}, 5e5, {}),
        ({"rope_scaling": {"rope_type": "default", "rope_theta": 5e5}}, 5e5, {}),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "default", "rope_theta": 5e5}}, 5e5, {}),
        (
            {"rope_scaling": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
            5e5,
            LLAMA3_PARTS,
        ),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}},
            10000.0,
            {"position.rope_scaling.kind": "linear", "position.rope_scaling.factor": 2.0},
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            5e5,
            LLAMA3_PARTS,
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
            5e5,
            LLAMA3_PARTS,
        ),
    ],
)
def test_both_dialects_of_rope_say_the_same(keys, theta, scaling) -> None:
    parts = read("llama", **keys)
    assert parts["position.rope_theta"] == theta
    assert {k: v for k, v in parts.items() if "rope_scaling" in k} == scaling
    # What is written is found in either dialect alone.
    out = written("llama", parts)
    old = {k: v for k, v in out.items() if k != "rope_parameters"}
    new = {k: v for k, v in out.items() if k not in ("rope_theta", "rope_scaling")}
    for config in (old, new):
        assert not differing(resolved(FAMILIES["llama"].read(Values(config, ""))), parts)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"rope_theta": 2.0, "rope_parameters": {"rope_theta": 3.0}},
            "rope_theta 2.0: contradicts rope_parameters.rope_theta 3.0; keep one",
        ),
        (
            {"rope_theta": 2.0, "rope_scaling": {"type": "default", "rope_theta": 3.0}},
            r"config.json: rope_theta 2.0: contradicts rope_scaling.rope_theta 3.0; keep one",
        ),
        (
            {"rope_parameters": {"rope_theta": 2.0}, "rope_scaling": {"rope_theta": 3.0}},
            "rope_scaling.rope_theta 3.0: contradicts rope_parameters.rope_theta 2.0",
        ),
        ({"rotary_emb_base": 5e5}, "rotary_emb_base 500000.0: this family's base is rope_theta"),
        ({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2}}, "type yarn: con"),
        (
            {
                "rope_scaling": {"type": "default"},
                "rope_parameters": {"rope_type": "linear", "factor": 3.0},
            },
            "contradicts rope_parameters",
        ),
        ({"rope_scaling": {"full_attention": {"rope_theta": 3.0}}}, "one kind of rope"),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 3.0},
            },
            "contradicts rope_parameters",
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "mscale": 0.7}}, "rope_scaling.mscale"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": False}}, "truncate false"),
        ({"rope_scaling": {"type": "su"}}, "rope_scaling.type su"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rope_parameters.partial_rotary"),
        (
            {"rope_scaling": LLAMA3 | {"type": "llama3"}, "original_max_position_embeddings": 64},
            "original_max_position_embeddings 64: contradicts the scaling, which says 32",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 3.0}}}, "one kind of rope"),
    ],
)
def test_rope_that_contradicts_itself_or_is_unknown_is_refused(keys, words) -> None:
    with pytest.raises(UserError, match=words):
        read("llama", **keys)


def test_the_original_context_may_stand_beside_the_scaling() -> None:
    scaling = {"type": "yarn", "factor": 2.0, "truncate": True}
    parts = read("llama", rope_scaling=scaling, original_max_position_embeddings=32)
    assert parts["position.rope_scaling.original_context_length"] == 32
    assert read("llama", rope_scaling=scaling)["position.rope_scaling.original_context_length"] == (
        8192
    )
    # Where nothing is stretched it says nothing.
    assert not differing(read("llama", original_max_position_embeddings=32), read("llama"))


def test_a_stretch_that_no_layer_of_gemma_uses_is_none() -> None:
    """With a window everywhere, only the windowed layers' rope counts, which is not stretched."""
    keys = {"head_dim": 8, "query_pre_attn_scalar": 8, "rope_local_base_freq": 3e4}
    stretch = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    windowed = {**keys, "layer_types": ["sliding_attention"] * 4}
    assert not differing(
        read("gemma3_text", **windowed, **stretch), read("gemma3_text", **windowed)
    )
    mixed = {**keys, "layer_types": ["sliding_attention", "full_attention"] * 2}
    assert differing(read("gemma3_text", **mixed, **stretch), read("gemma3_text", **mixed))


def test_gemma_has_a_base_for_each_kind_of_layer_in_both_dialects() -> None:
    head = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window_pattern": 2}
    full, local = {"rope_theta": 5e5}, {"rope_theta": 3e4, "rope_type": "default"}
    new = read(
        "gemma3_text",
        **head,
        rope_parameters={"full_attention": full, "sliding_attention": local},
    )
    old = read("gemma3_text", **head, rope_theta=5e5, rope_local_base_freq=3e4)
    assert new == old
    assert (new["position.rope_theta"], new["position.rope_local_theta"]) == (5e5, 3e4)
    with pytest.raises(UserError, match="query_pre_attn_scalar 24"):
        read("gemma3_text", head_dim=8, query_pre_attn_scalar=24)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rope_parameters": {"rope_theta": 5e5}}, "rope_parameters.rope_theta 500000.0: must st"),
        ({"rope_scaling": {"full_attention": {"rope_theta": 5e5}}}, "in rope_parameters alone"),
        (
            {
                "rope_local_base_freq": 3e4,
                "rope_parameters": {"sliding_attention": {"rope_theta": 1e4}},
            },
            "rope_local_base_freq 30000.0: contradicts rope_parameters.sliding_attention",
        ),
        (
            {"rope_theta": 3e4, "rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
            "rope_theta 30000.0: contradicts rope_parameters.full_attention.rope_theta 10000.0",
        ),
    ],
)
def test_a_base_of_gemma_that_transformers_would_not_take_is_refused(keys, words) -> None:
    with pytest.raises(UserError, match=words):
        read("gemma3_text", head_dim=256, **keys)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "gpt2"])
@pytest.mark.parametrize(
    "keys",
    [
        {"rope_scaling": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_scaling": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
        {"rope_scaling": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 2.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ],
)
def test_the_base_is_the_one_that_transformers_takes(transformers, family, keys) -> None:
    theirs = transformers.AutoConfig.for_model(family, **copy.deepcopy(keys)).rope_parameters
    assert theirs.get("full_attention", theirs)["rope_theta"] == 5e5
    own = {"head_dim": 256, "sliding_window_pattern": 2} if family == "gemma3_text" else {}
    assert read(family, **own, **keys)["position.rope_theta"] == 5e5


@pytest.mark.parametrize(
    ("family", "keys", "layers", "window"),
    [
        ("mistral", {}, "LLLL", 4096),
        ("mistral", {"sliding_window": 16}, "LLLL", 16),
        ("mistral", {"sliding_window": None}, "GGGG", None),
        ("mistral", {"sliding_window": 8192}, "GGGG", None),
        ("qwen2", {}, "GGGG", None),
        ("qwen2", {"sliding_window": 16, "use_sliding_window": False}, "GGGG", None),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 3}, "GGGL", 4096),
        (
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
            },
            "GLGL",
            8,
        ),
        ("gemma3_text", {"head_dim": 256, "sliding_window_pattern": 2}, "LGLG", 4096),
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": None},
            "GGGG",
            None,
        ),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, "LLLL", 4096),
        ("smollm3", {}, "GGGG", None),
        ("smollm3", {"use_sliding_window": True}, "GGGG", None),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 8}, "GGGL", 8),
    ],
)
def test_windows_are_found_by_layer(family, keys, layers, window) -> None:
    parts = read(family, **keys)
    assert layer_windows(parts) == layers
    assert parts.get("attention.window") == window


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("mistral", {}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 3}),
        ("gemma3_text", {"head_dim": 256}),
    ],
)
def test_a_window_that_shows_a_token_itself_alone_is_refused(family, keys) -> None:
    with pytest.raises(UserError, match="sliding_window 1: this version's windows show 2"):
        read(family, **keys, sliding_window=1)


def test_a_window_of_one_token_that_no_layer_looks_through_is_none() -> None:
    unused = {"use_sliding_window": True, "max_window_layers": 4}
    assert layer_windows(read("qwen2", **unused, sliding_window=1)) == "GGGG"


def test_layers_whose_window_has_no_size_are_refused() -> None:
    layers = {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 4}
    with pytest.raises(UserError, match="name a window, and sliding_window is null"):
        read("qwen3", **layers, sliding_window=None)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_config_leaves_out_is_what_transformers_takes_for_it(transformers, family) -> None:
    theirs = transformers.AutoConfig.for_model(family)
    sizes = GPT2 if family == "gpt2" else {**LLAMA, "num_attention_heads": 32, "hidden_size": 64}
    absent = ("num_key_value_heads", "n_positions")
    keys = {key: value for key, value in sizes.items() if key not in absent}
    parts = resolved(FAMILIES[family].read(Values(keys, "")))
    assert parts["context_length"] == theirs.max_position_embeddings
    assert parts["tie_embeddings"] == theirs.tie_word_embeddings
    if family != "gpt2":
        # A default that follows from others is the heads' own here, and the 32 or 16 heads' there.
        alike = theirs.num_attention_heads == theirs.num_key_value_heads
        wanted = 32 if alike else theirs.num_key_value_heads
        assert parts["attention.n_kv_heads"] == wanted
        assert parts["norm.eps"] == theirs.rms_norm_eps
        null = resolved(FAMILIES[family].read(Values({**keys, "num_key_value_heads": None}, "")))
        assert null["attention.n_kv_heads"] == 32


@pytest.mark.parametrize(
    ("layers", "pattern"),
    [("LLLL", None), ("LGLG", "LG"), ("LLGLL", "LLG"), ("GGGL", "GGGL"), ("LGG", "LGG")],
)
def test_a_pattern_is_as_short_as_can_be(layers, pattern) -> None:
    assert windows(layers, 8) == {"attention.window": 8, "attention.window_pattern": pattern}


@pytest.mark.parametrize(
    ("keys", "every"),
    [
        ({}, 4),
        ({"no_rope_layer_interval": 2}, 2),
        ({"no_rope_layer_interval": 9}, None),
        ({"no_rope_layers": [1, 1, 0, 1]}, 3),
        ({"no_rope_layers": [1, 1, 1, 1]}, None),
    ],
)
def test_layers_without_a_place_are_every_nth(keys, every) -> None:
    assert read("smollm3", **keys).get("position.nope_every") == every


@pytest.mark.parametrize("flags", [[0, 1, 1, 1], [1, 0, 0, 1], [1, 1], [1, 1, 1, 2], "1111"])
def test_layers_without_a_place_that_have_no_rule_are_refused(flags) -> None:
    with pytest.raises(UserError, match="no_rope_layers"):
        read("smollm3", no_rope_layers=flags)


def test_a_width_of_heads_that_divides_the_model_is_no_setting() -> None:
    assert read("llama", head_dim=8)["attention.head_dim"] is None
    assert read("llama", head_dim=16)["attention.head_dim"] == 16
    assert read("qwen3")["attention.head_dim"] == 128
    assert "head_dim" not in written("qwen2", read("qwen2"))
    assert written("llama", read("llama"))["head_dim"] == 8


@pytest.mark.parametrize(
    ("key", "value"),
    [("scale_attn_weights", False), ("add_cross_attention", True), ("add_cross_attention", 1)],
)
def test_a_variant_of_gpt2_that_is_not_known_is_refused(key, value) -> None:
    with pytest.raises(UserError, match=key):
        read("gpt2", **{key: value})
