"""Ids spell the text that they came from, exactly, and a tokenizer survives being written down."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_lab.data.tokenizers import kinds as tokenizers
from llama_lab.data.tokenizers.kinds import (
    END_OF_TEXT,
    TOKENIZERS,
    BpeTokenizer,
    CharTokenizer,
    Tokenizer,
    TokenizerKind,
    UnknownCharacters,
    tokenizer_from_state,
    train_tokenizer,
)
from llama_lab.errors import UserError

TEXT = (
    "We'll go  to\tthe well again, the well that they'd dug in 1999;\r\n\r\n"
    "naïve 中文字 中文 😀👨‍👩‍👧 <|endoftext|> the end\u2028and\u0085the rest\n"
) * 30

# Joined emoji, skin tones, flags, combining marks, both forms of é and 각, right to left with its
# controls, NUL, line ends of every kind, a noncharacter, and what spells a special token.
EMOJI = ("👨\u200d👩\u200d👧", "👍🏽", "🇩🇪", "\u200d", "\ufe0f")
MARKS = ("e\u0301", "\u0301\u0323", "é", "각", "\u1100\u1161\u11a8")
RIGHT_TO_LEFT = ("שלום", "\u202eمرحبا\u202c", "\u200f")  # noqa: RUF001
CONTROLS = ("\x00", "\r", "\r\n", "\u2028", "\x85", "\ufeff", "\uffff", "\U0010ffff", "  ", "\t")
WORDS = ("'ll", "1999", "word", "<|", "end", "of", "text", "|>", END_OF_TEXT)
CLUSTERS = (*EMOJI, *MARKS, *RIGHT_TO_LEFT, *CONTROLS, *WORDS)
any_text = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.sampled_from(CLUSTERS)).map("".join),
)


def trained(kind: str, text: str = TEXT, vocab_size: int | None = None) -> Tokenizer:
    return train_tokenizer(kind, train_text=text, whole_text=text, vocab_size=vocab_size)


BPE = trained("bpe", vocab_size=320)
CHAR = trained("char")
both = pytest.mark.parametrize("tokenizer", [CHAR, BPE], ids=["char", "bpe"])


# ---- text comes back ----------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(any_text)
def test_bpe_gives_back_every_text(text: str) -> None:
    ids = BPE.encode(text)
    assert BPE.decode(ids) == text
    assert b"".join(BPE.pieces[number] for number in ids) == text.encode()


@settings(max_examples=200, deadline=None)
@given(any_text, any_text)
def test_char_gives_back_every_text_over_its_vocabulary(vocabulary: str, more: str) -> None:
    tokenizer = trained("char", vocabulary + more)
    ids = tokenizer.encode(more + vocabulary)
    assert tokenizer.decode(ids) == more + vocabulary
    assert len(ids) == len(more + vocabulary)


@both
def test_ids_are_one_dimensional_uint32_below_the_vocabulary_size(tokenizer: Tokenizer) -> None:
    for text in ("", "the", TEXT):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.uint32
        assert ids.ndim == 1
        assert (ids < tokenizer.vocab_size).all()
    assert tokenizer.vocab_size == len(tokenizer.pieces)


def test_char_orders_its_vocabulary_by_code_point_and_knows_the_whole_text() -> None:
    tokenizer = train_tokenizer("char", train_text="ba", whole_text="ba😀é\n", vocab_size=None)
    assert tokenizer.pieces == [c.encode() for c in "\nabé😀"]
    assert tokenizer.encode("é😀\na").tolist() == [3, 4, 0, 1]
    assert tokenizer.end_of_text is None


def test_char_finds_places_across_the_slices_that_it_works_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizers, "SLICE_CHARACTERS", 7)
    assert CHAR.decode(CHAR.encode(TEXT)) == TEXT
    with pytest.raises(UnknownCharacters, match=r"'ж' \(U\+0436\) 1 time\(s\) at 20 "):
        CHAR.encode("e" * 20 + "ж" + "e" * 20)


def test_published_awkward_texts_come_back(test_data: Path) -> None:
    for name in ("unicode_mix", "looks_like_special_tokens", "crlf_bom_tab_nul"):
        text = (test_data / "awkward" / f"{name}.txt").read_bytes().decode()
        assert BPE.decode(BPE.encode(text)) == text
        assert BPE.end_of_text not in BPE.encode(text)
        assert trained("char", text).decode(trained("char", text).encode(text)) == text


# ---- what each id stands for --------------------------------------------------------------------


def test_bpe_begins_with_the_end_of_text_and_every_byte() -> None:
    assert BPE.end_of_text == 0
    assert BPE.pieces[0] == b""
    assert sorted(BPE.pieces[1:257]) == [bytes([byte]) for byte in range(256)]
    assert all(len(piece) > 1 for piece in BPE.pieces[257:])
    assert BPE.vocab_size == 320


def test_text_that_spells_the_special_token_is_text() -> None:
    text = f"a{END_OF_TEXT}b {END_OF_TEXT}"
    tokenizer = trained("bpe", text * 500, 400)
    for known in (tokenizer, tokenizer_from_state(tokenizer.state())):
        ids = known.encode(text)
        assert 0 not in ids
        assert known.decode(ids) == text
        [parsed] = known.encode_batch([text], special="parse")
        assert (parsed == 0).sum() == 2
        assert known.encode(text).tolist() == ids.tolist()  # one question leaves no trace


def test_special_ids_and_broken_characters_decode_without_failing() -> None:
    half = BPE.encode("é")[:1]
    assert BPE.decode([0, *half, 0]) == "\ufffd"


@both
@pytest.mark.parametrize("number", [-1, 10_000])
def test_an_id_outside_the_vocabulary_is_refused(tokenizer: Tokenizer, number: int) -> None:
    with pytest.raises(ValueError, match=f"id {number} "):
        tokenizer.decode([number])


# ---- byte-level pairs ---------------------------------------------------------------------------


def test_bpe_learns_only_from_the_training_part() -> None:
    one = train_tokenizer("bpe", train_text="abab " * 50, whole_text="xyzxyz", vocab_size=260)
    two = train_tokenizer("bpe", train_text="abab " * 50, whole_text="other", vocab_size=260)
    assert one.state() == two.state()
    assert b"ab" in one.pieces
    assert b"xy" not in one.pieces


def test_bpe_splits_words_as_gpt2_does_and_adds_no_blank_in_front() -> None:
    tokenizer = trained("bpe", "they'll they'll the the, the" * 50, 300)
    pieces = [tokenizer.pieces[number] for number in tokenizer.encode("they'll the")]
    assert pieces == [b"they", b"'ll", b" the"]


def test_bpe_learns_the_published_merges(test_data: Path) -> None:
    folder = test_data / "tokenizers" / "bpe-reference"
    text = (folder / "corpus.en").read_text(encoding="utf-8")
    published = (folder / "train-bpe-reference-merges.txt").read_text(encoding="utf-8").splitlines()
    learnt = trained("bpe", text, 500).state()["merges"]
    assert len(learnt) == len(published) == 243
    # Ties are broken otherwise there, which moves some merges but hardly changes which are learnt.
    assert len(set(learnt) & set(published)) > 230
    assert learnt[:20] == published[:20]


def test_a_text_too_small_for_the_vocabulary_gives_a_smaller_one() -> None:
    tokenizer = trained("bpe", "abc", 5000)
    assert 257 < tokenizer.vocab_size <= 260
    assert trained("bpe", "abc", 10**15).vocab_size == tokenizer.vocab_size
    assert trained("bpe", "", 5000).vocab_size == 257


def test_bpe_without_a_size_takes_its_default() -> None:
    text = " ".join(f"{number:x}{number * number:o}" for number in range(4000))
    assert trained("bpe", text).vocab_size == tokenizers.DEFAULT_BPE_VOCAB


def test_bpe_is_the_same_in_every_process() -> None:
    program = (
        "import sys, json; from llama_lab.data.tokenizers.kinds import train_tokenizer as t;"
        "text = sys.stdin.buffer.read().decode();"
        "sys.stdout.write(json.dumps(t('bpe', train_text=text, whole_text='', vocab_size=600)"
        ".state()))"
    )
    text = " ".join(f"{number:x}{number * 7919:x}" for number in range(3000)) + TEXT
    for threads, seed in (("1", "0"), ("4", "7")):
        environment = os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        result = subprocess.run(
            [sys.executable, "-c", program],
            input=text.encode(),
            capture_output=True,
            check=True,
            env=environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert json.loads(result.stdout) == trained("bpe", text, 600).state()


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from("ab1_é中's \n\r\t\x1c\x1f\x85\u2028\u3000.,")))
def test_encoding_in_pieces_equals_encoding_at_once(text: str) -> None:
    assert isinstance(BPE, BpeTokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizers, "CHUNK_CHARACTERS", 1)
        patch.setattr(tokenizers, "CHARACTERS_AT_ONCE", 2)
        in_pieces = BPE.encode(text)
    assert in_pieces.tolist() == BPE.backend.encode(text).ids


# ---- refusals -----------------------------------------------------------------------------------


def test_unknown_characters_are_named_with_their_places_and_numbers() -> None:
    tokenizer = trained("char", "abc ")
    with pytest.raises(UnknownCharacters) as caught:
        tokenizer.encode("é a\u2028é bé 😀 éé")
    message = str(caught.value)
    assert "3 distinct character(s), 7 in all" in message
    assert "'é' (U+00E9) 5 time(s) at 0, 4, 7, …; '\\u2028' (U+2028) 1 time(s) at 3;" in message
    assert "'😀' (U+1F600) 1 time(s) at 9" in message
    assert "vocabulary of 4" in message


def test_many_unknown_characters_still_make_one_short_line() -> None:
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 5000))) + "\n\r\x00"
    with pytest.raises(UnknownCharacters) as caught:
        trained("char", "a").encode(text)
    message = str(caught.value)
    assert "5003 distinct" in message
    assert "and 4995 more" in message
    assert len(message) < 700
    assert message.isprintable()


@both
def test_half_of_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"character 3 of the text is U\+D800"):
        tokenizer.encode("the\ud800")
    with pytest.raises(UserError, match=r"U\+DFFF"):
        trained(tokenizer.kind, "a\udfffb")


def test_a_vocabulary_size_for_char_is_refused_as_idle() -> None:
    with pytest.raises(UserError) as caught:
        trained("char", "abc", 500)
    assert str(caught.value) == (
        "--data.vocab_size 500 would do nothing: data.tokenizer char takes every character of the "
        "corpus; set --data.vocab_size null"
    )


@pytest.mark.parametrize("size", [256, 0, -5])
def test_bpe_needs_an_id_for_every_byte_and_the_end_of_text(size: int) -> None:
    with pytest.raises(UserError, match=f"--data.vocab_size {size} is below 257"):
        trained("bpe", "abc", size)
    assert trained("bpe", "abc", 257).vocab_size == 257


@pytest.mark.parametrize(
    "call", [lambda: trained("word"), lambda: tokenizer_from_state({"kind": "word"})]
)
def test_an_unknown_kind_is_refused_with_the_choices(call: Callable[[], Tokenizer]) -> None:
    with pytest.raises(UserError, match=r"--data.tokenizer word .*char, bpe"):
        call()


def test_the_table_and_the_choices_agree() -> None:
    assert set(TOKENIZERS) == set(get_args(TokenizerKind))
    assert all(kind == known.kind for kind, known in TOKENIZERS.items())
    assert TOKENIZERS["char"] is CharTokenizer


# ---- writing down -------------------------------------------------------------------------------


@both
def test_state_survives_json_and_a_weights_only_checkpoint(tokenizer: Tokenizer) -> None:
    file = io.BytesIO()
    torch.save(tokenizer.state(), file)
    file.seek(0)
    for state in (
        json.loads(json.dumps(tokenizer.state())),
        torch.load(file, weights_only=True),
    ):
        again = tokenizer_from_state(state)
        assert again.kind == tokenizer.kind
        assert again.pieces == tokenizer.pieces
        assert again.end_of_text == tokenizer.end_of_text
        assert again.state() == tokenizer.state()
        assert again.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()
