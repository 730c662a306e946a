"""A text may be cut where it is said to: the ids of the pieces are those of the whole."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import tokenizers as library
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from llama_lab.data.corpus.cutting import PATTERNS_OF_LLAMA3, cut_safely, last_cut
from llama_lab.data.corpus.readers.records import Piece
from llama_lab.data.tokenizers.imported import HuggingFaceTokenizer
from llama_lab.data.tokenizers.kinds import CharTokenizer, Tokenizer, train_tokenizer

TEXT = (
    "We'll go to the well, they said.\nthe well;\n\n  中文。中文\uff0cthe end!\r\n1234 99\n.\n" * 20
)


def like_llama3(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(library.Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])


def by_library(split: pre_tokenizers.PreTokenizer, *added: library.AddedToken) -> library.Tokenizer:
    """Byte-level pairs, trained so that whatever may be joined is."""
    backend = library.Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer, backend.decoder = split, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([TEXT], trainer)
    backend.add_tokens(list(added))
    return backend


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
SPLITS = {
    "gpt2": GPT2,
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
    "llama3": like_llama3(PATTERNS_OF_LLAMA3[0]),
    "qwen2": like_llama3(PATTERNS_OF_LLAMA3[1]),
}
BLANKS = library.AddedToken("   ", normalized=False)  # as GPT-NeoX has
CUT: dict[str, Tokenizer] = {
    "bpe": train_tokenizer("bpe", train_text=TEXT, whole_text=TEXT, vocab_size=600),
    **{name: HuggingFaceTokenizer(by_library(s, BLANKS).to_str()) for name, s in SPLITS.items()},
}

LETTERS = [*"ab1_é中文。\uff0c,.;!'s \n\r\t\x1c\x85\u2028\u3000\u0301\u200d", "   ", "'ll"]


@settings(max_examples=150, deadline=None)
@given(st.data())
@pytest.mark.parametrize("name", CUT)
def test_the_ids_on_both_sides_of_a_place_are_those_of_the_whole(
    name: str, data: st.DataObject
) -> None:
    tokenizer = CUT[name]
    text = data.draw(st.lists(st.sampled_from(LETTERS), max_size=40).map("".join))
    assert tokenizer.safe_cut is not None
    [whole] = tokenizer.encode_batch([text])
    for match in tokenizer.safe_cut.finditer(text):
        parts = tokenizer.encode_batch([text[: match.end()], text[match.end() :]])
        assert np.concatenate(parts).tolist() == whole.tolist()


@pytest.mark.parametrize("name", CUT)
def test_there_are_places_in_texts_of_many_kinds(name: str) -> None:
    pattern = CUT[name].safe_cut
    assert pattern is not None
    for text in ("of words " * 9, "线。线\uff0c" * 9, "слово " * 9, "line\n" * 9, "a,b,c," * 9):
        assert last_cut(text, pattern) >= len(text) - 6
    assert last_cut("\n" * 99, pattern) == 0


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("normalizer", {"type": "Lowercase"}),
        ("pre_tokenizer", None),
        ("pre_tokenizer", {"type": "Whitespace"}),
        ("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True}),
        ("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}),
    ],
)
def test_what_is_not_known_gets_its_documents_whole(part: str, change: Any) -> None:
    content = json.loads(by_library(GPT2).to_str())
    other = {"trim_offsets": True} | change if isinstance(change, dict) else change
    assert HuggingFaceTokenizer(json.dumps(content | {part: other})).safe_cut is None


def test_added_tokens_that_reach_over_a_place_forbid_it() -> None:
    for token in (library.AddedToken("new york"), library.AddedToken("<x>", rstrip=True)):
        assert HuggingFaceTokenizer(by_library(GPT2, token).to_str()).safe_cut is None


def test_documents_come_in_the_pieces_that_they_may_be_cut_into() -> None:
    halves = [("a word", False), ("s end. b", False), ("c", True), ("d e", True)]
    pieces = [Piece(text=text, ends_document=ends) for text, ends in halves]
    found = list(cut_safely(pieces, CUT["bpe"].safe_cut))
    begun = [("a", True, False), (" words end.", False, False)]
    assert found == [*begun, (" bc", False, True), ("d e", True, True)]
    assert list(cut_safely(pieces, None)) == [("a words end. bc", True, True), ("d e", True, True)]
    anywhere = cut_safely(pieces, CharTokenizer("ab").safe_cut)
    assert [text for text, _, _ in anywhere] == [text for text, _ in halves]
