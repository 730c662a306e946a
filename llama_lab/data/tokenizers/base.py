"""The base class of tokenizers: ids for a text, and the text again."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from llama_lab.data.config import SpecialTokens
from llama_lab.errors import UserError

TokenizerKind = Literal["char", "bpe", "huggingface", "llama2c", "ids"]
UInt32Array = NDArray[np.uint32]


class UnknownCharacters(UserError):
    """Text holds characters that the vocabulary lacks: which, where and how many."""


class Tokenizer(ABC):
    """Text to ids and back.

    Attributes:
        kind: The name in :data:`TOKENIZERS`.
        pieces: UTF-8 bytes that each id stands for, maybe a part of a character; ``b""`` for a
            special id.
        end_of_text: Id that ends a document, or ``None`` where there is none.
        also_end: Further ids that end a generated text; a corpus's documents get none of them.
        start_of_text: Id that a model wants to see in front of every text that it continues, or
            ``None``. ``encode`` leaves it out.
        leads_with_space: Whether ``encode`` puts a blank in front of a text, which ``decode`` takes
            away again; it is in the pieces.
        never_sampled: Ids that stand for no text and end none: padding, numbers without a piece.
        safe_cut: At the end of a match a text may be cut in two: their ids, in a row, are those of
            the whole. ``None`` where no such place is known.
        special_names: How each special id is spelt, where a text can spell one.
        parses_special: Whether ``encode_batch`` can read the spelling of a special token as its id.
    """

    kind: ClassVar[TokenizerKind]
    pieces: list[bytes]
    end_of_text: int | None
    also_end: tuple[int, ...] = ()
    start_of_text: int | None = None
    leads_with_space: bool = False
    never_sampled: tuple[int, ...] = ()
    safe_cut: re.Pattern[str] | None = None
    special_names: Mapping[int, str] = MappingProxyType({})
    parses_special: ClassVar[bool] = False

    @property
    def vocab_size(self) -> int:
        """Number of ids, the special ones included."""
        return len(self.pieces)

    @property
    def ends(self) -> tuple[int, ...]:
        """Every id that ends a generated text, maybe none."""
        return self.also_end if self.end_of_text is None else (self.end_of_text, *self.also_end)

    @abstractmethod
    def encode(self, text: str) -> UInt32Array:
        """Ids of ``text``, one-dimensional.

        Raises:
            UserError: ``text`` holds half of a surrogate pair, or an unknown character
                (:class:`UnknownCharacters`).
        """

    def encode_batch(
        self, texts: Sequence[str], *, special: SpecialTokens = "text"
    ) -> list[UInt32Array]:
        """Ids of each text.

        Args:
            texts: One or more.
            special: What the spelling of a special token is: ``text``, or the token (``parse``),
                where :attr:`parses_special`.
        """
        return [self.encode(text) for text in texts]

    def last_place(self, text: str) -> int:
        """The last place where a text that has no match of :attr:`safe_cut` may be cut all the
        same; 0 where none is known. The text begins a document, or begins where one was cut."""
        return 0

    def lost(self, text: str, ids: UInt32Array) -> Counter[str]:
        """What of ``text`` its ids do not bring back, a character at a time."""
        return Counter()

    def decode(self, ids: Iterable[int]) -> str:
        """The text that ``ids`` spell; bytes that form no character come out as U+FFFD.

        Raises:
            ValueError: An id is not in the vocabulary.
        """
        spelt = b"".join(self.pieces[number] for number in self.known(ids))
        if self.leads_with_space:
            spelt = spelt.removeprefix(b" ")
        return spelt.decode("utf-8", errors="replace")

    def known(self, ids: Iterable[int]) -> list[int]:
        """``ids`` as integers.

        Raises:
            ValueError: An id is not in the vocabulary.
        """
        numbers = [int(number) for number in ids]
        for number in numbers:
            if not 0 <= number < self.vocab_size:
                raise ValueError(f"id {number} is not below the vocabulary size {self.vocab_size}")
        return numbers

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """All that :func:`tokenizer_from_state` needs, in strings, integers and lists only."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: Mapping[str, Any]) -> Tokenizer:
        """The inverse of :meth:`state`."""

    @classmethod
    @abstractmethod
    def resolve_vocab_size(cls, vocab_size: int | None) -> int | None:
        """The vocabulary size to train for, with this kind's default put in for ``None``.

        Raises:
            UserError: The size is impossible or would do nothing.
        """

    @classmethod
    @abstractmethod
    def train(
        cls, *, texts: Iterable[str], n_bytes: int, characters: str, vocab_size: int | None
    ) -> Tokenizer:
        """A tokenizer for a corpus.

        Args:
            texts: The training part, in pieces that are encoded as they would be within it.
            n_bytes: Of the training part, in UTF-8.
            characters: Every character of the whole corpus, once, in the order of code points.
            vocab_size: A resolved one.
        """


def refuse_surrogates(text: str) -> None:
    """Raise :class:`UserError` where ``text`` holds half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"character {error.start} of the text is U+{ord(text[error.start]):04X}, half of a "
            "surrogate pair, which UTF-8 cannot hold; take it out"
        ) from error
