"""Folders whose vocabulary is in other files than ``tokenizer.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llama_lab.data.tokenizers.kinds import BpeTokenizer
from llama_lab.generation.generate import load_model
from tests.interop.conftest import SPECIAL_NAMES, run

GPT2_CLASS = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|im_end|>"}
ADDED = {
    str(280 + i): {"content": name, "special": True, "normalized": False}
    for i, name in enumerate(SPECIAL_NAMES)
}
TEXTS = ("the café 日本 <|im_end|>\n  the", "a<|endoftext|>b", "it's 12 dogs")


@pytest.fixture
def two_files(make_folder: Any, tokenizers: dict[str, Any]) -> Path:
    """A folder with GPT-2's two files in place of tokenizer.json, and no tokenizer's config."""
    folder: Path = make_folder({"eos_token_id": 281})
    bpe = tokenizers["bpe"]
    assert isinstance(bpe, BpeTokenizer)
    ids = {spelling: number for number, spelling in enumerate(bpe.vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    merges = "#version: 0.2\n" + "\n".join(bpe.merges)
    (folder / "merges.txt").write_text(merges, encoding="utf-8")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    return folder


@pytest.mark.parametrize("place", ["config", "file"])
def test_gpt2s_two_files_are_read_with_their_added_tokens(
    transformers, two_files, tokenizers, tmp_path, place
) -> None:
    config = GPT2_CLASS | ({"added_tokens_decoder": ADDED} if place == "config" else {})
    (two_files / "tokenizer_config.json").write_text(json.dumps(config))
    if place == "file":
        ids = {name: 280 + i for i, name in enumerate(SPECIAL_NAMES)}
        (two_files / "added_tokens.json").write_text(json.dumps(ids))
    run("import", two_files, "--output", tmp_path / "a.ckpt")
    ours = load_model(tmp_path / "a.ckpt").tokenizer
    run("export", tmp_path / "a.ckpt", "--output", tmp_path / "out")
    before = transformers.AutoTokenizer.from_pretrained(two_files)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in TEXTS:
        assert ours.encode(text).tolist() == tokenizers["bpe"].encode(text).tolist()
        parsed = ours.encode_batch([text], special="parse")[0].tolist()
        assert theirs(text)["input_ids"] == before(text)["input_ids"] == parsed
    assert ours.ends == (281,)
    assert set(SPECIAL_NAMES) <= set(ours.special_names.values())


def test_they_need_no_config_of_a_tokenizer(two_files, tokenizers, tmp_path) -> None:
    run("import", two_files, "--output", tmp_path / "a.ckpt")
    ours = load_model(tmp_path / "a.ckpt").tokenizer
    assert ours.encode("the café").tolist() == tokenizers["bpe"].encode("the café").tolist()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"tokenizer_class": "Qwen2Tokenizer"}, "Qwen2Tokenizer splits words in another way"),
        ({**GPT2_CLASS, "add_prefix_space": True}, "add_prefix_space is true"),
        (
            {**GPT2_CLASS, "added_tokens_decoder": {"289": ADDED["280"]}},
            "gives the added token <|im_start|> the id 280, not 289",
        ),
        ({**GPT2_CLASS, "added_tokens_decoder": {"x": 1}}, "added_tokens_decoder.x 1: must be an"),
    ],
)
def test_two_files_that_mean_something_else_are_refused(
    two_files, refused, tmp_path, config, words
) -> None:
    (two_files / "tokenizer_config.json").write_text(json.dumps(config))
    assert words in refused("import", two_files, "--output", tmp_path / "a.ckpt")
    assert not (tmp_path / "a.ckpt").exists()


@pytest.mark.parametrize(
    "name", ["tokenizer.model", "spiece.model", "vocab.txt", "qwen.tiktoken", "vocab.json"]
)
def test_a_vocabulary_that_is_not_read_is_refused_with_the_way_out(
    make_folder, refused, tmp_path, name
) -> None:
    folder = make_folder({})
    (folder / "tokenizer.json").rename(folder / name)
    line = refused("import", folder, "--output", tmp_path / "a.ckpt")
    assert f"holds no tokenizer.json, and {name} alone holds the vocabulary" in line
    assert "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)" in line
    assert not (tmp_path / "a.ckpt").exists()


def test_broken_merges_are_refused(two_files, refused, tmp_path) -> None:
    (two_files / "merges.txt").write_text("x y z\nq", encoding="utf-8")
    line = refused("import", two_files, "--output", tmp_path / "a.ckpt")
    assert "vocab.json: is no vocabulary with its merges" in line


def test_a_folder_without_a_vocabulary_says_that_its_text_is_ids(
    make_folder, tmp_path, capsys
) -> None:
    folder = make_folder({}, chat_template="{{ messages }}")
    (folder / "tokenizer.json").unlink()
    run("import", folder, "--output", tmp_path / "a.ckpt")
    assert "no vocabulary is in it: text for this model is ids" in capsys.readouterr().err
    assert load_model(tmp_path / "a.ckpt").tokenizer.kind == "ids"
    run("export", tmp_path / "a.ckpt", "--output", tmp_path / "out")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ messages }}"
