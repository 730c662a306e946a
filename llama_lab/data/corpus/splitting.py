"""The split of a corpus into a training part and a validation part."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from llama_lab.data.corpus.readers.records import Piece
from llama_lab.data.corpus.spool import Spool


@dataclass(frozen=True)
class PartPlan:
    """One part: which documents of which spool, and which bytes."""

    spool: Spool
    documents: range
    span: range

    def pieces(self) -> Iterator[Piece]:
        """Its text."""
        return self.spool.part(self.documents, self.span)

    @property
    def are_records(self) -> bool:
        """Whether it is made of documents."""
        return self.spool.are_records


def split(spools: dict[str, Spool], fraction: Fraction | None) -> tuple[list[PartPlan], str]:
    """The training and the validation part, and how they were told apart, in words."""
    corpus = spools["corpus"]
    if fraction is None:
        plans = [PartPlan(s, range(s.documents), range(s.bytes)) for s in spools.values()]
        return plans, "a corpus of its own for validation"
    cut = math.floor((1 - fraction) * corpus.characters)
    if not corpus.are_records or (corpus.documents == 1 and fraction < 1):
        byte = corpus.byte_of_character(cut)
        whole = range(corpus.documents)
        plans = [PartPlan(corpus, whole, span) for span in (range(byte), range(byte, corpus.bytes))]
        left = corpus.characters - cut
        return plans, f"the last {left:,} of {corpus.characters:,} characters for validation"
    first, byte = _document_at(corpus, cut)
    if fraction < 1 and (first == 0 or first >= corpus.documents):
        first = min(max(first, 1), corpus.documents - 1)
        byte = _first_byte(corpus, first)
    n = corpus.documents
    plans = [
        PartPlan(corpus, range(first), range(byte)),
        PartPlan(corpus, range(first, n), range(byte, corpus.bytes)),
    ]
    return plans, f"the last {n - first:,} of {n:,} documents for validation"


def _document_at(spool: Spool, character: int) -> tuple[int, int]:
    """The first document that begins at ``character`` or later, and its first byte."""
    number = n_bytes = n_characters = 0
    for sizes in spool.sizes_of_documents():
        begins = n_characters + np.concatenate(([0], np.cumsum(sizes[:, 1])[:-1])).astype(np.int64)
        later = np.flatnonzero(begins >= character)
        if later.size:
            k = int(later[0])
            return number + k, n_bytes + int(sizes[:k, 0].sum())
        number += len(sizes)
        n_bytes += int(sizes[:, 0].sum())
        n_characters += int(sizes[:, 1].sum())
    return number, n_bytes


def _first_byte(spool: Spool, document: int) -> int:
    number = n_bytes = 0
    for sizes in spool.sizes_of_documents():
        here = sizes[: max(0, document - number), 0]
        n_bytes += int(here.sum())
        number += len(sizes)
    return n_bytes
