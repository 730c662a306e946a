"""Text that validation shares with training: a loss on what was read before says little.

What is counted: of all passages of :data:`PASSAGE` characters in the validation part, one beginning
at each character and none over the bounds of a document, how many stand somewhere in the training
part, word for word. Passages are compared by hashes of 64 bits; of a long validation part only one
passage in k is looked for, chosen by its hash, and k is said. Beside it, where there are documents:
how many of validation's are documents of training as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llama_lab.data.batches import mix64
from llama_lab.data.corpus.code_points import code_points
from llama_lab.data.corpus.cutting import CutText

PASSAGE = 50
MOST_PASSAGES = 1 << 24
TABLE_BITS = 26

Hashes = NDArray[np.uint64]

MULTIPLIER = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2**64
INVERSE = pow(MULTIPLIER, -1, 2**64)
BLOCK = 1 << 20


@dataclass(frozen=True)
class Overlap:
    """What two parts share.

    Attributes:
        passages: Validation's, that were looked for.
        shared: Of these, those that the training part holds too.
        one_in: Of how many passages one was looked for.
        documents: Validation's that are whole documents of training too; ``None`` where the text is
            a running one.
    """

    passages: int
    shared: int
    one_in: int
    documents: int | None

    @property
    def share(self) -> float:
        """Of the passages; 0 where there are none."""
        return self.shared / self.passages if self.passages else 0.0

    @property
    def words(self) -> str:
        """For people."""
        sample = f" (of one in {self.one_in} passages)" if self.one_in > 1 else ""
        whole = "" if self.documents is None else f"; {self.documents:,} whole document(s)"
        return (
            f"{self.share:.2%} of the validation part's passages of {PASSAGE} characters stand in "
            f"the training part as well{sample}{whole}"
        )


class Hashed(NamedTuple):
    """The hashes of a batch: of its passages, and of the documents that end in it."""

    passages: Hashes
    documents: Hashes


def overlap(
    train: Iterable[list[CutText]],
    validation: Iterable[list[CutText]],
    *,
    validation_characters: int,
    are_records: bool,
) -> Overlap:
    """What batches of texts share; see the module.

    Args:
        train: The training part's texts, in batches.
        validation: The validation part's.
        validation_characters: How many there are.
        are_records: Whether the parts are made of documents.
    """
    one_in = max(1, -(-validation_characters // MOST_PASSAGES))
    wanted = list(_hashes(validation, one_in))
    passages = np.sort(np.concatenate([np.empty(0, np.uint64), *(h.passages for h in wanted)]))
    documents = np.sort(np.concatenate([np.empty(0, np.uint64), *(h.documents for h in wanted)]))
    found = np.zeros(passages.size, dtype=np.bool_)
    whole = np.zeros(documents.size, dtype=np.bool_)
    # Most passages of training are not among them: a small table tells so before the search does.
    table = np.zeros(1 << TABLE_BITS, dtype=np.bool_)
    table[passages & np.uint64(table.size - 1)] = True
    for batch in _hashes(train, one_in):
        candidates = batch.passages[table[batch.passages & np.uint64(table.size - 1)]]
        _mark(found, passages, candidates)
        _mark(whole, documents, batch.documents)
    return Overlap(
        passages=passages.size,
        shared=int(found.sum()),
        one_in=one_in,
        documents=int(whole.sum()) if are_records else None,
    )


def _mark(found: NDArray[np.bool_], wanted: Hashes, hashes: Hashes) -> None:
    """Mark all of ``wanted``, ascending and maybe repeated, that are among ``hashes``."""
    hashes = np.unique(hashes)
    first = np.searchsorted(wanted, hashes, side="left")
    end = np.searchsorted(wanted, hashes, side="right")
    for begin, stop in zip(first[first < end].tolist(), end[first < end].tolist(), strict=True):
        found[begin:stop] = True


def _hashes(batches: Iterable[list[CutText]], one_in: int) -> Iterator[Hashed]:
    tail = np.empty(0, dtype=np.uint32)  # of the document that goes on in the next batch
    whole = np.uint64(0)  # its hash so far
    for batch in batches:
        texts = [text for text, _, _ in batch]
        points = np.concatenate([tail, code_points("".join(texts))])
        begins = np.cumsum([tail.size, *map(len, texts[:-1])])
        number = np.zeros(points.size, dtype=np.int32)
        new = [
            int(at) for at, (text, first, _) in zip(begins, batch, strict=True) if first and text
        ]
        number[new] = 1
        number = np.cumsum(number, dtype=np.int32)
        passages = passage_hashes(points)
        within = number[: passages.size] == number[points.size - passages.size :]
        passages = passages[within]
        if one_in > 1:
            passages = passages[passages % np.uint64(one_in) == 0]
        documents = []
        for text, first, last in batch:
            whole = np.uint64(hash((int(whole) if not first else 0, text)) & (2**64 - 1))
            if last:
                documents.append(whole)
        yield Hashed(passages, np.array(documents, dtype=np.uint64))
        ended = batch[-1][2]
        last_number = number[-1] if number.size else 0
        keep = points[number == last_number][-(PASSAGE - 1) :]
        tail = np.empty(0, dtype=np.uint32) if ended else keep


def passage_hashes(points: NDArray[np.uint32]) -> Hashes:
    """A hash of every run of :data:`PASSAGE` points, ``[n] -> [n - PASSAGE + 1]``.

    With S(i) the sum of point j times m^j over j < i, modulo 2**64, the run at i has the hash
    (S(i + PASSAGE) - S(i)) · m^-i: it does not depend on the place.
    """
    n = points.size - PASSAGE + 1
    if n <= 0:
        return np.empty(0, dtype=np.uint64)
    found = np.empty(n, dtype=np.uint64)
    for start in range(0, n, BLOCK):
        here = points[start : start + BLOCK + PASSAGE - 1].astype(np.uint64)
        powers, inverses = _powers(MULTIPLIER), _powers(INVERSE)
        sums = np.concatenate(([np.uint64(0)], np.cumsum(here * powers[: here.size])))
        size = here.size - PASSAGE + 1
        found[start : start + size] = mix64((sums[PASSAGE:] - sums[:-PASSAGE]) * inverses[:size])
    return found


_KNOWN: dict[int, Hashes] = {}


def _powers(base: int) -> Hashes:
    """base^i modulo 2**64 for the places of a block."""
    if base not in _KNOWN:
        size, values, factor = BLOCK + PASSAGE - 1, np.ones(1, dtype=np.uint64), base
        while values.size < size:  # the next as many are these times base^(how many there are)
            values = np.concatenate((values, values * np.uint64(factor)))
            factor = factor * factor % 2**64
        _KNOWN[base] = values[:size]
    return _KNOWN[base]
