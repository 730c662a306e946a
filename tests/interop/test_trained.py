"""Models trained here, in every form that a family can express, as transformers sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from llama_lab.checkpoints import read_record
from llama_lab.generation.generate import load_model, sample_text
from llama_lab.generation.sampling import SamplingConfig
from llama_lab.interop.families import GATED, ONE_PLUS_GAIN, PLAIN
from llama_lab.interop.huggingface import export_checkpoint
from llama_lab.interop.tokenizer_files import write_tokenizer
from llama_lab.model.feed_forward import FeedForwardKind
from tests.interop.conftest import (
    TEXT,
    load_theirs,
    logits_of,
    randomised,
    run,
    tensors_of,
)

Write = Callable[..., Path]
GQA = {"n_heads": 4, "n_kv_heads": 2}
GPT2: dict[str, Any] = {
    "norm": {"kind": "layernorm"},
    "position": {"kind": "learned"},
    "attention": {"n_heads": 4, "qkv_bias": True, "output_bias": True},
    "feed_forward": {"kind": "gelu_tanh", "bias": True},
}
# Settings, and the family that must be found for them.
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, "llama"),
    "grouped": ({"attention": GQA}, "llama"),
    "multi-query tied": (
        {"attention": {**GQA, "n_kv_heads": 1}, "tie_embeddings": True},
        "llama",
    ),
    "biases": (
        {
            "attention": {**GQA, "qkv_bias": True, "output_bias": True},
            "feed_forward": {"bias": True, "hidden_dim": 40},
        },
        "llama",
    ),
    "base": ({"position": {"rope_theta": 321.0}, "attention": GQA}, "llama"),
    "eps": ({"norm": {"eps": 0.01}}, "llama"),
    # As qwen2, which has just these biases, transformers would not read it with this tokenizer.
    "qkv bias": ({"attention": {**GQA, "qkv_bias": True}}, "llama"),
    "head width": (
        {"attention": {**GQA, "head_dim": 12}},
        "llama",
    ),
    "window": ({"attention": {**GQA, "window": 8}}, "mistral"),
    "window pattern": (
        {"attention": {**GQA, "window": 8, "window_pattern": "GL", "qkv_bias": True}},
        "smollm3",
    ),
    "head norms": ({"attention": {**GQA, "qk_norm": "head"}}, "qwen3"),
    "reordered": (
        {"attention": {**GQA, "qk_norm": "projection"}, "norm": {"placement": "reordered"}},
        "olmo2",
    ),
    "layers without a place": (
        {"attention": GQA, "position": {"nope_every": 2}},
        "smollm3",
    ),
    "sandwich": (
        {
            "attention": {**GQA, "qk_norm": "head", "window": 8, "window_pattern": "LG"},
            "norm": {"kind": ONE_PLUS_GAIN, "placement": "sandwich"},
            "position": {"rope_theta": 1e6, "rope_local_theta": 1e4},
            "feed_forward": {"kind": "geglu_tanh"},
            "embedding_scale": True,
            "tie_embeddings": True,
        },
        "gemma3_text",
    ),
    **{
        f"stretched, {kind}": (
            {"position": {"rope_scaling": {"kind": kind, "factor": 2.0, **factors}}},
            "llama",
        )
        for kind, factors in {
            "linear": {},
            "dynamic": {},
            "yarn": {"original_context_length": 24},
            "llama3": {
                "original_context_length": 24,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
        }.items()
    },
}


def compare(transformers: Any, path: Path, folder: Path, family: str) -> None:
    run("export", path, "--output", folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == family
    ours = load_model(path).decoder
    assert ours.config.vocab_size is not None
    tokens = torch.arange(2 * 48).reshape(2, 48) * 7 % ours.config.vocab_size
    with torch.no_grad():
        theirs = load_theirs(transformers, folder)(tokens).logits
    torch.testing.assert_close(theirs, logits_of(ours, tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize("name", FORMS)
def test_a_trained_model_computes_the_same_in_transformers(
    transformers: Any, write_trained: Write, tmp_path: Path, name: str, pairing: str
) -> None:
    settings, family = FORMS[name]
    position = {**settings.get("position", {}), "rope_pairing": pairing}
    path = write_trained({**settings, "position": position})
    compare(transformers, path, tmp_path / "out", family)


@pytest.mark.parametrize("kind", sorted(set(GATED.values())))
def test_every_gated_feed_forward_goes_out_as_llama(
    transformers: Any, write_trained: Write, tmp_path: Path, kind: str
) -> None:
    path = write_trained({"feed_forward": {"kind": kind}})
    compare(transformers, path, tmp_path / "out", "llama")


@pytest.mark.parametrize("kind", sorted(set(PLAIN.values())))
def test_every_plain_feed_forward_goes_out_as_gpt2(
    transformers: Any, write_trained: Write, tmp_path: Path, kind: str
) -> None:
    settings = {**GPT2, "feed_forward": {"kind": kind, "bias": True, "hidden_dim": 40}}
    compare(transformers, write_trained(settings), tmp_path / "out", "gpt2")


def test_no_kind_of_feed_forward_is_forgotten() -> None:
    assert set(get_args(FeedForwardKind)) <= {*GATED.values(), *PLAIN.values()}


# ---- text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
@pytest.mark.parametrize("settings", [{"position": {"rope_pairing": "interleaved"}}, GPT2])
def test_transformers_writes_the_same_text(
    transformers: Any,
    write_trained: Write,
    tokenizers: Any,
    tmp_path: Path,
    tokenizer: str,
    settings: dict[str, Any],
) -> None:
    path = write_trained(settings, tokenizer)
    run("export", path, "--output", tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "the  café\n\t日本 😀 <|endoftext|> ran. the dog's"
    text = text if tokenizer == "bpe" else text.replace("'s", "")
    ids = theirs(text)["input_ids"]
    assert ids == tokenizers[tokenizer].encode(text).tolist()
    assert theirs.decode(ids) == text
    model = load_model(path)
    prompt = "the cat sat"
    ours = sample_text(
        model.decoder,
        model.tokenizer,
        prompt=prompt,
        max_new_tokens=16,
        sampling=SamplingConfig(temperature=0),
        seed=0,
    )
    said = load_theirs(transformers, tmp_path / "out").generate(
        **theirs(prompt, return_tensors="pt"), do_sample=False, max_new_tokens=16
    )
    assert theirs.decode(said[0], skip_special_tokens=True) == ours


def test_an_unknown_character_is_an_error_there_too(
    transformers: Any, write_trained: Write, tmp_path: Path
) -> None:
    run("export", write_trained(), "--output", tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    with pytest.raises(Exception, match="WordLevel"):
        theirs("ß")


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_an_export_comes_in_again_with_its_tokenizer(
    write_trained: Write, tmp_path: Path, tokenizer: str
) -> None:
    path = write_trained({"attention": GQA}, tokenizer)
    run("export", path, "--output", tmp_path / "out")
    run("import", tmp_path / "out", "--output", tmp_path / "again.ckpt")
    before, after = load_model(path), load_model(tmp_path / "again.ckpt")
    text = "the café 日本 <|endoftext|>\n"
    assert after.tokenizer.encode(text).tolist() == before.tokenizer.encode(text).tolist()
    assert after.tokenizer.pieces == before.tokenizer.pieces
    assert after.tokenizer.end_of_text == before.tokenizer.end_of_text
    tokens = torch.arange(40)[None] % 20
    torch.testing.assert_close(
        logits_of(after.decoder, tokens), logits_of(before.decoder, tokens), rtol=0, atol=0
    )


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
@pytest.mark.parametrize(
    "name", sorted({family: name for name, (_, family) in FORMS.items()}.values())
)
def test_every_family_reads_a_text_as_the_model_did(
    transformers: Any,
    write_trained: Write,
    tokenizers: Any,
    tmp_path: Path,
    tokenizer: str,
    name: str,
) -> None:
    run("export", write_trained(FORMS[name][0], tokenizer), "--output", tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in (TEXT[:80], " \n\t日本  café 😀", "<|endoftext|>", "a </s> <|endoftext|>\n"):
        ids = theirs(text)["input_ids"]
        assert ids == tokenizers[tokenizer].encode(text).tolist()
        assert theirs.decode(ids) == text


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_biases_that_qwen2_alone_has_go_out_beside_zeros_for_a_tokenizer_of_ours(
    write_trained: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], tokenizer: str
) -> None:
    path = write_trained({"attention": {**GQA, "qkv_bias": True}}, tokenizer)
    run("export", path, "--output", tmp_path / "out")
    assert "llama with output biases of zero" in capsys.readouterr().err
    tensors = tensors_of(tmp_path / "out")
    for layer in range(2):
        attention = f"model.layers.{layer}.self_attn"
        assert tensors[f"{attention}.q_proj.bias"].any()
        assert torch.equal(tensors[f"{attention}.o_proj.bias"], torch.zeros(32))


def test_a_qwen2_that_came_with_its_tokenizer_goes_out_as_it_came(
    transformers: Any, tokenizers: Any, tmp_path: Path
) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    bpe = tokenizers["bpe"]
    config = transformers.Qwen2Config(**sizes, **heads, vocab_size=bpe.vocab_size)
    randomised(transformers.AutoModelForCausalLM.from_config(config)).save_pretrained(
        tmp_path / "in"
    )
    write_tokenizer(tmp_path / "in", bpe, 64)
    run("import", tmp_path / "in", "--output", tmp_path / "a.ckpt")
    run("export", tmp_path / "a.ckpt", "--output", tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "qwen2"
    before, after = tensors_of(tmp_path / "in"), tensors_of(tmp_path / "out")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


# ---- files ---------------------------------------------------------------------------------------


def test_a_large_model_is_divided_into_files(
    transformers: Any, write_trained: Write, tmp_path: Path
) -> None:
    path = write_trained()
    export_checkpoint(read_record(path), tmp_path / "whole")
    export_checkpoint(read_record(path), tmp_path / "parts", shard_limit=20_000)
    index = json.loads((tmp_path / "parts" / "model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "parts").glob("*.safetensors"))
    assert len(files) > 2
    assert {file.name for file in files} == set(index["weight_map"].values())
    whole, parts = tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    load_theirs(transformers, tmp_path / "parts")
    assert index["metadata"]["total_size"] == sum(t.numel() * 4 for t in whole.values())


def test_an_export_is_whole_readable_and_in_both_dialects(
    write_trained: Write, tmp_path: Path
) -> None:
    run("export", write_trained(), "--output", tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert {file.stat().st_mode & 0o444 for file in (tmp_path / "out").iterdir()} == {0o444}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10000.0
    assert config["rope_scaling"] is None
    assert config["dtype"] == config["torch_dtype"] == "float32"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"norm": {"placement": "post"}}, "--model.decoder.norm.placement post"),
        ({"norm": {"placement": "parallel"}}, "--model.decoder.norm.placement parallel"),
        ({"norm": {"kind": "rmsnorm_plain"}}, "--model.decoder.norm.kind rmsnorm_plain"),
        ({"position": {"rope_fraction": 0.5}}, "--model.decoder.position.rope_fraction 0.5"),
        (
            {"position": {"rope_scaling": {"kind": "ntk"}}},
            "--model.decoder.position.rope_scaling.kind ntk",
        ),
        ({"attention": {"softcap": 5.0}}, "--model.decoder.attention.softcap 5.0"),
        ({"attention": {"sinks": True}}, "--model.decoder.attention.sinks true"),
        ({"attention": {"gate": True}}, "--model.decoder.attention.gate true"),
        ({"logit_softcap": 5.0}, "--model.decoder.logit_softcap 5.0"),
        ({"feed_forward": {"swish_beta": "learned"}}, "feed_forward.swish_beta learned"),
        ({"position": {"kind": "sinusoidal"}}, "--model.decoder.position.kind sinusoidal"),
        ({"embedding_scale": True}, "--model.decoder.embedding_scale true"),
        ({"token_shift": True}, "--model.decoder.token_shift true"),
        ({**GPT2, "norm": {"kind": "layernorm", "bias": False}}, "--model.decoder.norm.bias false"),
        ({"attention": {"output_bias": True}}, "--model.decoder.attention.output_bias true"),
    ],
)
def test_what_no_family_can_express_is_refused_by_its_name(
    write_trained: Write, tmp_path: Path, refused: Any, settings: dict[str, Any], words: str
) -> None:
    line = refused("export", write_trained(settings), "--output", tmp_path / "out")
    assert words in line
    assert [path.name for path in tmp_path.iterdir()] == ["trained.ckpt"]


def test_a_planted_fault_is_not_exported(write_trained: Write, tmp_path: Path, refused) -> None:
    path = write_trained(fault="no_causal_mask")
    line = refused("export", path, "--output", tmp_path / "out")
    assert "--model.fault no_causal_mask" in line


def test_a_checkpoint_with_a_tensor_too_few_is_not_exported(
    write_trained: Write, tmp_path: Path, refused: Any
) -> None:
    path = write_trained()
    contents = torch.load(path, weights_only=True)
    del contents["state_dict"]["decoder.blocks.1.attention.wk.weight"]
    torch.save(contents, path)
    line = refused("export", path, "--output", tmp_path / "out")
    assert "blocks.1.attention.wk.weight is missing" in line


def test_an_export_that_fails_leaves_nothing(
    write_trained: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llama_lab.errors import RunError
    from llama_lab.interop import huggingface

    def fill_the_disk(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    path = write_trained()
    monkeypatch.setattr(huggingface, "write_tensors", fill_the_disk)
    with pytest.raises(RunError, match="No space left"):
        export_checkpoint(read_record(path), tmp_path / "out")
    assert [left.name for left in tmp_path.iterdir()] == ["trained.ckpt"]
