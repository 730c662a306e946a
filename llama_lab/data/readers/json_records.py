"""JSON: an object a line, or one array of objects. U+2028 and the like end no line."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from typing import IO, Any

from llama_lab.data.readers.records import Piece, Records
from llama_lab.data.readers.streams import (
    CHUNK_BYTES,
    Decoding,
    codec_name,
    invalid_byte,
    refuse_wide_mark,
)

WHITESPACE = " \t\r\n"
BLANK = WHITESPACE.encode()
BOM = b"\xef\xbb\xbf"


def read_json(file: IO[bytes], name: str, records: Records) -> Iterator[Piece]:
    """A ``.json`` file: a list of records where it begins with ``[``, else a record a line."""
    head = b""
    while data := file.read(CHUNK_BYTES):
        head += data
        if head.removeprefix(BOM).strip(BLANK):
            break
    chunks = itertools.chain((head,), iter(lambda: file.read(CHUNK_BYTES), b""))
    if head.removeprefix(BOM).lstrip(BLANK).startswith(b"["):
        return _read_array(_text_of(chunks, Decoding(name, records.request)), name, records)
    return _read_lines(chunks, name, records)


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


def _read_array(texts: Iterator[str], name: str, records: Records) -> Iterator[Piece]:
    """The records of one array, decoded as soon as each is whole."""
    decoder, buffer = json.JSONDecoder(), _Buffer(texts)
    buffer.skip(WHITESPACE)
    buffer.drop(1)  # the bracket
    for number in itertools.count(1):
        place = f"{name}, record {number}"
        buffer.skip(WHITESPACE)
        if number > 1 and buffer.text[:1] == ",":
            buffer.drop(1)
            buffer.skip(WHITESPACE)
        elif buffer.text[:1] == "]":
            buffer.drop(1)
            buffer.skip(WHITESPACE)
            if buffer.text:
                raise records.request.error(name, "text follows the array; put one array in a file")
            return
        elif number > 1:
            raise _broken(place, records, "a comma or ] is missing before it")
        while True:
            try:
                value, end = decoder.raw_decode(buffer.text)
                # A number may go on in the next chunk; records that count end with a bracket.
                if end < len(buffer.text) or not buffer.more():
                    break
            except (ValueError, RecursionError) as error:
                if isinstance(error, RecursionError) or not buffer.more():
                    raise _broken(place, records, _reason(error)) from error
        buffer.drop(end)
        yield from _record(value, place, records)


def _broken(place: str, records: Records, reason: str) -> Exception:
    # Where a record of an array ends cannot be known once it is broken, so none can be skipped.
    return records.request.error(
        place, f"not valid JSON ({reason}); mend the file, or write a record a line as .jsonl"
    )


class _Buffer:
    """Text that is still to be decoded; it grows by as much as it holds."""

    def __init__(self, texts: Iterator[str]) -> None:
        self.texts, self.text = texts, ""

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
