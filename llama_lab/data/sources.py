"""Where text comes from: files, folders, globs, standard input, datasets and built-in corpora.

A record of a file of records is a document; so is each text file where there are several sources.
One text file by itself, or a built-in, is one running text. Files of a folder or a glob come in the
natural order of their paths: part by part, runs of digits compared as numbers, the rest by code
point, so that 9.txt stands before 10.txt on every machine. A file that is met under several paths
is read once, where it is met first.

Characters arrive as they stand in the file. A byte-order mark at the start is dropped; line ends,
NUL, U+2028 and everything else are kept, unless the settings say otherwise.
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from llama_lab.data.corpora import BUILT_IN, one_line, shown
from llama_lab.data.finding import (
    STANDARD_INPUT,
    FileKey,
    Finder,
    file_key,
    special_kind,
)
from llama_lab.data.readers.hub import SCHEME, read_dataset
from llama_lab.data.readers.json_records import read_json, read_json_lines
from llama_lab.data.readers.parquet import read_parquet
from llama_lab.data.readers.records import (
    Bad,
    OnBadRecord,
    Piece,
    Quoting,
    Records,
    SourceRequest,
    Tally,
)
from llama_lab.data.readers.streams import (
    CHUNK_BYTES,
    UNPACKERS,
    Counted,
    codec_name,
    opened,
    packing_of,
)
from llama_lab.data.readers.tables import read_csv, read_tsv
from llama_lab.data.readers.text import read_text
from llama_lab.errors import UserError

__all__ = ["Bad", "OnBadRecord", "Piece", "Quoting", "Reading", "SourceRequest", "Tally"]

Reader = Callable[[IO[bytes], str, Records], Iterator[Piece]]

# What an ending says of a file's content; other endings are plain text.
RECORD_READERS: dict[str, Reader] = {
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": read_tsv,
}
PARQUET = ".parquet"

# Endings of files that hold something else, though some would decode.
NOT_READ = {
    "records in another format": (".arrow", ".feather", ".orc", ".avro"),
    "an archive or compressed data": (".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz", ".7z", ".rar"),
    "a formatted document": (".pdf", ".doc", ".docx", ".odt", ".epub", ".rtf", ".xlsx", ".pptx"),
    "an image": (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ico"),
    "sound or film": (".mp3", ".wav", ".ogg", ".flac", ".mp4", ".mkv", ".mov", ".avi"),
    "binary data": (
        *(".bin", ".npy", ".npz", ".pt", ".pth", ".ckpt", ".safetensors", ".sqlite", ".db"),
        *(".pyc", ".so", ".o", ".a", ".exe", ".dll", ".class", ".whl", ".woff", ".woff2", ".ttf"),
    ),
}
PLAIN_TEXT = (".txt", ".text", ".md")
SNIFFED_BYTES = 1 << 13


@dataclass(frozen=True)
class Item:
    """One thing to read.

    Attributes:
        name: As errors show it.
        path: Of a file; ``None`` for standard input, a dataset or a built-in.
        found: Whether a folder or a glob led to it, rather than its own name.
        piped: Whether it is a pipe, which can be read but once.
    """

    name: str
    path: Path | None
    found: bool = False
    piped: bool = False


class MissingSource(UserError):
    """No source has this name.

    Attributes:
        flag: The setting that names it.
    """

    def __init__(self, request: SourceRequest, value: str, why: str) -> None:
        super().__init__(str(request.error(value, why)))
        self.flag = request.flag(request.setting)


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
        if not request.corpus:
            raise request.error("[]", "names no source; name a file, a folder or a built-in corpus")
        self.items = self._each_once(
            [item for source in request.corpus for item in self._resolve(source)]
        )
        self.tally.piped = any(item.piped for item in self.items)
        kinds = [self._kind(item) for item in self.items]
        self.documents_are_records = len(self.items) > 1 or any(k != "text" for k in kinds)
        self._refuse_idle(kinds)
        codec_name(request)
        self.identity, self.total_bytes = self._identify()

    def __iter__(self) -> Iterator[Piece]:
        records = Records(self.request, self.tally)
        found = False
        for item in self.items:
            for piece in self._read(item, records):
                found = True
                yield piece
        if not found:
            left_out = "; ".join(self.tally.lines())
            raise self.request.error(
                ", ".join(shown(source) for source in self.request.corpus),
                f"holds no text{f' ({left_out})' if left_out else ''}; name a source that does",
            )

    # ---- reading -----------------------------------------------------------------------------

    def _read(self, item: Item, records: Records) -> Iterator[Piece]:
        if item.path is not None:
            self.tally.files += 1
            if _ending(item.path) == PARQUET:
                yield from read_parquet(item.path, item.name, records, self._count)
                return
            reader = RECORD_READERS.get(_ending(item.path), read_text)
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

    # ---- what there is -----------------------------------------------------------------------

    def _resolve(self, source: str) -> list[Item]:
        if source in BUILT_IN or source == STANDARD_INPUT or source.startswith(SCHEME):
            return [Item(source, None, piped=source == STANDARD_INPUT)]
        path = Path(source)
        try:
            is_folder, exists = path.is_dir(), path.exists()
        except (OSError, ValueError) as error:
            raise self.request.error(
                shown(source),
                f"cannot be opened ({one_line(error)}); name a file, a folder or a built-in corpus "
                f"({', '.join(BUILT_IN)})",
            ) from error
        if source and is_folder:
            return self._of_files(source, Finder(self.request, self.tally).beneath(path))
        if source and exists:
            return [self._of_file(source, path)]
        if source and path.is_symlink():
            raise self.request.error(
                shown(source),
                f"is a link to {shown(os.readlink(path))}, which is not there; mend it or name "
                "another file",
            )
        if glob.has_magic(source):
            return self._of_files(source, Finder(self.request, self.tally).matching(source))
        near = _near_name(source, path)
        hint = f"did you mean {shown(near)}?" if near else "name one of these, a file or a folder"
        raise MissingSource(
            self.request,
            shown(source),
            f"neither a file, a folder nor a built-in corpus ({', '.join(BUILT_IN)}); looked for "
            f"{shown(path.absolute())}; {hint}",
        )

    def _of_file(self, source: str, path: Path) -> Item:
        self._refuse_kind(path, source)
        kind = special_kind(path.stat().st_mode)
        piped = kind == "a named pipe"
        if kind and not piped:
            raise self.request.error(
                shown(source), f"is {kind}, not a file; name a file, or pipe its text in as -"
            )
        if piped and _ending(path) == PARQUET:
            raise self.request.error(
                shown(source), "is a pipe, but Parquet is read from its end; save it to a file"
            )
        return Item(shown(source), path, piped=piped)

    def _of_files(self, source: str, files: list[Path]) -> list[Item]:
        read = [file for file in files if not self._skipped(file)]
        if not read:
            left_out = "; ".join(self.tally.lines()) or "no file is there"
            raise self.request.error(
                shown(source), f"has no file to read ({left_out}); name one that has"
            )
        return [Item(shown(file), file, found=True) for file in read]

    def _skipped(self, file: Path) -> bool:
        """Whether a file of a folder is left out, which is counted."""
        ending = _ending(file)
        content = next((c for c, endings in NOT_READ.items() if ending in endings), None)
        known = ending in RECORD_READERS or ending == PARQUET or ending in PLAIN_TEXT
        if content is None and not known and _is_binary(file):
            content = "binary data"
        if content is None:
            return False
        self.tally.skip(f"{content} ({ending})" if ending else content)
        return True

    # ---- what is refused ---------------------------------------------------------------------

    def _refuse_kind(self, path: Path, source: str) -> None:
        ending = _ending(path)
        packing = packing_of(path)
        if ending == PARQUET and packing is not None:
            raise self.request.error(
                shown(source), f"Parquet is compressed within; unpack the {packing} around it"
            )
        for content, endings in NOT_READ.items():
            if ending in endings:
                raise self.request.error(
                    shown(source),
                    f"a {ending} file holds {content}; put its text into a text file, or into "
                    f"{', '.join([*RECORD_READERS, PARQUET])} (each also {' or '.join(UNPACKERS)})",
                )

    def _each_once(self, items: list[Item]) -> list[Item]:
        """``items`` without what is there already, which is counted where a folder or a glob led
        to it, and refused where it was named twice."""
        seen: dict[FileKey, Item] = {}
        kept = []
        for item in items:
            before = seen.setdefault(self._key(item), item)
            if before is item:
                kept.append(item)
            elif item.found or before.found:
                name = f"{item.name} as {before.name}" if item.name != before.name else item.name
                self.tally.skip("a file that is read already", name)
            else:
                raise self.request.error(item.name, "is named twice; name it once")
        return kept

    def _key(self, item: Item) -> FileKey:
        return item.name if item.path is None else file_key(item.path, self._about(item))

    def _about(self, item: Item) -> os.stat_result:
        assert item.path is not None
        try:
            return item.path.stat()
        except OSError as error:
            raise self.request.error(
                item.name, f"cannot be read ({error.strerror}); make it readable"
            ) from error

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
                    f"{', '.join(map(shown, request.corpus))} {what}; "
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
        ending = _ending(item.path)
        return ending if ending in RECORD_READERS or ending == PARQUET else "text"

    # ---- which it is -------------------------------------------------------------------------

    def _identify(self) -> tuple[str | None, int | None]:
        total: int | None = 0
        known: list[object] = [
            *(self.request.text_field, self.request.encoding, self.request.delimiter),
            self.request.quoting,
            *(self.request.normalize_newlines, self.request.on_bad_record),
        ]
        if self.tally.skipped:  # they are told of with the store
            known.append([self.tally.skipped, self.tally.skipped_names])
        identified = True
        for item in self.items:
            if item.path is None or item.piped:
                total = None
                identified = identified and item.name in BUILT_IN
                known.append([item.name, sys.version])
                continue
            about = self._about(item)
            total = None if total is None else total + about.st_size
            known.append([os.path.realpath(item.path), about.st_size, about.st_mtime_ns])
        digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()
        return (digest if identified else None), total


def _ending(path: Path) -> str:
    """The ending that says what a file holds, without that of its packing."""
    inner = path.with_suffix("") if packing_of(path) else path
    return inner.suffix.lower()


def _is_binary(file: Path) -> bool:
    try:
        with open(file, "rb") as opened_file:
            return b"\0" in opened_file.read(SNIFFED_BYTES) and packing_of(file) is None
    except OSError:
        return False  # it is named when it is read


def _near_name(source: str, path: Path) -> str | None:
    """The built-in or the sibling whose name comes closest to ``source``, if any is close."""
    names = {name: name for name in BUILT_IN}
    try:
        siblings = itertools.islice(path.parent.iterdir(), 5000)
        names.update({file.name: str(file) for file in sorted(siblings)})
    except OSError:
        pass
    near = difflib.get_close_matches(path.name, names, n=1)
    return names[near[0]] if near else None
