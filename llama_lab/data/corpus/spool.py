"""A source's text as UTF-8 on the disk, read once, and what is known of it afterwards.

The split and a char vocabulary need the whole text to be seen before any of it is encoded; a
source such as standard input can be read but once. The spool is a nameless temporary file: nothing
of it outlives the process. Small texts stay in memory.
"""

from __future__ import annotations

import codecs
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from llama_lab.data.corpus.code_points import CODE_POINTS, code_points
from llama_lab.data.corpus.readers.records import Piece

IN_MEMORY_BYTES = 1 << 26
CHUNK_BYTES = 1 << 20
DOCUMENTS_AT_ONCE = 1 << 16


class Spool:
    """The text of one source.

    Attributes:
        characters: In all.
        bytes: In all.
        documents: How many.
        seen: Whether each code point occurs ``[0x110000]``.
    """

    def __init__(self, folder: Path, *, are_records: bool) -> None:
        # The folder of the cache: it has room for the text, where the system's own may have none.
        existing = next(p for p in (folder, *folder.absolute().parents) if p.is_dir())

        def file() -> IO[bytes]:
            # Closed, and gone, with the spool.
            return cast(
                IO[bytes],
                tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES, dir=str(existing)),
            )

        self.are_records = are_records
        self.text, self.sizes = file(), file()
        self.characters = self.bytes = self.documents = 0
        self.seen: NDArray[np.bool_] = np.zeros(CODE_POINTS, dtype=np.bool_)
        self._hash = hashlib.sha256()
        self._sizes_hash = hashlib.sha256()
        self._document = (0, 0)

    def fill(self, pieces: Iterable[Piece], tell: Callable[[], None]) -> None:
        """Take all pieces in; ``tell`` is called after each."""
        for piece in pieces:
            data = piece.text.encode("utf-8")
            self.text.write(data)
            self._hash.update(data)
            self.seen[code_points(piece.text)] = True
            self.characters += len(piece.text)
            self.bytes += len(data)
            n_bytes, n_characters = self._document
            self._document = (n_bytes + len(data), n_characters + len(piece.text))
            if piece.ends_document:
                sizes = np.array(self._document, dtype="<u8").tobytes()
                self.sizes.write(sizes)
                self._sizes_hash.update(sizes)
                self.documents += 1
                self._document = (0, 0)
            tell()

    @property
    def sha256(self) -> str:
        """Of the text in UTF-8, and, where it is made of documents, of their sizes."""
        if not self.are_records:
            return self._hash.hexdigest()
        both = self._hash.hexdigest() + self._sizes_hash.hexdigest()
        return hashlib.sha256(both.encode()).hexdigest()

    @property
    def vocabulary(self) -> str:
        """Every character that occurs, once, in the order of code points."""
        return "".join(map(chr, np.flatnonzero(self.seen).tolist()))

    def sizes_of_documents(self) -> Iterator[NDArray[np.uint64]]:
        """Bytes and characters of every document in order, ``[n, 2]`` at a time."""
        self.sizes.seek(0)
        while data := self.sizes.read(DOCUMENTS_AT_ONCE * 16):
            yield np.frombuffer(data, dtype="<u8").reshape(-1, 2)

    def byte_of_character(self, character: int) -> int:
        """Where in the text a character begins, in bytes."""
        self.text.seek(0)
        left, at = character, 0
        while data := self.text.read(CHUNK_BYTES):
            # A byte begins a character unless it is 10xxxxxx.
            begins = (np.frombuffer(data, dtype=np.uint8) & 0xC0) != 0x80
            n = int(np.count_nonzero(begins))
            if n > left:
                return at + int(np.flatnonzero(begins)[left])
            left -= n
            at += len(data)
        return self.bytes

    def part(self, documents: range, span: range) -> Iterator[Piece]:
        """The pieces of some documents, whose bytes are ``span``.

        A running text is one document, of which ``span`` may be a part.
        """
        at, first, number = span.start, 0, 0
        for sizes in self.sizes_of_documents():
            for n_bytes in sizes[:, 0].tolist():
                end = min(first + n_bytes, span.stop)
                if number in documents and end > at:
                    yield from self._decode(range(at, end))
                    at = end
                first, number = first + n_bytes, number + 1
                if number >= documents.stop:
                    return

    def _decode(self, span: range) -> Iterator[Piece]:
        decoder: Any = codecs.getincrementaldecoder("utf-8")()
        self.text.seek(span.start)
        left = len(span)
        while left:
            data = self.text.read(min(left, CHUNK_BYTES))
            left -= len(data)
            yield Piece(decoder.decode(data, final=not left), not left)
