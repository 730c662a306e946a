"""Records: the output of every reader, and the treatment of bad ones."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_lab.data.config import ReadingConfig
from llama_lab.errors import UserError

FIELDS_NAMED = 12
SKIPPED_NAMED = 5


@dataclass(frozen=True)
class Piece:
    """A part of a document; a long text file comes in parts of about a million characters."""

    text: str
    ends_document: bool


@dataclass(frozen=True, kw_only=True)
class SourceRequest(ReadingConfig):
    """Which sources to read, and with which settings.

    Attributes:
        data_dir: Where built-in corpora are kept.
        setting: The setting that named the sources.
    """

    data_dir: Path = Path("data")
    setting: str = "corpus"

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources, in the order in which they are read."""
        return (self.corpus,) if isinstance(self.corpus, str) else tuple(self.corpus)

    def error(self, place: object, words: str) -> UserError:
        """The refusal of what stands at ``place``."""
        return UserError(f"{self.flag(self.setting)} {place}: {words}")


@dataclass
class Bad:
    """Records of one kind that hold no text: how many, where the first is, and over how many lines
    of the file they run; 0 where that is not counted."""

    count: int
    first: str
    n_lines: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON; the lines where there are more of them than records."""
        lines = {"lines": self.n_lines} if self.n_lines > self.count else {}
        return {"count": self.count, "first": self.first, **lines}


@dataclass
class Noted:
    """Records of one kind that were read and may be meant otherwise: how many, and one of them.

    Attributes:
        most: Lines of the longest one.
        place: Where that one, or the first one, is.
    """

    count: int = 0
    most: int = 0
    place: str = ""


@dataclass
class Tally:
    """What a reading has met so far.

    Attributes:
        files: Files read.
        skipped: Files of a folder that were left out: how many, by reason.
        skipped_names: The first of those that are told by name, by reason.
        piped: Whether some of it came through a pipe, which can be read but once.
        documents: Documents that were given.
        empty_documents: Documents and files without a character, which were left out.
        bad: Records that were left out, by reason.
        long_records: Rows of a table that run over many lines.
        kept_quotes: Fields between quotation marks that were kept as text.
    """

    files: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    skipped_names: dict[str, list[str]] = field(default_factory=dict)
    piped: bool = False
    documents: int = 0
    empty_documents: int = 0
    bad: dict[str, Bad] = field(default_factory=dict)
    long_records: Noted = field(default_factory=Noted)
    kept_quotes: Noted = field(default_factory=Noted)

    @property
    def bad_records(self) -> int:
        """All of them."""
        return sum(bad.count for bad in self.bad.values())

    def skip(self, reason: str, name: str | None = None) -> None:
        """Count a file that is left out; it is told by its name where one is given."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1
        if name is not None:
            names = self.skipped_names.setdefault(reason, [])
            names += [name] if len(names) < SKIPPED_NAMED else []

    def long_record(self, n_lines: int, place: str) -> None:
        """Note a row that runs over many lines."""
        long = self.long_records
        long.count += 1
        if n_lines > long.most:
            long.most, long.place = n_lines, place

    def kept_quote(self, place: str) -> None:
        """Note a field whose quotation marks were kept."""
        self.kept_quotes.count += 1
        self.kept_quotes.place = self.kept_quotes.place or place

    def notes(self) -> list[str]:
        """What was read and may be meant otherwise, for people; nothing where nothing was."""
        long, kept, said = self.long_records, self.kept_quotes, []
        if long.count:
            said.append(
                f"{long.count:,} row(s) run over many lines within quotation marks, the longest "
                f"over {long.most:,} lines from {long.place}; if that mark is text, set "
                "--data.quoting none"
            )
        if kept.count:
            said.append(
                f"{kept.count:,} field(s) begin and end with quotation marks, which were kept as "
                f"text, the first at {kept.place}; to take them off, set --data.quoting csv"
            )
        return said

    def lines(self) -> list[str]:
        """What was left out, for people; nothing where nothing was."""
        said = []
        for why, count in self.skipped.items():
            names = self.skipped_names.get(why)
            if names is None:
                said.append(f"{count:,} file(s) skipped: {why}")
            else:
                named = ", ".join(names) + (", …" if count > len(names) else "")
                said.append(f"{count:,} path(s) skipped: {why} ({named})")
        if self.empty_documents:
            said.append(f"{self.empty_documents:,} empty document(s) skipped")
        said += [
            f"{bad.count:,} bad record(s) skipped"
            + (f", {bad.n_lines:,} lines in all" if bad.n_lines > bad.count else "")
            + f": {why}, the first at {bad.first}"
            for why, bad in self.bad.items()
        ]
        return said

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        # What is rare has a key only where it was met: a store's name follows from this account.
        named = {"skipped_names": dict(self.skipped_names)} if self.skipped_names else {}
        return {
            "files": self.files,
            "documents": self.documents,
            "empty_documents": self.empty_documents,
            "skipped_files": dict(self.skipped),
            "bad_records": {why: bad.as_dict() for why, bad in self.bad.items()},
            **named,
            **({"notes": notes} if (notes := self.notes()) else {}),
            **({"piped": True} if self.piped else {}),
        }


class Records:
    """Turns the values of a text field into pieces, by the one rule for bad records."""

    def __init__(self, request: SourceRequest, tally: Tally) -> None:
        self.request, self.tally = request, tally
        self.field = "text" if request.text_field is None else request.text_field

    def bad(
        self, reason: str, place: str, *, n_lines: int = 0, more: str = "", remedy: str = ""
    ) -> None:
        """Refuse a record, or count it and go on.

        Args:
            reason: What is wrong; records are counted by what stands before a bracket.
            place: Where.
            n_lines: Lines of the file that it takes.
            more: What the refusal says behind the reason.
            remedy: What else helps than to mend it or to skip it.
        """
        if self.request.on_bad_record == "stop":
            ways = f"mend it, {f'{remedy}, ' if remedy else ''}"
            raise self.request.error(
                place, f"{reason}{more}; {ways}or set {self.request.flag('on_bad_record')} skip"
            )
        known = self.tally.bad.setdefault(reason.partition(" (")[0], Bad(0, place))
        known.count += 1
        known.n_lines += n_lines

    def missing(self, fields: list[str]) -> str:
        """That the field is not there, with those that are."""
        named = ", ".join(fields[:FIELDS_NAMED]) + (", …" if len(fields) > FIELDS_NAMED else "")
        return (
            f"no field {self.field!r} (there is: {named or 'none'}; name another with "
            f"{self.request.flag('text_field')})"
        )

    def take(self, value: object, place: str) -> Iterator[Piece]:
        """The document that ``value`` is."""
        if value is None:
            self.bad("the text is null", place)
        elif not isinstance(value, str):
            self.bad(f"the text is {_kind_of(value)}", place)
        elif not value:
            self.tally.empty_documents += 1
        elif not value.isascii() and _has_surrogate(value):
            self.bad("the text has half of a surrogate pair, which UTF-8 cannot hold", place)
        else:
            self.tally.documents += 1
            yield Piece(self.newlines(value), True)

    def newlines(self, text: str) -> str:
        """``text``, its line ends as asked for."""
        if not self.request.normalize_newlines:
            return text
        return text.replace("\r\n", "\n").replace("\r", "\n")

    def newline_decoder(self) -> io.IncrementalNewlineDecoder | None:
        """The same for a text that comes in parts."""
        if not self.request.normalize_newlines:
            return None
        return io.IncrementalNewlineDecoder(None, translate=True)


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _kind_of(value: object) -> str:
    names = {bool: "a truth value", int: "a number", float: "a number", list: "a list"}
    return names.get(type(value), "an object")
