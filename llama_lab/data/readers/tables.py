"""Tables of text: a header, then a record a row; fields may hold line ends between quotes."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from typing import IO

from llama_lab.data.corpora import shown
from llama_lab.data.readers.records import Piece, Records
from llama_lab.data.readers.streams import Decoding, decoded

DELIMITERS = (",", ";", "\t")


def read_csv(file: IO[bytes], name: str, records: Records) -> Iterator[Piece]:
    """The delimiter is the one of ``, ; tab`` under which the header has the text's field."""
    return _read(file, name, records, records.request.delimiter)


def read_tsv(file: IO[bytes], name: str, records: Records) -> Iterator[Piece]:
    """Tabs, unless another delimiter is named."""
    return _read(file, name, records, records.request.delimiter or "\t")


def _read(file: IO[bytes], name: str, records: Records, delimiter: str | None) -> Iterator[Piece]:
    # The least of what the C long of any platform holds: a field may be as long as a book.
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    lines = _Lines(decoded(file, Decoding(name, records.request)))
    header_lines = lines.header()
    if not "".join(header_lines).strip():
        records.tally.empty_documents += 1
        return
    delimiter = delimiter or _delimiter(header_lines, name, records)
    lines.put_back(header_lines)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    header = _header(rows, name, records)
    column = header.index(records.field)
    while True:
        lines.start_record()
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            records.bad(f"a broken row ({error})", f"{name}, line {lines.first}")
            continue
        place = f"{name}, line {lines.first}"
        if not row:  # a blank line is no record
            continue
        if len(row) != len(header):
            words = f"a row of another width ({len(row)} fields under {len(header)} names)"
            records.bad(words, place)
            continue
        yield from records.take(row[column], place)


def _header(rows: Iterator[list[str]], name: str, records: Records) -> list[str]:
    try:
        header = next(rows)
    except csv.Error as error:
        raise records.request.error(name, f"its header is broken ({error}); mend it") from error
    if records.field not in header:
        raise records.request.error(
            name, f"{records.missing([shown(n) for n in header])}; its first line is its header"
        )
    if header.count(records.field) > 1:
        raise records.request.error(
            name, f"{header.count(records.field)} columns are named {records.field!r}; rename them"
        )
    return header


def _delimiter(header: list[str], name: str, records: Records) -> str:
    """The delimiter under which the header has the field, by itself or among most others."""
    found: dict[str, list[str]] = {}
    for delimiter in DELIMITERS:
        try:
            found[delimiter] = next(csv.reader(header, delimiter=delimiter, strict=True), [])
        except csv.Error:
            continue
    fits = {d: names for d, names in found.items() if records.field in names}
    if not fits:
        names = max(found.values(), key=len, default=[])
        raise records.request.error(
            name,
            f"{records.missing([shown(n) for n in names])}; its first line is its header, and "
            f"{records.request.flag('delimiter')} names what divides the fields",
        )
    return max(fits, key=lambda delimiter: len(fits[delimiter]))


class _Lines(Iterator[str]):
    """Lines with their ends, for :func:`csv.reader`, and the number of a record's first one.

    Only LF ends a line here: a lone CR within quotes belongs to the field, and one that ends a row
    comes to the reader in the middle of a line, which it takes for the row's end as well.
    """

    def __init__(self, texts: Iterator[str]) -> None:
        self.texts = texts
        self.waiting: list[str] = []
        self.rest = ""
        self.over = False
        self.number = 0
        self.first = 1

    def start_record(self) -> None:
        """The next line begins a record."""
        self.first = self.number + 1

    def put_back(self, lines: list[str]) -> None:
        """Give these again, first."""
        self.waiting[:0] = lines
        self.number -= len(lines)

    def header(self) -> list[str]:
        """The lines of the first record: up to the one that closes its quotes."""
        lines, quotes = [], 0
        for line in self:
            lines.append(line)
            quotes += line.count('"')
            if quotes % 2 == 0:
                break
        return lines

    def __next__(self) -> str:
        while not self.waiting:
            if self.over:
                raise StopIteration
            text = next(self.texts, None)
            self.over = text is None
            *whole, self.rest = (self.rest + (text or "")).split("\n")
            self.waiting = [line + "\n" for line in whole]
            if self.over and self.rest:
                self.waiting.append(self.rest)
        self.number += 1
        return self.waiting.pop(0)
