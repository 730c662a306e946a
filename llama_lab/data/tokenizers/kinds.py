"""Text to ids and back: single characters, or byte-level pairs of a trained vocabulary.

Every tokenizer is lossless on what it can encode: ``decode(encode(text)) == text``. Text that
spells a special token is text: ``encode`` never gives a special id, and ``encode_batch`` only where
it is asked to parse them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import tokenizers as hugging_face
from numpy.typing import NDArray
from tokenizers import decoders, models

from llama_lab.data.config import SpecialTokens
from llama_lab.data.corpus.code_points import CODE_POINTS, code_points
from llama_lab.data.corpus.cutting import ANYWHERE, BEHIND_WORD_OF_GPT2
from llama_lab.data.tokenizers.base import (
    Tokenizer,
    TokenizerKind,
    UInt32Array,
    UnknownCharacters,
    refuse_surrogates,
)
from llama_lab.data.tokenizers.imported import (
    HuggingFaceTokenizer,
    IdsTokenizer,
    Llama2cTokenizer,
)
from llama_lab.data.tokenizers.learning import END_OF_TEXT, learn_pairs
from llama_lab.data.tokenizers.long_words import last_place_between_words, split_of_words
from llama_lab.data.tokenizers.spelling import BYTE_OF_PRINTABLE
from llama_lab.errors import UserError

__all__ = [
    "END_OF_TEXT",
    "TOKENIZERS",
    "BpeTokenizer",
    "CharTokenizer",
    "Tokenizer",
    "TokenizerKind",
    "UnknownCharacters",
    "resolved_vocab_size",
    "tokenizer_class",
    "tokenizer_from_state",
    "train_tokenizer",
]

SMALLEST_BPE_VOCAB = 257  # one piece for each byte, and the end of text
DEFAULT_BPE_VOCAB = 1024

UNKNOWN = np.uint32(0xFFFFFFFF)
CHARACTERS_NAMED, PLACES_NAMED = 8, 3

CHUNK_CHARACTERS, CHARACTERS_AT_ONCE = 1 << 14, 1 << 20
SLICE_CHARACTERS = 1 << 20  # how much text `char` spreads out to four bytes a character at once


class CharTokenizer(Tokenizer):
    """One id for each character, in the order of code points. There is no special id."""

    kind = "char"
    end_of_text = None
    safe_cut = ANYWHERE

    def __init__(self, characters: str) -> None:
        refuse_surrogates(characters)
        self.characters = characters
        self.pieces = [character.encode("utf-8") for character in characters]
        self._id_of_point = np.full(CODE_POINTS, UNKNOWN, dtype=np.uint32)
        self._id_of_point[code_points(characters)] = np.arange(len(characters), dtype=np.uint32)

    def encode(self, text: str) -> UInt32Array:
        refuse_surrogates(text)
        ids = np.empty(len(text), dtype=np.uint32)
        for start in range(0, len(text), SLICE_CHARACTERS):
            end = start + SLICE_CHARACTERS
            ids[start:end] = self._id_of_point[code_points(text[start:end])]
        if (ids == UNKNOWN).any():
            self.refuse_unknown([text])
        return ids

    def knows(self, seen: NDArray[np.bool_]) -> bool:
        """Whether every code point that was seen ``[0x110000]`` is in the vocabulary."""
        return not (seen & (self._id_of_point == UNKNOWN)).any()

    def refuse_unknown(self, texts: Iterable[str]) -> None:
        """Raise :class:`UnknownCharacters` for those of a text in pieces, places over the whole."""
        points, places, before = [], [], 0
        for text in texts:
            here = code_points(text)
            unknown = np.flatnonzero(self._id_of_point[here] == UNKNOWN)
            points.append(here[unknown])
            places.append(unknown + before)
            before += len(text)
        found = np.concatenate(places) if places else np.empty(0, dtype=np.intp)
        if found.size:
            raise UnknownCharacters(_unknown_line(np.concatenate(points), found, self.vocab_size))

    def state(self) -> dict[str, Any]:
        return {"kind": self.kind, "characters": self.characters}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> CharTokenizer:
        return cls(state["characters"])

    @classmethod
    def resolve_vocab_size(cls, vocab_size: int | None) -> None:
        if vocab_size is not None:
            raise UserError(
                f"--data.vocab_size {vocab_size} would do nothing: data.tokenizer char takes every "
                "character of the corpus; set --data.vocab_size null"
            )

    @classmethod
    def train(
        cls, *, texts: Iterable[str], n_bytes: int, characters: str, vocab_size: int | None
    ) -> CharTokenizer:
        """The characters of the whole text, so that the validation part holds no unknown one."""
        return cls(characters)


class BpeTokenizer(Tokenizer):
    """Byte-level byte-pair encoding, split into words as GPT-2 does.

    Ids: 0 ends a text, 1 … 256 are the bytes in the order of GPT-2's printable spelling, then the
    merged pieces in the order learnt. Any text can be encoded. Sources: Sennrich, Haddow and Birch,
    2016 (pairs); Radford et al., 2019 (bytes and the split into words).

    Args:
        vocabulary: Spelling of each id, bytes written as GPT-2's printable characters.
        merges: Pairs of spellings, divided by a blank, the first learnt first.
        longest_word: Characters behind which a longer word is cut; ``None``, where the training
            text had no longer word, cuts none.

    Attributes:
        backend: The `tokenizers` object that does the work and that an export writes out.
    """

    kind = "bpe"
    end_of_text = 0
    safe_cut = BEHIND_WORD_OF_GPT2
    parses_special = True

    def __init__(
        self, vocabulary: list[str], merges: list[str], longest_word: int | None = None
    ) -> None:
        self.vocabulary = vocabulary
        self.merges = merges
        self.longest_word = longest_word
        pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
        ids = {spelling: number for number, spelling in enumerate(vocabulary)}
        self.backend = _byte_level(models.BPE(vocab=ids, merges=pairs), longest_word)
        self.backend.add_special_tokens([END_OF_TEXT])
        self.special_names = {0: END_OF_TEXT}
        byte_of = BYTE_OF_PRINTABLE
        self.pieces = [b"", *(bytes(byte_of[c] for c in piece) for piece in vocabulary[1:])]

    def encode(self, text: str) -> UInt32Array:
        refuse_surrogates(text)
        return self.encode_batch([text])[0]

    def encode_batch(
        self, texts: Sequence[str], *, special: SpecialTokens = "text"
    ) -> list[UInt32Array]:
        self.backend.encode_special_tokens = special == "text"  # the library's name for "as text"
        ids: list[list[UInt32Array]] = [[] for _ in texts]
        for batch in _batches((number, c) for number, t in enumerate(texts) for c in _chunks(t)):
            chunks = [chunk for _, chunk in batch]
            encodings = self.backend.encode_batch_fast(chunks, add_special_tokens=False)
            for (number, _), encoding in zip(batch, encodings, strict=True):
                ids[number].append(np.array(encoding.ids, dtype=np.uint32))
        return [np.concatenate(of) if of else np.empty(0, dtype=np.uint32) for of in ids]

    def last_place(self, text: str) -> int:
        return last_place_between_words(text, self.longest_word)

    def state(self) -> dict[str, Any]:
        state = {"kind": self.kind, "vocabulary": self.vocabulary, "merges": self.merges}
        # Absent where no word is cut: such a tokenizer keeps the digest that it always had.
        return state if self.longest_word is None else {**state, "longest_word": self.longest_word}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> BpeTokenizer:
        return cls(list(state["vocabulary"]), list(state["merges"]), state.get("longest_word"))

    @classmethod
    def resolve_vocab_size(cls, vocab_size: int | None) -> int:
        if vocab_size is None:
            return DEFAULT_BPE_VOCAB
        if vocab_size < SMALLEST_BPE_VOCAB:
            raise UserError(
                f"--data.vocab_size {vocab_size} is below {SMALLEST_BPE_VOCAB}: data.tokenizer bpe "
                "needs an id for each of the 256 bytes and one for the end of text; "
                f"set --data.vocab_size {SMALLEST_BPE_VOCAB} or more"
            )
        return vocab_size

    @classmethod
    def train(
        cls, *, texts: Iterable[str], n_bytes: int, characters: str, vocab_size: int | None
    ) -> BpeTokenizer:
        """Merges learnt on the training part; fewer than asked for where it runs out of pairs."""
        # The trainer allocates for the size asked for; a text has no more pairs than bytes.
        reachable = SMALLEST_BPE_VOCAB + n_bytes
        wanted = min(vocab_size or DEFAULT_BPE_VOCAB, reachable)
        chunks = (chunk for text in texts for chunk in _chunks(text))
        return cls(*learn_pairs(chunks, n_bytes, wanted))


TOKENIZERS: dict[TokenizerKind, type[Tokenizer]] = {
    "char": CharTokenizer,
    "bpe": BpeTokenizer,
    "huggingface": HuggingFaceTokenizer,
    "llama2c": Llama2cTokenizer,
    "ids": IdsTokenizer,
}


def tokenizer_from_state(state: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer whose :meth:`Tokenizer.state` is ``state``."""
    return tokenizer_class(state["kind"]).from_state(state)


def resolved_vocab_size(kind: str, vocab_size: int | None) -> int | None:
    """The vocabulary size that a tokenizer of this kind is trained for, ``None`` for char.

    Raises:
        UserError: The kind is unknown, or the size is impossible or would do nothing.
    """
    return tokenizer_class(kind).resolve_vocab_size(vocab_size)


def train_tokenizer(
    kind: str, *, train_text: str, whole_text: str, vocab_size: int | None
) -> Tokenizer:
    """A tokenizer for a corpus that is held as one text.

    Args:
        kind: ``char`` (vocabulary of the whole text) or ``bpe`` (merges of the training part).
        train_text: The training part.
        whole_text: The whole corpus.
        vocab_size: Ids to aim for, bpe only; ``None`` means 1,024. A text too small for them gives
            fewer.

    Raises:
        UserError: The kind is unknown, the size is impossible or would do nothing, or the text
            holds half of a surrogate pair.
    """
    refuse_surrogates(train_text)
    return tokenizer_class(kind).train(
        texts=[train_text],
        n_bytes=len(train_text.encode("utf-8")),
        characters="".join(sorted(set(whole_text))),
        vocab_size=resolved_vocab_size(kind, vocab_size),
    )


def tokenizer_class(kind: str) -> type[Tokenizer]:
    """The class of a kind.

    Raises:
        UserError: There is none.
    """
    for known, tokenizer in TOKENIZERS.items():
        if kind == known:
            return tokenizer
    raise UserError(
        f"--data.tokenizer {kind} is unknown; choose one of {', '.join(get_args(TokenizerKind))}"
    )


def _unknown_line(points: UInt32Array, places: NDArray[np.intp], vocab_size: int) -> str:
    """Names the unknown characters that stand at ``places``, in the order of their first ones."""
    values, firsts, counts = np.unique(points, return_index=True, return_counts=True)
    order = np.argsort(firsts)
    named: list[str] = []
    for number in order[:CHARACTERS_NAMED]:
        value, count = values[number], counts[number]
        where = ", ".join(str(place) for place in places[points == value][:PLACES_NAMED])
        more = ", …" if count > PLACES_NAMED else ""
        named.append(f"{chr(value)!r} (U+{value:04X}) {count} time(s) at {where}{more}")
    rest = f"; and {len(values) - len(named)} more" if len(values) > len(named) else ""
    return (
        f"{len(values)} distinct character(s), {places.size} in all, are not in the vocabulary of "
        f"{vocab_size} characters: {'; '.join(named)}{rest} (places count from 0); "
        "leave them out or train with --data.tokenizer bpe"
    )


def _byte_level(model: models.BPE, longest_word: int | None) -> hugging_face.Tokenizer:
    tokenizer = hugging_face.Tokenizer(model)
    tokenizer.pre_tokenizer = split_of_words(longest_word)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _chunks(text: str) -> Iterator[str]:
    """``text`` in pieces that are encoded as they would be within it."""
    start = 0
    while start < len(text):
        cut = BEHIND_WORD_OF_GPT2.search(text, start + CHUNK_CHARACTERS)
        end = cut.end() if cut else len(text)
        yield text[start:end]
        start = end


def _batches(chunks: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """So many at once that every core has work, by characters: documents may be short.

    A signal waits for the library's answer, so that there must not be too many either.
    """
    batch: list[tuple[int, str]] = []
    characters = 0
    for number, chunk in chunks:
        batch.append((number, chunk))
        characters += len(chunk)
        if characters >= CHARACTERS_AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
