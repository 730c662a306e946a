"""The text that a BPE vocabulary is learned from: all of it, or an even part of a large one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

# A trainer holds every distinct word with its pairs, about 60 bytes for each of the word's own.
MOST_BYTES, MOST_DISTINCT_BYTES = 1 << 28, 8_000_000
WORD = re.compile(r"\w+|[^\w\s]+")


def even_part(pieces: Callable[[], Iterable[str]], n_bytes: int) -> Iterator[str]:
    """Every ``k``-th piece, with the least ``k`` for which a trainer's memory stays bounded.

    Args:
        pieces: The text in pieces, anew at each call.
        n_bytes: Of the whole text, in UTF-8.
    """
    stride = max(1, -(-n_bytes // MOST_BYTES))
    if n_bytes > MOST_DISTINCT_BYTES:
        stride = -int(-stride // _share_within(_every(pieces(), stride), n_bytes // stride))
    yield from _every(pieces(), stride)


def _every(pieces: Iterable[str], stride: int) -> Iterator[str]:
    return (piece for number, piece in enumerate(pieces) if number % stride == 0)


def _share_within(pieces: Iterable[str], n_bytes: int) -> float:
    """The share of a text, from its beginning, that has so many bytes of distinct words."""
    words: set[str] = set()
    distinct = read = 0
    for piece in pieces:
        new = set(WORD.findall(piece)) - words
        words |= new
        distinct += sum(len(word.encode("utf-8")) for word in new)
        if distinct > MOST_DISTINCT_BYTES:
            return max(read, 1) / n_bytes
        read += len(piece.encode("utf-8"))
    return 1.0
