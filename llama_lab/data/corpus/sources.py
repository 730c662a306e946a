"""Sources of text: files, folders, globs, standard input, datasets and built-in corpora.

A record of a file of records is a document; so is each text file where there are several sources.
One text file by itself, or a built-in, is one running text. Files of a folder or a glob come in the
natural order of their paths: part by part, runs of digits compared as numbers, the rest by code
point, so that 9.txt stands before 10.txt on every machine. A file that is met under several paths
is read once, where it is met first.

Characters arrive as they stand in the file. A byte-order mark at the start is dropped; line ends,
NUL, U+2028 and everything else are kept, unless the settings say otherwise.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator

from llama_lab.data.corpus.built_in import BUILT_IN, shown
from llama_lab.data.corpus.finding import STANDARD_INPUT
from llama_lab.data.corpus.items import Item, Resolver
from llama_lab.data.corpus.readers.endings import PARQUET, RECORD_READERS, ending_of
from llama_lab.data.corpus.readers.hub import SCHEME, read_dataset
from llama_lab.data.corpus.readers.json_records import read_json_lines
from llama_lab.data.corpus.readers.parquet import read_parquet
from llama_lab.data.corpus.readers.records import Piece, Records, SourceRequest, Tally
from llama_lab.data.corpus.readers.streams import CHUNK_BYTES, Counted, codec_name, opened
from llama_lab.data.corpus.readers.text import read_text
from llama_lab.errors import UserError


def separated(pieces: Iterable[Piece], separator: str) -> Iterator[Piece]:
    """The pieces, with ``separator`` behind every document that does not end in it."""
    end = ""
    for piece in pieces:
        end = (end + piece.text)[-len(separator) :]
        if not piece.ends_document:
            yield piece
            continue
        yield piece if end == separator else Piece(piece.text + separator, True)
        end = ""


class Reading:
    """One pass over a source.

    Iterating gives the pieces, in order; what counts up meanwhile can be read at any time.

    Attributes:
        tally: What has been met.
        identity: Digest of every file's absolute path, size and time of change, and of the settings
            that change what is read; ``None`` where a source has none of these.
        total_bytes: Of the files, on disk; ``None`` where it is not known.
        bytes_read: Of these, so far.
        documents_are_records: Whether the source is made of documents; else it is one running text.

    Raises:
        UserError: A source is not there or is of a kind that cannot be read, or a setting is
            unusable or would do nothing.
    """

    def __init__(self, request: SourceRequest) -> None:
        self.request = request
        self.tally = Tally()
        self.bytes_read = 0
        if not request.sources:
            raise request.error("[]", "names no source; name a file, a folder or a built-in corpus")
        self.resolver = Resolver(request, self.tally)
        self.items = self.resolver.items()
        self.tally.piped = any(item.piped for item in self.items)
        kinds = [self._kind(item) for item in self.items]
        self.documents_are_records = len(self.items) > 1 or any(k != "text" for k in kinds)
        self._refuse_idle(kinds)
        codec_name(request)
        self.identity, self.total_bytes = self._identify()

    def __iter__(self) -> Iterator[Piece]:
        records = Records(self.request, self.tally)
        found = False
        pieces: Iterator[Piece] = (
            piece for item in self.items for piece in self._read(item, records)
        )
        separator = self.request.separating_text
        if separator is not None and self.documents_are_records:
            pieces = separated(pieces, separator)
        for piece in pieces:
            found = True
            yield piece
        if not found:
            left_out = "; ".join(self.tally.lines())
            raise self.request.error(
                ", ".join(shown(source) for source in self.request.sources),
                f"holds no text{f' ({left_out})' if left_out else ''}; name a source that does",
            )

    # ---- reading -----------------------------------------------------------------------------

    def _read(self, item: Item, records: Records) -> Iterator[Piece]:
        if item.path is not None:
            self.tally.files += 1
            if ending_of(item.path) == PARQUET:
                yield from read_parquet(item.path, item.name, records, self._count)
                return
            reader = RECORD_READERS.get(ending_of(item.path), read_text)
            with opened(item.path, self.request, self._count) as file:
                yield from reader(file, item.name, records)
        elif item.name.startswith(SCHEME):
            yield from read_dataset(item.name, records)
        elif item.name == STANDARD_INPUT:
            stdin = Counted(sys.stdin.buffer, self._count)
            reader = read_text if self.request.text_field is None else read_json_lines
            yield from reader(stdin, "standard input", records)  # type: ignore[arg-type]
        else:
            text = records.newlines(BUILT_IN[item.name](self.request.data_dir))
            self.tally.documents += 1
            for start in range(0, len(text), CHUNK_BYTES):
                end = start + CHUNK_BYTES
                yield Piece(text[start:end], end >= len(text))

    def _count(self, n: int) -> None:
        self.bytes_read += n

    # ---- what is refused ---------------------------------------------------------------------

    def _refuse_idle(self, kinds: list[str]) -> None:
        request = self.request
        idle = {
            "text_field": (request.text_field, all(kind == "text" for kind in kinds)),
            "delimiter": (request.delimiter, ".csv" not in kinds and ".tsv" not in kinds),
            "quoting": (
                None if request.quoting == "auto" else request.quoting,
                ".csv" not in kinds and ".tsv" not in kinds,
            ),
            "encoding": (
                request.encoding,
                all(kind in (PARQUET, SCHEME) for kind in kinds)
                or all(item.name in BUILT_IN for item in self.items),
            ),
        }
        for name, (value, would_do_nothing) in idle.items():
            if value is not None and would_do_nothing:
                what = "is built in" if self.items[0].name in BUILT_IN else "has no use for it"
                raise UserError(
                    f"{request.flag(name)} {shown(value)} would do nothing: "
                    f"{request.flag(request.setting).lstrip('-')} "
                    f"{', '.join(map(shown, request.sources))} {what}; "
                    f"set {request.flag(name)} {'auto' if name == 'quoting' else 'null'}"
                )
        if request.delimiter is not None and len(request.delimiter) != 1:
            raise UserError(
                f"{request.flag('delimiter')} {shown(request.delimiter)} is not one character; "
                "name one, such as ';'"
            )

    def _kind(self, item: Item) -> str:
        """``text``, or the ending of records."""
        if item.path is None:
            if item.name.startswith(SCHEME):
                return SCHEME
            is_records = item.name == STANDARD_INPUT and self.request.text_field is not None
            return ".jsonl" if is_records else "text"
        ending = ending_of(item.path)
        return ending if ending in RECORD_READERS or ending == PARQUET else "text"

    # ---- which it is -------------------------------------------------------------------------

    def _identify(self) -> tuple[str | None, int | None]:
        total: int | None = 0
        known: list[object] = [
            *(self.request.text_field, self.request.encoding, self.request.delimiter),
            self.request.quoting,
            *(self.request.normalize_newlines, self.request.on_bad_record),
        ]
        if self.documents_are_records and self.request.separator is not None:
            known.append(["separator", self.request.separating_text])
        if self.tally.skipped:  # they are told of with the store
            known.append([self.tally.skipped, self.tally.skipped_names])
        identified = True
        for item in self.items:
            if item.path is None or item.piped:
                total = None
                identified = identified and item.name in BUILT_IN
                known.append([item.name, sys.version])
                continue
            about = self.resolver.about(item)
            total = None if total is None else total + about.st_size
            known.append([os.path.realpath(item.path), about.st_size, about.st_mtime_ns])
        digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()
        return (digest if identified else None), total
