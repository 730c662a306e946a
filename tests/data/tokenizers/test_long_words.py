"""A text without blanks is learnt from in words of bounded length; other texts are as they were."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import tokenizers as library
from tokenizers import models, pre_tokenizers, trainers

from llama_lab.data.corpus import cutting
from llama_lab.data.corpus.cutting import cut_safely
from llama_lab.data.corpus.readers.records import Piece
from llama_lab.data.tokenizers import learning
from llama_lab.data.tokenizers.kinds import (
    END_OF_TEXT,
    BpeTokenizer,
    tokenizer_from_state,
    train_tokenizer,
)
from llama_lab.data.tokenizers.long_words import LONGEST_WORD, BoundedWords
from llama_lab.errors import RunError
from tests.runs.conftest import start

NORMAL = "We'll go to the well,  they said.\n\n  中文字中文。1234 99 -----\n" * 40


def dna(n: int) -> str:
    return "".join(random.Random(0).choices("ACGT", k=n))


def trained(text: str, vocab_size: int = 320) -> BpeTokenizer:
    tokenizer = train_tokenizer("bpe", train_text=text, whole_text=text, vocab_size=vocab_size)
    assert isinstance(tokenizer, BpeTokenizer)
    return tokenizer


LONG = {
    "dna": dna(5000),
    "digits": "31415926535" * 400,
    "blanks": "a" + " " * 4000 + "b",
    "lines": "\n" * 4000,
    "apostrophes": "'" * LONGEST_WORD + "'s" + "'" * 3000 + "ll",
    "chinese": "天地玄黄宇宙洪荒" * 500,
    "mixed": NORMAL + dna(3000) + NORMAL + "=" * 2500 + "\n",
}


@pytest.mark.parametrize("name", LONG)
def test_the_learner_gets_no_word_longer_than_the_bound(name: str) -> None:
    words = BoundedWords([LONG[name]])
    pieces = list(words)
    assert "".join(pieces) == LONG[name]
    assert words.found_long
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    lengths = [b - a for piece in pieces for _, (a, b) in split.pre_tokenize_str(piece)]
    assert max(lengths) <= LONGEST_WORD


@pytest.mark.parametrize("name", LONG)
def test_long_words_come_back_and_no_token_reaches_over_a_bound(name: str) -> None:
    text = LONG[name]
    tokenizer = trained(text, 600)
    assert tokenizer.longest_word == LONGEST_WORD
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    known = tokenizer_from_state(tokenizer.state())
    assert known.encode(text).tolist() == ids.tolist()
    if name == "dna":
        ends = np.cumsum([len(tokenizer.pieces[i]) for i in ids])
        assert set(range(LONGEST_WORD, len(text), LONGEST_WORD)) <= set(ends.tolist())


@pytest.mark.parametrize("text", [NORMAL, "x" * LONGEST_WORD + " " + NORMAL, "a1" * 3000])
def test_a_text_that_splits_normally_has_the_tokens_that_the_library_gives_it(text: str) -> None:
    tokenizer = trained(text)
    assert set(tokenizer.state()) == {"kind", "vocabulary", "merges"}
    backend = library.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([text], trainer)
    assert backend.get_vocab() == {name: i for i, name in enumerate(tokenizer.vocabulary)}
    assert tokenizer.encode(text).tolist() == backend.encode(text).ids


@pytest.mark.parametrize("name", [*LONG, "short words"])
def test_a_text_without_a_safe_cut_is_cut_with_the_ids_of_the_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "UNCUT_CHARACTERS", 900)
    text = LONG.get(name, "a1b22'll3c" * 600)
    tokenizer = trained(LONG["mixed"], 600)
    for size in (1, 333, 1000):
        if size == 1 and name == "mixed":
            continue
        starts = range(0, len(text), size)
        pieces = [Piece(text[at : at + size], at + size >= len(text)) for at in starts]
        cut = list(cut_safely(pieces, tokenizer.safe_cut, tokenizer.last_place))
        assert "".join(part for part, _, _ in cut) == text
        assert [begins for _, begins, _ in cut] == [True, *[False] * (len(cut) - 1)]
        assert len(cut) > 1 or name == "apostrophes"
        found = tokenizer.encode_batch([part for part, _, _ in cut])
        assert np.concatenate(found).tolist() == tokenizer.encode(text).tolist()


def test_no_cut_divides_the_spelling_of_the_special_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "UNCUT_CHARACTERS", 500)
    text = ("a1" * 300 + END_OF_TEXT) * 5
    tokenizer = trained(LONG["mixed"], 600)
    for size in range(590, 640):
        pieces = [Piece(text[at : at + size], False) for at in range(0, len(text), size)]
        cut = cut_safely([*pieces, Piece("", True)], tokenizer.safe_cut, tokenizer.last_place)
        found = tokenizer.encode_batch([part for part, _, _ in cut], special="parse")
        assert (np.concatenate(found) == 0).sum() == 5


def test_a_process_of_its_own_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [trained(text) for text in LONG.values()]
    monkeypatch.setattr(learning, "SHORT_BYTES", 0)
    assert [trained(text).state() for text in LONG.values()] == [each.state() for each in own]


def test_a_learning_process_that_is_ended_from_outside_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learning, "SHORT_BYTES", 0)
    with pytest.raises(RunError, match=r"bpe vocabulary ended with 1; .* lower --data.vocab_size"):
        learning.learn_pairs(iter(["text"]), 4, vocab_size=-1)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="Windows has none")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_is_answered_while_the_library_learns(tmp_path: Path, name: str) -> None:
    (tmp_path / "dna.txt").write_text(dna(1_000_000) * 8)  # half a minute of learning
    process: subprocess.Popen[str] = start(
        tmp_path, "tokenize", "--corpus=dna.txt", "--tokenizer=bpe", "--vocab_size=2048"
    )
    assert process.stderr is not None
    while not (line := process.stderr.readline()).startswith("learning  byte pairs from 7.2 MB, "):
        assert line, "it ended before it said that it learns"
    began = time.monotonic()
    process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 3  # a second to answer, and the end of a process
    assert process.returncode == 128 + getattr(signal, name)
    assert err.splitlines()[-1] == f"llama-lab: stopped by {name}"
    assert not [path for path in tmp_path.rglob("cache/*") if path.is_file()]
