"""A text file: one document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from llama_lab.data.corpus.readers.records import Piece, Records
from llama_lab.data.corpus.readers.streams import Decoding, decoded


def read_text(file: IO[bytes], name: str, records: Records) -> Iterator[Piece]:
    """The file's characters as they stand; nothing where there is none."""
    newlines = records.newline_decoder()
    waiting = ""
    for chunk in decoded(file, Decoding(name, records.request)):
        text = chunk if newlines is None else newlines.decode(chunk)
        if text and waiting:
            yield Piece(waiting, False)
        waiting = text or waiting
    if newlines is not None and (rest := newlines.decode("", final=True)):
        if waiting:
            yield Piece(waiting, False)
        waiting = rest
    if not waiting:
        records.tally.empty_documents += 1
        return
    records.tally.documents += 1
    yield Piece(waiting, True)
