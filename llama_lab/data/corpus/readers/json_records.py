"""JSON: an object a line, one array of objects, or an object that holds one such array.

U+2028 and the like end no line.
"""

from __future__ import annotations

import codecs
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import IO, Any, Literal

from llama_lab.data.corpus.built_in import shown
from llama_lab.data.corpus.readers.records import FIELDS_NAMED, Piece, Records
from llama_lab.data.corpus.readers.streams import (
    CHUNK_BYTES,
    Decoding,
    codec_name,
    invalid_byte,
    refuse_wide_mark,
)

WHITESPACE = " \t\r\n"
# An object of more characters than this is not held whole to see what it is.
HELD_CHARACTERS = 1 << 26


def read_json(file: IO[bytes], name: str, records: Records) -> Iterator[Piece]:
    """A ``.json`` file: a list of records, an object with such a list, else a record a line.

    The list is taken where it is the only one of records among the object's values.
    """
    # Only the form is looked for here: what cannot be decoded is refused later.
    decoder = codecs.getincrementaldecoder(codec_name(records.request))("replace")
    head, begin, form = b"", "", None
    while form is None:
        data = file.read(CHUNK_BYTES)
        head += data
        begin = (begin + decoder.decode(data, final=not data)).lstrip(WHITESPACE + "\ufeff")
        form = _form(begin, records.field, is_whole=not data)
    chunks = itertools.chain((head,), iter(lambda: file.read(CHUNK_BYTES), b""))
    if form == "lines":
        return _read_lines(chunks, name, records)
    buffer = _Buffer(_text_of(chunks, Decoding(name, records.request)))
    buffer.skip(WHITESPACE)
    return (_read_array if form == "array" else _read_object)(buffer, name, records)


def _form(begin: str, field: str, *, is_whole: bool) -> Literal["array", "object", "lines"] | None:
    """The form of a file that begins so, blanks left out; ``None`` where more is needed to know."""
    if begin.startswith("["):
        return "array"
    if begin and not begin.startswith("{"):
        return "lines"
    line, _, rest = begin.partition("\n")
    rest = rest.lstrip(WHITESPACE)
    if not rest and not is_whole:
        return None if len(begin) < HELD_CHARACTERS else "object"
    line = line.rstrip(WHITESPACE)
    try:
        value = json.loads(line)
    except RecursionError:
        return "lines"
    except json.JSONDecodeError as error:
        # An object over many lines breaks at the end of its first one, where a token ends.
        return "object" if error.pos >= len(line) > 0 and rest else "lines"
    except ValueError:  # a number of too many digits
        return "lines"
    return "lines" if field in value or rest else "object"


def read_json_lines(file: IO[bytes], name: str, records: Records) -> Iterator[Piece]:
    """A record a line; blank lines are none."""
    return _read_lines(iter(lambda: file.read(CHUNK_BYTES), b""), name, records)


def _read_lines(chunks: Iterable[bytes], name: str, records: Records) -> Iterator[Piece]:
    request = records.request
    if request.encoding is not None:  # a line may end with other bytes than LF
        texts = _text_of(chunks, Decoding(name, request))
        for number, line in enumerate(_lines(texts, "\n"), 1):
            yield from _read_line(line, f"{name}, line {number}", records)
        return
    codec, offset = codec_name(request), 0
    for number, line in enumerate(_lines(chunks, b"\n"), 1):
        place = f"{name}, line {number}"
        if number == 1:
            refuse_wide_mark(line, codec, name, request)
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            if request.on_bad_record == "stop":
                raise invalid_byte(request, place, codec, error, offset + error.start) from error
            records.bad("not valid UTF-8", place)
        else:
            yield from _read_line(
                text.removeprefix("\ufeff") if number == 1 else text, place, records
            )
        offset += len(line) + 1


def _read_line(line: str, place: str, records: Records) -> Iterator[Piece]:
    if not line.strip(WHITESPACE):
        return
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        records.bad(f"not valid JSON ({_reason(error)})", place)
        return
    yield from _record(value, place, records)


def _record(value: Any, place: str, records: Records) -> Iterator[Piece]:
    if not isinstance(value, dict):
        records.bad("the record is no JSON object", place)
    elif records.field not in value:
        records.bad(records.missing(list(value)), place)
    else:
        yield from records.take(value[records.field], place)


def _read_object(buffer: _Buffer, name: str, records: Records) -> Iterator[Piece]:
    """Records one after another, each over many lines, or the records of the one list of records
    that an object holds."""
    if buffer.begins_with_record(records.field):
        yield from _one_after_another(buffer, 1, name, records)
        return
    keys: list[str] = []
    holders: list[str] = []
    for key in _keys(buffer, name, records):
        keys.append(key)
        if key == records.field or buffer.holds_records():
            holders.append(key)
        if len(holders) > 1:
            raise records.request.error(
                name,
                f"one object, whose keys {' and '.join(map(shown, holders))} both hold records; "
                "keep one of them, or write a record a line as .jsonl",
            )
        if key in holders and key != records.field:
            yield from _elements(buffer, f"{name}, {key}", records)
        else:
            value = buffer.value(name, records)
            if key in holders:
                yield from _record({key: value}, name, records)
    if holders == [records.field]:
        yield from _one_after_another(buffer, 2, name, records)
    elif buffer.text:
        raise _broken(name, records, "text follows the object that begins the file")
    if not holders:
        named = ", ".join(map(shown, keys[:FIELDS_NAMED])) or "none"
        records.bad(
            f"an object without a list of records and without the field {records.field!r} (there "
            f"is: {named}; name the text's field with {records.request.flag('text_field')})",
            name,
        )


def _one_after_another(buffer: _Buffer, first: int, name: str, records: Records) -> Iterator[Piece]:
    for number in itertools.count(first):
        if not buffer.text:
            return
        place = f"{name}, record {number}"
        yield from _record(buffer.value(place, records), place, records)
        buffer.skip(WHITESPACE)


def _keys(buffer: _Buffer, name: str, records: Records) -> Iterator[str]:
    """The keys of an object; whoever asks takes each one's value off the buffer."""
    buffer.drop(1)  # the brace
    buffer.skip(WHITESPACE)
    for number in itertools.count():
        if buffer.text[:1] == "}":
            buffer.drop(1)
            buffer.skip(WHITESPACE)
            return
        if number:
            _expect(",", buffer, name, records)
        key = buffer.value(name, records)
        if not isinstance(key, str):
            raise _broken(name, records, "a key in quotation marks is missing")
        buffer.skip(WHITESPACE)
        _expect(":", buffer, name, records)
        yield key
        buffer.skip(WHITESPACE)


def _expect(sign: str, buffer: _Buffer, name: str, records: Records) -> None:
    if buffer.text[:1] != sign:
        raise _broken(name, records, f"a {sign} is missing")
    buffer.drop(1)
    buffer.skip(WHITESPACE)


def _read_array(buffer: _Buffer, name: str, records: Records) -> Iterator[Piece]:
    yield from _elements(buffer, name, records)
    buffer.skip(WHITESPACE)
    if buffer.text:
        raise records.request.error(name, "text follows the array; put one array in a file")


def _elements(buffer: _Buffer, name: str, records: Records) -> Iterator[Piece]:
    """The records of one array, decoded as soon as each is whole."""
    buffer.drop(1)  # the bracket
    for number in itertools.count(1):
        place = f"{name}, record {number}"
        buffer.skip(WHITESPACE)
        if number > 1 and buffer.text[:1] == ",":
            buffer.drop(1)
            buffer.skip(WHITESPACE)
        elif buffer.text[:1] == "]":
            buffer.drop(1)
            return
        elif number > 1:
            raise _broken(place, records, "a comma or ] is missing before it")
        yield from _record(buffer.value(place, records), place, records)


def _broken(place: str, records: Records, reason: str) -> Exception:
    # Where a record of an array ends cannot be known once it is broken, so none can be skipped.
    return records.request.error(
        place, f"not valid JSON ({reason}); mend the file, or write a record a line as .jsonl"
    )


class _Buffer:
    """Text that is still to be decoded; it grows by as much as it holds."""

    def __init__(self, texts: Iterator[str]) -> None:
        self.texts, self.text = texts, ""
        self.decoder = json.JSONDecoder()

    def more(self) -> bool:
        """Take more in; whether there was any."""
        before, parts = max(len(self.text), 1), []
        for text in self.texts:
            parts.append(text)
            if sum(map(len, parts)) >= before:
                break
        added = "".join(parts)
        self.text += added
        return bool(added)

    def value(self, place: str, records: Records) -> Any:
        """Take the value off the front.

        Raises:
            UserError: It is none.
        """
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text)
                # A number may go on in the next chunk; strings and brackets end themselves.
                if end < len(self.text) or not self.more():
                    break
            except (ValueError, RecursionError) as error:
                if isinstance(error, RecursionError) or not self.more():
                    raise _broken(place, records, _reason(error)) from error
        self.drop(end)
        return value

    def holds_records(self) -> bool:
        """Whether a list whose first element is an object begins here."""
        while self.text[:1] == "[" and not self.text[1:].strip(WHITESPACE):
            if not self.more():
                return False
        return self.text[:1] == "[" and self.text[1:].lstrip(WHITESPACE)[:1] == "{"

    def begins_with_record(self, field: str) -> bool:
        """Whether an object with this field begins here; one that is too long to hold does not."""
        while True:
            try:
                value, _ = self.decoder.raw_decode(self.text)
            except (ValueError, RecursionError):
                if len(self.text) >= HELD_CHARACTERS or not self.more():
                    return False
            else:
                return isinstance(value, dict) and field in value

    def drop(self, n: int) -> None:
        """Take ``n`` characters off the front."""
        self.text = self.text[n:]

    def skip(self, characters: str) -> None:
        """Take all of these off the front."""
        self.text = self.text.lstrip(characters)
        while not self.text and self.more():
            self.text = self.text.lstrip(characters)


def _lines(chunks: Iterable[Any], end: Any) -> Iterator[Any]:
    """Lines without their ends, of text or of bytes; the last one may have none."""
    waiting: list[Any] = []
    for chunk in chunks:
        first, *others = chunk.split(end)
        waiting.append(first)
        if others:
            yield end[:0].join(waiting)
            yield from others[:-1]
            waiting = [others[-1]]
    if rest := end[:0].join(waiting):
        yield rest


def _text_of(chunks: Iterable[bytes], decoding: Decoding) -> Iterator[str]:
    for chunk in chunks:
        yield decoding.feed(chunk)
    yield decoding.feed(b"", final=True)


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg}, character {error.pos + 1}"
    return "a number of too many digits"
