"""Tokenizers that come with an imported model: a ``tokenizer.json``, llama2.c's, or plain ids."""

from __future__ import annotations

import heapq
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import tokenizers as hugging_face

from llama_lab.data.config import SpecialTokens
from llama_lab.data.corpus.cutting import in_batches, safe_cut_of
from llama_lab.data.tokenizers.base import (
    Tokenizer,
    UInt32Array,
    UnknownCharacters,
    refuse_surrogates,
)
from llama_lab.data.tokenizers.spelling import Speller, steps
from llama_lab.errors import Stopped, UserError

SHOWN_CHARACTERS = 20
CHARACTERS_AT_ONCE = 1 << 20  # a signal waits for the library's answer
# <pad>, [PAD], <|padding|>, <|finetune_right_pad_id|>
PADDING = re.compile(r"(?<![a-z])pad(ding)?(?![a-z])", re.IGNORECASE)
# Known tokenizers have a handful of steps, and put one character for another.
MOST_STEPS, MOST_GROWTH = 64, 1024


class ImportedTokenizer(Tokenizer):
    """A tokenizer that no corpus trains: it belongs to the weights that it came with."""

    @classmethod
    def resolve_vocab_size(cls, vocab_size: int | None) -> NoReturn:
        raise UserError(
            f"--data.tokenizer {cls.kind} is not trained: it comes with a checkpoint that "
            "`llama-lab import` wrote; give that with --ckpt_path or --model.init_from, or set "
            "--data.tokenizer char or bpe"
        )

    @classmethod
    def train(
        cls, *, texts: Iterable[str], n_bytes: int, characters: str, vocab_size: int | None
    ) -> NoReturn:
        cls.resolve_vocab_size(vocab_size)


class HuggingFaceTokenizer(ImportedTokenizer):
    """Any ``tokenizer.json`` whose decoder puts pieces together one by one.

    That is byte-level BPE (GPT-2, LLaMA 3, Qwen), what SentencePiece models become (LLaMA 1 and 2,
    Mistral, Gemma), and pieces that are the text itself. ``decode`` is the library's own. It shows
    the bytes of a broken character one by one, where the pieces show them together.

    Args:
        json_text: The file's content.
        end_of_text: Id that ends a text, as the model's config says.
        also_end: Further ids that end a generated text.
        n_ids: Ids that the model knows; ``None`` means all. Those above may only be special ones.

    Attributes:
        backend: The `tokenizers` object that does the work.

    Raises:
        UserError: The content is no ``tokenizer.json``, or its decoder is of another sort.
    """

    kind = "huggingface"
    parses_special = True

    def __init__(
        self,
        json_text: str,
        *,
        end_of_text: int | None = None,
        also_end: Sequence[int] = (),
        n_ids: int | None = None,
    ) -> None:
        self.json_text, self.end_of_text, self.n_ids = json_text, end_of_text, n_ids
        self.also_end = tuple(also_end)
        self.backend = library_tokenizer(json_text)
        content = json.loads(json_text)
        _require_bounded(content)
        self.backend.no_padding()
        self.backend.no_truncation()
        speller = Speller(content.get("decoder"))
        self.leads_with_space = speller.leads_with_space
        added = self.backend.get_added_tokens_decoder()
        special = {number for number, token in added.items() if token.special}
        names = {number: name for name, number in self.backend.get_vocab().items()}
        self.pieces = self._pieces(speller, names, special)
        known = sorted(number for number in special if number < len(self.pieces))
        self.special_names = {number: names[number] for number in known}
        self.never_sampled = tuple(
            number
            for number in range(len(self.pieces))
            if number not in self.ends
            and (number not in names or (number in special and PADDING.search(names[number])))
        )
        self.safe_cut = safe_cut_of(content)
        self.start_of_text = self._start()

    def _pieces(self, speller: Speller, names: dict[int, str], special: set[int]) -> list[bytes]:
        size = max(names, default=-1) + 1
        if self.n_ids is not None and size > self.n_ids:
            beyond = next((i for i in names if i >= self.n_ids and i not in special), None)
            if beyond is not None:
                raise UserError(
                    f"id {beyond} of the tokenizer ({names[beyond]!r}) is not below the model's "
                    f"vocab_size {self.n_ids}: the two belong to different models"
                )
            size = self.n_ids
        pieces = [b""] * size
        for number, name in names.items():
            if number < size and number not in special:
                pieces[number] = speller.spell(name)
        return pieces

    def _start(self) -> int | None:
        """The id that the tokenizer's own template puts in front of a text, if it does."""
        whole = self.backend.encode("a", add_special_tokens=True).ids
        bare = self.backend.encode("a", add_special_tokens=False).ids
        before = next(
            (k for k in range(len(whole) + 1) if whole[k : k + len(bare)] == bare), len(whole)
        )
        if before > 1:
            raise UserError(f"the tokenizer puts {before} ids in front of a text; one is the most")
        if before and whole[0] >= self.vocab_size:
            raise UserError(
                f"the tokenizer puts id {whole[0]} in front of a text, which has no row"
            )
        return whole[0] if before else None

    def encode(self, text: str) -> UInt32Array:
        """Ids of ``text``, one-dimensional.

        Raises:
            UserError: See :meth:`Tokenizer.encode`; a character that the tokenizer drops or
                changes is an unknown one. Two losses pass, for many tokenizers have them: Unicode
                normalisation, and one blank in front of the whole text.
        """
        refuse_surrogates(text)
        self.backend.encode_special_tokens = True
        try:
            encoding = self.backend.encode_batch_fast([text], add_special_tokens=False)[0]
        except Exception as error:  # the library raises nothing narrower
            raise UnknownCharacters(f"the model's tokenizer cannot encode this: {error}") from error
        ids = np.array(encoding.ids, dtype=np.uint32)
        self._require_lossless(text, self.backend.decode(ids.tolist(), skip_special_tokens=False))
        return ids

    def encode_batch(
        self, texts: Sequence[str], *, special: SpecialTokens = "text"
    ) -> list[UInt32Array]:
        """Ids of each text of a corpus. What they lose is told by :meth:`lost`, not refused."""
        self.backend.encode_special_tokens = special == "text"
        try:
            encodings = [
                encoding
                for some in in_batches(texts, len, CHARACTERS_AT_ONCE)
                for encoding in self.backend.encode_batch_fast(some, add_special_tokens=False)
            ]
        except Exception as error:  # the library raises nothing narrower
            raise UnknownCharacters(f"the tokenizer cannot encode this: {error}") from error
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]

    def lost(self, text: str, ids: UInt32Array) -> Counter[str]:
        back = self.backend.decode(ids.tolist(), skip_special_tokens=False)
        if back == text or (self.leads_with_space and back == text.removeprefix(" ")):
            return Counter()
        return Counter(text) - Counter(back)

    def _require_lossless(self, text: str, back: str) -> None:
        kept = [text, text.removeprefix(" ")] if self.leads_with_space else [text]
        if back in kept or any(
            back == unicodedata.normalize(form, t) for t in kept for form in ("NFC", "NFKC")
        ):
            return
        pairs = zip(text, back, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(text), len(back)))
        here = text[place : place + SHOWN_CHARACTERS]
        raise UnknownCharacters(
            f"the model's tokenizer does not keep the text from character {place} on ({here!r}, "
            "places count from 0): it drops or changes what it has no piece for; leave that out"
        )

    def decode(self, ids: Iterable[int]) -> str:
        return self.backend.decode(self.known(ids), skip_special_tokens=True)

    def state(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "json": self.json_text,
            "end_of_text": self.end_of_text,
            "n_ids": self.n_ids,
            **_further(self.also_end),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> HuggingFaceTokenizer:
        return cls(
            state["json"],
            end_of_text=state["end_of_text"],
            also_end=state.get("also_end", ()),
            n_ids=state["n_ids"],
        )


def _further(also_end: Sequence[int]) -> dict[str, Any]:
    """Further ends in a state. Where there are none the state is that of older versions, and so
    are the names of token stores, which hash it.
    """
    return {"also_end": list(also_end)} if also_end else {}


def library_tokenizer(json_text: str) -> hugging_face.Tokenizer:
    """The tokenizer that a ``tokenizer.json`` describes.

    Raises:
        UserError: It is broken.
    """
    try:
        return hugging_face.Tokenizer.from_str(json_text)
    except (Stopped, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library panics (no Exception) on some broken files
        reason = " ".join(str(error).split())
        raise UserError(f"not a tokenizer that this version reads ({reason})") from error


def _require_bounded(content: Mapping[str, Any]) -> None:
    """Refuse steps in which a character may become a text that takes all memory."""
    for key in ("normalizer", "decoder"):
        growth = 1
        for number, step in enumerate(steps(content.get(key)), 1):
            growth *= max(1, len(str(step.get("content") or step.get("prepend") or "")))
            if number > MOST_STEPS or growth > MOST_GROWTH:
                raise UserError(
                    f"its {key} may make {growth:,} characters of one in {number} steps; this "
                    f"version takes {MOST_GROWTH:,} and {MOST_STEPS} steps at most"
                )


class Llama2cTokenizer(ImportedTokenizer):
    """llama2.c's pairing: a blank in front, then the adjacent pair with the best score, again.

    Ids 0, 1 and 2 are unknown, begin and end; 3 … 258 are the bytes; pieces follow. A code point
    without a piece is written as its UTF-8 bytes. Source: llama2.c's ``run.c``, ``encode``.

    Args:
        names: The pieces from id 259 on.
        ranks: The place of each of them in the order of scores, 0 the best; equal ones share it.
    """

    kind = "llama2c"
    start_of_text, end_of_text = 1, 2
    leads_with_space = True
    FIRST_BYTE, FIRST_PIECE = 3, 259

    def __init__(self, names: list[str], ranks: list[int]) -> None:
        self.names, self.ranks = names, ranks
        self.pieces = [b""] * 3 + [bytes([b]) for b in range(256)] + [n.encode() for n in names]

    @cached_property
    def _id_of(self) -> dict[str, int]:
        ids: dict[str, int] = {}
        for number, name in enumerate(self.names, self.FIRST_PIECE):
            ids.setdefault(name, number)
        return ids

    def encode(self, text: str) -> UInt32Array:
        refuse_surrogates(text)
        ids: list[int | None] = []
        for character in f" {text}" if text else "":
            number = self._id_of.get(character)
            spelt = (
                [self.FIRST_BYTE + b for b in character.encode()] if number is None else [number]
            )
            ids += spelt
        return np.array([i for i in self._merged(ids) if i is not None], dtype=np.uint32)

    def _merged(self, ids: list[int | None]) -> list[int | None]:
        """``ids`` after every merge; ``None`` where an id went into the one before it."""
        before = list(range(-1, len(ids) - 1))
        after = list(range(1, len(ids) + 1))
        waiting: list[tuple[int, int, int, int, int]] = []

        def consider(left: int, right: int) -> None:
            if left < 0 or right >= len(ids):
                return
            a, b = ids[left], ids[right]
            assert a is not None
            assert b is not None
            if min(a, b) < self.FIRST_PIECE:
                return
            merged = self._id_of.get(
                self.names[a - self.FIRST_PIECE] + self.names[b - self.FIRST_PIECE]
            )
            if merged is not None:
                heapq.heappush(waiting, (self.ranks[merged - self.FIRST_PIECE], left, a, b, merged))

        for left in range(len(ids) - 1):
            consider(left, left + 1)
        while waiting:
            _, left, a, b, merged = heapq.heappop(waiting)
            right = after[left]
            if ids[left] != a or right >= len(ids) or ids[right] != b:
                continue  # one of the two has been merged meanwhile
            ids[left], ids[right] = merged, None
            after[left] = after[right]
            if after[right] < len(ids):
                before[after[right]] = left
            consider(before[left], left)
            consider(left, after[left])
        return ids

    def state(self) -> dict[str, Any]:
        return {"kind": self.kind, "names": self.names, "ranks": self.ranks}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Llama2cTokenizer:
        return cls(list(state["names"]), list(state["ranks"]))


class IdsTokenizer(ImportedTokenizer):
    """Ids as decimal numbers with white space between: for a model that came without a tokenizer.

    ``decode`` puts one blank between any two.
    """

    kind = "ids"
    leads_with_space = True

    def __init__(
        self, n_ids: int, end_of_text: int | None = None, also_end: Sequence[int] = ()
    ) -> None:
        self.end_of_text, self.also_end = end_of_text, tuple(also_end)
        self.pieces = [b" %d" % number for number in range(n_ids)]

    def encode(self, text: str) -> UInt32Array:
        """Ids of ``text``, such as ``1 15 39``.

        Raises:
            UnknownCharacters: A word is no number below the vocabulary size.
        """
        words = text.split()
        for place, word in enumerate(words):
            if not (word.isascii() and word.isdigit() and int(word[:12]) < self.vocab_size):
                raise UnknownCharacters(
                    f"word {place} is {word[:SHOWN_CHARACTERS]!r}: this model came without a "
                    "tokenizer, so its text is ids, numbers from 0 to "
                    f"{self.vocab_size - 1} with blanks between"
                )
        return np.array([int(word) for word in words], dtype=np.uint32)

    def state(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "n_ids": self.vocab_size,
            "end_of_text": self.end_of_text,
            **_further(self.also_end),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> IdsTokenizer:
        return cls(state["n_ids"], state["end_of_text"], state.get("also_end", ()))
