"""Tables of text: a header, then a record a row; fields may hold line ends between quotes.

Between commas and semicolons a field may stand in quotation marks; between tabs a mark is a
character like any other, unless ``quoting`` says otherwise: there a stray one would take all rows
up to the next into its field.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from llama_lab.data.corpus.built_in import shown
from llama_lab.data.corpus.readers.records import Piece, Records
from llama_lab.data.corpus.readers.streams import Decoding, decoded

TAB = "\t"
DELIMITERS = (",", ";", TAB)
QUOTE = '"'
UNCLOSED = "unexpected end of data"  # as the csv module says it

# A quoted field of fewer lines is not worth a word.
MANY_LINES = 10


def read_csv(file: IO[bytes], name: str, records: Records) -> Iterator[Piece]:
    """The delimiter is the one of ``, ; tab`` under which the header has the text's field."""
    return _read(file, name, records, records.request.delimiter)


def read_tsv(file: IO[bytes], name: str, records: Records) -> Iterator[Piece]:
    """Tabs, unless another delimiter is named."""
    return _read(file, name, records, records.request.delimiter or TAB)


@dataclass(frozen=True)
class _Form:
    """How a table is written."""

    delimiter: str
    quotes: bool

    def rows(self, lines: Iterator[str]) -> Iterator[list[str]]:
        quoting: Any = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        return csv.reader(lines, delimiter=self.delimiter, quoting=quoting, strict=True)


def _form(delimiter: str, records: Records) -> _Form:
    quoting = records.request.quoting
    return _Form(delimiter, delimiter != TAB if quoting == "auto" else quoting == "csv")


def _read(file: IO[bytes], name: str, records: Records, delimiter: str | None) -> Iterator[Piece]:
    # The least of what the C long of any platform holds: a field may be as long as a book.
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    lines = _Lines(decoded(file, Decoding(name, records.request)))
    form = None if delimiter is None else _form(delimiter, records)
    header_lines = lines.header(
        quotes=records.request.quoting != "none" if not form else form.quotes
    )
    if not "".join(header_lines).strip():
        records.tally.empty_documents += 1
        return
    if form is None:
        form = _found_form(header_lines, name, records)
    lines.put_back(header_lines)
    lines.start_record()
    rows = form.rows(lines)
    header = _header(rows, form, lines, name, records)
    column = header.index(records.field)
    while True:
        lines.start_record()
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            _refuse_broken(error, form, lines, name, records)
            continue
        place = f"{name}, line {lines.first}"
        if not row:  # a blank line is no record
            continue
        if lines.count >= MANY_LINES:
            records.tally.long_record(lines.count, place)
        if len(row) != len(header):
            _refuse_width(row, header, form, lines, place, records)
            continue
        if not form.quotes and _looks_quoted(row[column]):
            records.tally.kept_quote(place)
        yield from records.take(row[column], place)


def _looks_quoted(field: str) -> bool:
    return len(field) > 1 and field[0] == field[-1] == QUOTE


def _refuse_broken(
    error: csv.Error, form: _Form, lines: _Lines, name: str, records: Records
) -> None:
    """Refuse the record that the reader broke off, or count it and its lines."""
    remedy = f"set {records.request.flag('quoting')} none where quotation marks are text"
    if UNCLOSED in str(error):
        place, reason = f"{name}, line {lines.opened}", "a quotation mark is never closed"
        more = f", and the field that it opens runs to the end of the file, line {lines.number}"
    else:
        place, reason, more = f"{name}, line {lines.first}", f"a broken row ({error})", ""
        if lines.count > 1:
            more = f", where the quotation mark of line {lines.led_here} led to line {lines.number}"
    records.bad(reason, place, n_lines=lines.count, more=more, remedy=remedy if form.quotes else "")


def _refuse_width(
    row: list[str], header: list[str], form: _Form, lines: _Lines, place: str, records: Records
) -> None:
    words = f"a row of another width ({len(row)} fields under {len(header)} names)"
    flag, remedy = records.request.flag("quoting"), ""
    if form.quotes and lines.count > 1:
        remedy = f"set {flag} none where quotation marks are text"
    elif not form.quotes and any(field.startswith(QUOTE) for field in row):
        remedy = f"set {flag} csv where quotation marks hold a field together"
    more = f", over {lines.count:,} lines" if lines.count > 1 else ""
    records.bad(words, place, n_lines=lines.count, more=more, remedy=remedy)


def _header(
    rows: Iterator[list[str]], form: _Form, lines: _Lines, name: str, records: Records
) -> list[str]:
    try:
        header = next(rows)
    except csv.Error as error:
        raise _broken_header(str(error), lines, name, records) from error
    if records.field not in header:
        raise records.request.error(
            name,
            f"{records.missing([shown(n) for n in header])}; its first line is its header"
            + _hint_to_quote(header, form, records),
        )
    if header.count(records.field) > 1:
        raise records.request.error(
            name, f"{header.count(records.field)} columns are named {records.field!r}; rename them"
        )
    return header


def _hint_to_quote(header: list[str], form: _Form, records: Records) -> str:
    if form.quotes or f"{QUOTE}{records.field}{QUOTE}" not in header:
        return ""
    return f"; to take quotation marks off the fields, set {records.request.flag('quoting')} csv"


def _broken_header(error: str, lines: _Lines, name: str, records: Records) -> Exception:
    words = f"its header is broken ({error})"
    if UNCLOSED in error:
        words = f"line {lines.opened}: its header has a quotation mark that is never closed"
    flag = records.request.flag("quoting")
    return records.request.error(
        name, f"{words}; mend it, or set {flag} none where quotation marks are text"
    )


def _found_form(header: list[str], name: str, records: Records) -> _Form:
    """The form under whose delimiter the header has the field, by itself or among most others."""
    found: dict[_Form, list[str]] = {}
    for delimiter in DELIMITERS:
        form = _form(delimiter, records)
        try:
            found[form] = next(form.rows(iter(header if form.quotes else header[:1])), [])
        except csv.Error:
            continue
    fits = {form: names for form, names in found.items() if records.field in names}
    if fits:
        return max(fits, key=lambda form: len(fits[form]))
    form, names = max(found.items(), key=lambda each: len(each[1]), default=(_Form(TAB, True), []))
    raise records.request.error(
        name,
        f"{records.missing([shown(n) for n in names])}; its first line is its header, and "
        f"{records.request.flag('delimiter')} names what divides the fields"
        + _hint_to_quote(names, form, records),
    )


class _Lines(Iterator[str]):
    """Lines with their ends, for :func:`csv.reader`, and the numbers of a record's lines.

    Attributes:
        number: Of the line that was given last, from 1.
        first: Of the record's first line.
        opened: Of the line in which the quotation mark stands that is open behind ``number``, where
            the record goes on.
        led_here: The same of the mark that was open before ``number``.

    Only LF ends a line here: a lone CR within quotes belongs to the field, and one that ends a row
    comes to the reader in the middle of a line, which it takes for the row's end as well.
    """

    def __init__(self, texts: Iterator[str]) -> None:
        self.texts = texts
        self.waiting: list[str] = []
        self.rest = ""
        self.over = False
        self.number = 0
        self.first = self.opened = self.led_here = 1

    @property
    def count(self) -> int:
        """Lines of the record so far."""
        return self.number - self.first + 1

    def start_record(self) -> None:
        """The next line begins a record."""
        self.first = self.opened = self.led_here = self.number + 1

    def put_back(self, lines: list[str]) -> None:
        """Give these again, first."""
        self.waiting[:0] = lines
        self.number -= len(lines)

    def header(self, *, quotes: bool) -> list[str]:
        """The lines of the first record: up to the one that closes its quotes."""
        lines, marks = [], 0
        for line in self:
            lines.append(line)
            marks += line.count(QUOTE)
            if not quotes or marks % 2 == 0:
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
        line = self.waiting.pop(0)
        # The reader asks for more of a record only within quotes. A mark that is not doubled there
        # ends the field, and another one on the line has opened the next.
        self.led_here = self.opened
        if self.number > self.first and QUOTE in line.replace(QUOTE * 2, ""):
            self.opened = self.number
        return line
