"""Cuts in a long text that leave the ids of its pieces equal to those of the whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from llama_lab.data.corpus.readers.records import Piece

BATCH_CHARACTERS, BATCH_DOCUMENTS = 1 << 22, 1 << 14
UNCUT_CHARACTERS = 1 << 19  # a longer text without a safe cut is looked at word by word

T = TypeVar("T")
CutText = tuple[str, bool, bool]
"""A text, and whether it begins and whether it ends a document."""

ANYWHERE = re.compile(r".", re.DOTALL)

# The pattern by which GPT-2 splits a text into words takes white space only in front of a word or
# alone, and looks ahead within it alone. It never joins a letter to a punctuation mark after it.
# The letters are named: what else is one depends on the version of Unicode.
BEHIND_WORD_OF_GPT2 = re.compile(r"\S(?=[ \n])|[A-Za-z\u4e00-\u9fa5](?=[,.;\u3001\u3002\uff0c])")

# LLaMA 3's and Qwen's patterns take line ends behind punctuation marks as well.
BEHIND_WORD_OF_LLAMA3 = re.compile(
    r"[^\W_](?= )|[A-Za-z0-9\u4e00-\u9fa5](?=\n)|[A-Za-z\u4e00-\u9fa5](?=[,.;\u3001\u3002\uff0c])"
)
PATTERNS_OF_LLAMA3 = tuple(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
    + digits
    + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in (r"\p{N}{1,3}", r"\p{N}")
)


def safe_cut_of(content: Mapping[str, Any]) -> re.Pattern[str] | None:
    """Where texts may be cut for a ``tokenizer.json``, by its normaliser and its split into words.

    Known are the byte-level ones of GPT-2, LLaMA 3 and Qwen, and their like.
    """
    if (content.get("normalizer") or {"type": "NFC"})["type"] != "NFC":
        return None
    outer = content.get("pre_tokenizer") or {}
    inner = outer.get("pretokenizers", [outer])
    kinds = [step.get("type") for step in inner]
    if kinds[-1:] != ["ByteLevel"] or inner[-1].get("add_prefix_space", True):
        return None
    before = [step for step in inner[:-1] if step.get("type") != "Digits"]
    if inner[-1].get("use_regex", True):
        found = None if before else BEHIND_WORD_OF_GPT2
    else:
        found = BEHIND_WORD_OF_LLAMA3 if list(map(_is_of_llama3, before)) == [True] else None
    # An added token is found before a text is split into words.
    added = content.get("added_tokens") or []
    if found and any(token.get("rstrip") or found.search(token["content"]) for token in added):
        return None
    return found


def _is_of_llama3(step: Mapping[str, Any]) -> bool:
    pattern = (step.get("pattern") or {}).get("Regex")
    how = (step.get("type"), step.get("behavior"), step.get("invert", False))
    return how == ("Split", "Isolated", False) and pattern in PATTERNS_OF_LLAMA3


def last_cut(text: str, safe_cut: re.Pattern[str]) -> int:
    """The last place where ``text`` may be cut; 0 where there is none."""
    # From the end on: a text of a million characters has such a place in its last words.
    for length in (1 << 10, 1 << 15, len(text)):
        places = [match.end() for match in safe_cut.finditer(text, max(0, len(text) - length))]
        if places:
            return places[-1]
    return 0


def cut_safely(
    pieces: Iterable[Piece],
    safe_cut: re.Pattern[str] | None,
    last_place: Callable[[str], int] = lambda text: 0,
) -> Iterator[CutText]:
    """Texts whose ids are those of the whole in a row, and whether each begins and ends a document.

    Args:
        pieces: Of documents, in order.
        safe_cut: See :class:`Tokenizer`; without one each document comes whole.
        last_place: :meth:`Tokenizer.last_place`, for a long text without a safe cut.
    """
    waiting: list[str] = []
    begins, asked_at = True, UNCUT_CHARACTERS
    for piece in pieces:
        cut = len(piece.text)
        if not piece.ends_document:
            cut = 0 if safe_cut is None else last_cut(piece.text, safe_cut)
        if not cut and not piece.ends_document:
            waiting.append(piece.text)
            if sum(map(len, waiting)) < asked_at:
                continue
            text = "".join(waiting)
            cut = last_place(text)
            # A text that nothing divides is asked about at every doubling, not at every piece.
            asked_at = UNCUT_CHARACTERS if cut else 2 * len(text)
            waiting = [text[cut:]]
            if cut:
                yield text[:cut], begins, False
                begins = False
            continue
        waiting.append(piece.text[:cut])
        yield "".join(waiting), begins, piece.ends_document
        waiting, begins, asked_at = [piece.text[cut:]], piece.ends_document, UNCUT_CHARACTERS


def characters_of(item: CutText) -> int:
    """The length of its text."""
    return len(item[0])


def in_batches(
    items: Iterable[T], characters_of: Callable[[T], int], most: int = BATCH_CHARACTERS
) -> Iterator[list[T]]:
    """So many texts at once that every core has work.

    Args:
        items: The texts, or what holds them.
        characters_of: How many characters one has.
        most: Characters with which a batch is full.
    """
    batch: list[T] = []
    characters = 0
    for item in items:
        batch.append(item)
        characters += characters_of(item)
        if characters >= most or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
