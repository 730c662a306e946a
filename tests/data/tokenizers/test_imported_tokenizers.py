"""Tokenizers that come with a model: the library's own ids and text, in every form of pieces."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers as library
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from llama_lab.data.tokenizers.imported import (
    HuggingFaceTokenizer,
    IdsTokenizer,
    Llama2cTokenizer,
)
from llama_lab.data.tokenizers.kinds import Tokenizer, UnknownCharacters, tokenizer_from_state
from llama_lab.errors import UserError
from llama_lab.generation.prompts import prompt_ids
from llama_lab.generation.text_stream import TextStream

TEXT = "the cat sat on the mat, the  café 日本 😀\n" * 20
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def byte_level() -> library.Tokenizer:
    backend = library.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([TEXT], trainer)
    backend.add_tokens(["   "])  # as GPT-NeoX has: a piece that is no special one
    return backend


def sentence_piece(metaspace: bool = False) -> library.Tokenizer:
    """As SentencePiece models become: ▁ for a blank, bytes for what has no piece."""
    special = ["<unk>", "<s>", "</s>"]
    names = [*special, *(f"<0x{b:02X}>" for b in range(256)), *"▁theca", "▁t", "th", "▁th"]
    merges = [("▁", "t"), ("t", "h"), ("▁t", "h")]
    ids = {name: number for number, name in enumerate(names)}
    backend = library.Tokenizer(
        models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.add_special_tokens(special)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    if metaspace:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        steps = [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first", split=False)]
        backend.decoder = decoders.Sequence(steps)
        return backend
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return backend


BACKENDS = {
    "byte level": byte_level(),
    "sentence piece": sentence_piece(),
    "metaspace": sentence_piece(metaspace=True),
}
TOKENIZERS = {
    name: HuggingFaceTokenizer(backend.to_str(), end_of_text=2 if "<s>" in backend.to_str() else 0)
    for name, backend in BACKENDS.items()
}
every_form = pytest.mark.parametrize("name", BACKENDS)


def fed(tokenizer: Tokenizer, ids: list[int]) -> str:
    stream = TextStream(tokenizer)
    return "".join([*map(stream.push, ids), stream.finish()])


@every_form
@given(text=any_text)
@settings(max_examples=50, deadline=None)
def test_ids_and_text_are_the_librarys_own(name: str, text: str) -> None:
    tokenizer, backend = TOKENIZERS[name], BACKENDS[name]
    if "▁" in text or (name == "metaspace" and text.startswith(" ")):
        return
    ids = tokenizer.encode(text).tolist()
    assert tokenizer.decode(ids) == text == fed(tokenizer, ids)
    if not any(special in text for special in ("<|end|>", "<unk>", "<s>", "</s>")):
        assert ids == backend.encode(text, add_special_tokens=False).ids
        assert backend.decode(ids) == text


def test_metaspace_loses_one_blank_in_front_as_the_library_does() -> None:
    tokenizer, backend = TOKENIZERS["metaspace"], BACKENDS["metaspace"]
    ids = tokenizer.encode("  the").tolist()
    assert ids == backend.encode("  the", add_special_tokens=False).ids
    assert tokenizer.decode(ids) == " the" == backend.decode(ids)


@pytest.mark.parametrize("name", ["byte level", "sentence piece"])
@pytest.mark.parametrize("text", ["", " ", "  the", "the cat <s> </s> <|end|> <unk>", "é   é\n"])
def test_blanks_and_special_words_are_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text).tolist()
    assert tokenizer.decode(ids) == text
    assert not {i for i in ids if tokenizer.pieces[i] == b""}


@every_form
def test_any_ids_decode_as_the_library_decodes_them(name: str) -> None:
    tokenizer, backend = TOKENIZERS[name], BACKENDS[name]
    for first in range(tokenizer.vocab_size - 3):
        ids = [first, (first * 7) % tokenizer.vocab_size, first + 1]
        assert tokenizer.decode(ids) == backend.decode(ids, skip_special_tokens=True)


def test_a_piece_that_is_no_special_one_is_its_text() -> None:
    tokenizer = TOKENIZERS["byte level"]
    number = tokenizer.backend.token_to_id("   ")
    assert tokenizer.pieces[number] == b"   "
    assert number in tokenizer.encode("a   b")


def test_the_start_of_a_text_comes_from_the_template_and_before_a_prompt() -> None:
    assert TOKENIZERS["byte level"].start_of_text is None
    tokenizer = TOKENIZERS["sentence piece"]
    assert tokenizer.start_of_text == 1
    assert prompt_ids(tokenizer, None) == ([1], "")
    assert prompt_ids(tokenizer, "the") == ([1, *tokenizer.encode("the").tolist()], "the")


def test_a_blank_in_front_is_dropped_at_the_start_of_a_text_alone() -> None:
    tokenizer = TOKENIZERS["sentence piece"]
    ids = tokenizer.encode("the the").tolist()
    assert fed(tokenizer, ids) == "the the"
    stream = TextStream(tokenizer, at_start=False)
    assert "".join(map(stream.push, ids)) == " the the"


@every_form
def test_state_survives_json(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    again = tokenizer_from_state(json.loads(json.dumps(tokenizer.state())))
    assert isinstance(again, HuggingFaceTokenizer)
    assert again.state() == tokenizer.state()
    assert again.pieces == tokenizer.pieces
    assert again.end_of_text == tokenizer.end_of_text


def test_text_that_would_not_survive_is_refused_with_its_place(test_data: Path) -> None:
    lossy = test_data / "tokenizers" / "torchtitan-test" / "tokenizer.json"
    tokenizer = HuggingFaceTokenizer(lossy.read_text(encoding="utf-8"))
    with pytest.raises(UnknownCharacters, match="from character 5 on"):
        tokenizer.encode("Hello world")


def test_unicode_normalisation_is_no_loss(test_data: Path) -> None:
    neox = test_data / "tokenizers" / "gpt-neox-20b" / "tokenizer.json"
    tokenizer = HuggingFaceTokenizer(neox.read_text(encoding="utf-8"))
    composed = "café    日本\n"
    decomposed = "cafe\u0301    日本\n"
    assert tokenizer.encode(composed).tolist() == tokenizer.encode(decomposed).tolist()
    assert tokenizer.decode(tokenizer.encode(decomposed)) == composed


def test_padding_and_ids_without_a_piece_are_never_to_be_sampled(test_data: Path) -> None:
    assert TOKENIZERS["byte level"].never_sampled == ()
    backend = byte_level()
    for name in ("<|padding|>", "[PAD]", "<|finetune_right_pad_id|>"):
        backend.add_special_tokens([name])
    backend.add_tokens(["padding"])  # a word
    backend.add_special_tokens(["<|keypad|>"])
    size = backend.get_vocab_size()
    assert HuggingFaceTokenizer(backend.to_str()).never_sampled == tuple(range(size - 5, size - 2))
    content = json.loads(sentence_piece().to_str())
    size = len(content["model"]["vocab"])
    content["model"]["vocab"]["far"] = size + 3
    holes = HuggingFaceTokenizer(json.dumps(content)).never_sampled
    assert holes == tuple(range(size, size + 3))
    neox = test_data / "tokenizers" / "gpt-neox-20b" / "tokenizer.json"
    assert HuggingFaceTokenizer(neox.read_text(encoding="utf-8")).never_sampled == (1,)


def test_special_ids_above_the_models_are_left_out_and_others_refused() -> None:
    backend = byte_level()
    n_ids = backend.get_vocab_size()
    backend.add_special_tokens(["<image>"])
    assert HuggingFaceTokenizer(backend.to_str(), n_ids=n_ids).vocab_size == n_ids
    with pytest.raises(UserError, match="vocab_size 100: the two belong to different models"):
        HuggingFaceTokenizer(backend.to_str(), n_ids=100)


# ---- llama2.c ------------------------------------------------------------------------------------

NAMES = [" ", "a", "b", "ab", " a", "\n", "aba", "ba", " ab", "é"]
LLAMA2C = Llama2cTokenizer(NAMES, list(range(len(NAMES))))


def slow_encode(text: str) -> list[int]:
    """The rule as it is told: the adjacent pair with the best score, the first of equal ones."""
    ids: list[int] = []
    for character in f" {text}" if text else "":
        known = [259 + NAMES.index(character)] if character in NAMES else None
        ids += known or [3 + byte for byte in character.encode()]
    while True:
        found = [
            (LLAMA2C.ranks[NAMES.index(joined)], place, 259 + NAMES.index(joined))
            for place in range(len(ids) - 1)
            if min(ids[place : place + 2]) >= 259
            and (joined := NAMES[ids[place] - 259] + NAMES[ids[place + 1] - 259]) in NAMES
        ]
        if not found:
            return ids
        _, place, merged = min(found)
        ids[place : place + 2] = [merged]


@given(text=st.text("ab é\nx日", max_size=30))
@settings(deadline=None)
def test_llama2c_merges_the_best_pair_first(text: str) -> None:
    ids = LLAMA2C.encode(text).tolist()
    assert ids == slow_encode(text)
    assert LLAMA2C.decode(ids) == text == fed(LLAMA2C, ids)


def test_llama2c_encodes_a_long_text_in_linear_time() -> None:
    text = "abab é" * 20_000
    assert LLAMA2C.decode(LLAMA2C.encode(text)) == text


# ---- ids -----------------------------------------------------------------------------------------


def test_ids_are_numbers_with_blanks_between() -> None:
    tokenizer = IdsTokenizer(20, end_of_text=2)
    assert tokenizer.encode(" 1 15\n3\t").tolist() == [1, 15, 3]
    assert tokenizer.decode([1, 15, 3]) == "1 15 3" == fed(tokenizer, [1, 15, 3])
    again = tokenizer_from_state(tokenizer.state())
    assert (again.vocab_size, again.end_of_text) == (20, 2)


@pytest.mark.parametrize("word", ["20", "-1", "x", "1.5", "٣", "9" * 5000])
def test_a_word_that_is_no_id_is_named(word: str) -> None:
    with pytest.raises(UnknownCharacters, match=r"word 1 is .*numbers from 0 to 19"):
        IdsTokenizer(20).encode(f"3 {word}")


@pytest.mark.parametrize("kind", ["huggingface", "llama2c", "ids"])
def test_what_comes_with_a_model_is_not_trained(kind: str, trained: Callable[[str], None]) -> None:
    with pytest.raises(UserError, match=f"--data.tokenizer {kind} is not trained: .*import"):
        trained(kind)


@pytest.fixture
def trained() -> Callable[[str], None]:
    from llama_lab.data.tokenizers.kinds import train_tokenizer

    def train(kind: str) -> None:
        train_tokenizer(kind, train_text="a", whole_text="a", vocab_size=None)

    return train
