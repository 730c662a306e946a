"""Each family, made by transformers in the test: in, compared, and out again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch

from llama_lab.generation.generate import load_model
from llama_lab.interop.families import FAMILIES
from tests.interop.conftest import (
    greedy,
    load_theirs,
    logits_of,
    randomised,
    run,
    tensors_of,
)

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": 61, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}
GPT2 |= {"bos_token_id": 1, "eos_token_id": 2}
LOCAL, FULL = "sliding_attention", "full_attention"


class Case(NamedTuple):
    """A family's config: its class, and the settings that differ from the usual ones."""

    config: str
    settings: Mapping[str, Any] = MappingProxyType({})


def stretched(**scaling: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 5000.0, **scaling}}


CASES = {
    "llama": Case("Llama"),
    "llama-multi-query-tied": Case(
        "Llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}
    ),
    "llama-theta-eps": Case("Llama", {"rms_norm_eps": 1e-3, **stretched(rope_type="default")}),
    "llama-attention-bias": Case("Llama", {"attention_bias": True}),
    "llama-mlp-bias": Case("Llama", {"mlp_bias": True}),
    "llama-gelu": Case("Llama", {"hidden_act": "gelu"}),
    "llama-head-dim": Case("Llama", {"head_dim": 12}),
    "llama-linear": Case("Llama", stretched(rope_type="linear", factor=2.0)),
    "llama-dynamic": Case(
        "Llama",
        {"max_position_embeddings": 32, **stretched(rope_type="dynamic", factor=2.0)},
    ),
    "llama-yarn": Case(
        "Llama",
        stretched(rope_type="yarn", factor=2.0, original_max_position_embeddings=32),
    ),
    "llama3": Case(
        "Llama",
        stretched(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "gpt2": Case("GPT2", GPT2),
    "gpt2-wide-untied": Case("GPT2", {**GPT2, "n_inner": 48, "tie_word_embeddings": False}),
    "gpt2-relu": Case("GPT2", {**GPT2, "activation_function": "relu"}),
    "qwen2": Case("Qwen2"),
    "qwen2-window": Case(
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "mistral": Case("Mistral", {"sliding_window": 8}),
    "mistral-no-window": Case("Mistral", {"sliding_window": None}),
    "qwen3": Case("Qwen3", {"head_dim": 16}),
    "olmo2": Case("Olmo2"),
    "smollm3": Case("SmolLM3", {"no_rope_layer_interval": 2}),
    "gemma3": Case(
        "Gemma3Text",
        {
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 8,
            "layer_types": [LOCAL, LOCAL, FULL],
        },
    ),
    "gemma3-stretched": Case(
        "Gemma3Text",
        {
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 8,
            "layer_types": [LOCAL, LOCAL, FULL],
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                LOCAL: {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma3-stretched-in-no-layer": Case(
        "Gemma3Text",
        {
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": 8,
            "layer_types": [LOCAL] * 3,
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                LOCAL: {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    # Ids that its config has by default, and a small vocabulary has not.
    "gpt2-usual-ends": Case("GPT2", {**GPT2, "bos_token_id": 50256, "eos_token_id": 50256}),
}
TOKENS = torch.randint(61, (2, 48), generator=torch.Generator().manual_seed(0))


def theirs_of(transformers: Any, case: Case) -> Any:
    sizes = {} if case.config == "GPT2" else SIZES
    config = getattr(transformers, f"{case.config}Config")(**{**sizes, **case.settings})
    return randomised(transformers.AutoModelForCausalLM.from_config(config))


@pytest.mark.parametrize("name", CASES)
def test_a_family_comes_in_computes_the_same_and_goes_out_unchanged(
    transformers: Any, tmp_path: Path, name: str
) -> None:
    theirs = theirs_of(transformers, CASES[name])
    theirs.save_pretrained(tmp_path / "in")
    run("import", tmp_path / "in", "--output", tmp_path / "a.ckpt")
    ours = load_model(tmp_path / "a.ckpt").decoder
    with torch.no_grad():
        wanted = theirs(TOKENS).logits
    torch.testing.assert_close(logits_of(ours, TOKENS), wanted, rtol=1e-4, atol=1e-4)
    prompt = TOKENS[0, :20].tolist()
    said = theirs.generate(
        torch.tensor([prompt]), do_sample=False, max_new_tokens=12, eos_token_id=None
    )
    assert greedy(ours, prompt, 12) == said[0, 20:].tolist()

    run("export", tmp_path / "a.ckpt", "--output", tmp_path / "out")
    before, after = tensors_of(tmp_path / "in"), tensors_of(tmp_path / "out")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again = load_theirs(transformers, tmp_path / "out")
    with torch.no_grad():
        torch.testing.assert_close(again(TOKENS).logits, wanted, rtol=1e-5, atol=1e-5)


def test_every_family_is_among_the_cases(transformers: Any) -> None:
    made = {getattr(transformers, f"{case.config}Config").model_type for case in CASES.values()}
    assert made == set(FAMILIES)


def test_a_model_in_half_precision_and_many_files(transformers: Any, tmp_path: Path) -> None:
    theirs = theirs_of(transformers, CASES["llama"]).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path / "in", max_shard_size="10KB")
    assert len(list((tmp_path / "in").glob("*.safetensors"))) > 2
    run("import", tmp_path / "in", "--output", tmp_path / "a.ckpt")
    ours = load_model(tmp_path / "a.ckpt").decoder
    assert {p.dtype for p in ours.parameters()} == {torch.float32}
    with torch.no_grad():
        wanted = theirs.float()(TOKENS).logits
    torch.testing.assert_close(logits_of(ours, TOKENS), wanted, rtol=1e-4, atol=1e-4)


def test_an_old_gpt2_file_has_bare_names_and_masks(transformers: Any, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    theirs = theirs_of(transformers, CASES["gpt2"])
    theirs.save_pretrained(tmp_path / "in")
    file = tmp_path / "in" / "model.safetensors"
    old = {k.removeprefix("transformer."): v for k, v in tensors_of(tmp_path / "in").items()}
    old |= {f"h.{i}.attn.bias": torch.ones(1, 1, 64, 64) for i in range(3)}
    save_file(old, file)
    run("import", tmp_path / "in", "--output", tmp_path / "a.ckpt")
    with torch.no_grad():
        wanted = theirs(TOKENS).logits
    ours = load_model(tmp_path / "a.ckpt").decoder
    torch.testing.assert_close(logits_of(ours, TOKENS), wanted, rtol=1e-4, atol=1e-4)


# ---- the tied head -------------------------------------------------------------------------------


@pytest.fixture
def tied_folder(transformers: Any, tmp_path: Path) -> Path:
    theirs_of(transformers, CASES["llama-multi-query-tied"]).save_pretrained(tmp_path / "in")
    return tmp_path / "in"


def rewrite(folder: Path, **tensors: torch.Tensor | None) -> None:
    from safetensors.torch import save_file

    kept = {**tensors_of(folder), **{k.replace("__", "."): v for k, v in tensors.items()}}
    save_file({k: v for k, v in kept.items() if v is not None}, folder / "model.safetensors")


def reconfigure(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


def test_a_tied_head_may_be_stored_too_if_it_is_the_same(tied_folder, tmp_path, refused) -> None:
    embedding = tensors_of(tied_folder)["model.embed_tokens.weight"]
    rewrite(tied_folder, lm_head__weight=embedding.clone())
    run("import", tied_folder, "--output", tmp_path / "a.ckpt")
    ours = load_model(tmp_path / "a.ckpt").decoder
    assert "head.weight" not in ours.state_dict()
    rewrite(tied_folder, lm_head__weight=embedding + 1)
    line = refused("import", tied_folder, "--output", tmp_path / "b.ckpt")
    assert "lm_head.weight differs from model.embed_tokens.weight" in line


def test_an_untied_model_without_its_head_is_refused(tied_folder, tmp_path, refused) -> None:
    reconfigure(tied_folder, tie_word_embeddings=False)
    line = refused("import", tied_folder, "--output", tmp_path / "a.ckpt")
    assert "tensor lm_head.weight is missing" in line


@pytest.mark.parametrize("tied", [True, False])
def test_an_export_says_tied_just_where_it_has_no_head(write_trained, tmp_path, tied) -> None:
    run("export", write_trained({"tie_embeddings": tied}), "--output", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is tied
    assert ("lm_head.weight" in tensors_of(tmp_path / "out")) is not tied


# ---- missing and surplus -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "tensor", "words"),
    [
        ("self_attn.k_proj.weight", None, "k_proj.weight is missing"),
        ("self_attn.k_proj.bias", torch.ones(8), "k_proj.bias belongs to no part"),
        ("self_attn.k_proj.weight", torch.ones(32, 32), "k_proj.weight has shape [32, 32]"),
    ],
    ids=["missing", "surplus", "misshapen"],
)
def test_a_tensor_that_is_not_as_it_should_be_is_named(
    tied_folder, tmp_path, refused, key, tensor, words
) -> None:
    rewrite(tied_folder, **{f"model__layers__1__{key.replace('.', '__')}": tensor})
    line = refused("import", tied_folder, "--output", tmp_path / "a.ckpt")
    assert f"tensor model.layers.1.self_attn.{words}" in line
    assert not (tmp_path / "a.ckpt").exists()
