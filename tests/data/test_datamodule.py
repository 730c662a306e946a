"""The data module as Lightning calls it: prepare_data in one process of a machine, setup in all."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_lab.data.config import DataConfig
from llama_lab.data.datamodule import TextDataModule
from llama_lab.data.store import token_store as store_module
from llama_lab.data.tokenizers.kinds import train_tokenizer

TEXT = "the cat sat on the mat and the dog ran.\n" * 30


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TextDataModule:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    return TextDataModule(DataConfig(corpus="text.txt", context_length=8))


def test_the_process_that_prepares_reads_the_corpus_once(
    data: TextDataModule, corpus_reads: list[str]
) -> None:
    data.prepare_data()
    data.setup("validate")
    assert corpus_reads == ["text.txt"]
    assert data.tokenizer.decode([*data.tokens.train, *data.tokens.validation]) == TEXT


def test_a_process_that_prepares_nothing_finds_the_store_of_the_one_that_does(
    data: TextDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.prepare_data()
    monkeypatch.setattr(store_module, "write_synced", None)
    other = TextDataModule(DataConfig(corpus="text.txt", context_length=8))
    other.setup("validate")
    data.setup("validate")
    assert other.tokens.folder == data.tokens.folder


def test_preparing_again_reads_the_corpus_as_it_is_by_then(
    data: TextDataModule, corpus_reads: list[str]
) -> None:
    data.prepare_data()
    data.setup("validate")
    before = data.tokens.digest
    Path("text.txt").write_text(TEXT.upper())
    data.prepare_data()
    data.setup("validate")
    assert data.tokens.digest != before
    assert len(corpus_reads) == 2


def test_a_tokenizer_that_comes_after_preparing_is_not_passed_over(data: TextDataModule) -> None:
    data.prepare_data()
    wider = TEXT + "xyz"
    tokenizer = train_tokenizer("char", train_text=wider, whole_text=wider, vocab_size=None)
    data.use_tokenizer(tokenizer.state())
    data.setup("validate")
    assert data.tokenizer.vocab_size == tokenizer.vocab_size
