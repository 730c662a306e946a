"""Resolution of a corpus's names into the files, datasets and built-ins to read."""

from __future__ import annotations

import difflib
import glob
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

from llama_lab.data.corpus.built_in import BUILT_IN, one_line, shown
from llama_lab.data.corpus.finding import (
    STANDARD_INPUT,
    FileKey,
    Finder,
    file_key,
    special_kind,
)
from llama_lab.data.corpus.readers.endings import (
    NOT_READ,
    PARQUET,
    PLAIN_TEXT,
    RECORD_READERS,
    ending_of,
)
from llama_lab.data.corpus.readers.hub import SCHEME
from llama_lab.data.corpus.readers.records import SourceRequest, Tally
from llama_lab.data.corpus.readers.streams import UNPACKERS, packing_of
from llama_lab.errors import UserError

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


class Resolver:
    """Finds the items that the sources of a request name, and counts what is left out."""

    def __init__(self, request: SourceRequest, tally: Tally) -> None:
        self.request, self.tally = request, tally

    def items(self) -> list[Item]:
        """The items of all sources, each of them once, in the order in which they are read.

        Raises:
            UserError: A source is not there, is of a kind that cannot be read, or is named twice.
        """
        return self._each_once(
            [item for source in self.request.sources for item in self._resolve(source)]
        )

    def about(self, item: Item) -> os.stat_result:
        """The status of an item's file."""
        assert item.path is not None
        try:
            return item.path.stat()
        except OSError as error:
            raise self.request.error(
                item.name, f"cannot be read ({error.strerror}); make it readable"
            ) from error

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
        if piped and ending_of(path) == PARQUET:
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
        ending = ending_of(file)
        content = next((c for c, endings in NOT_READ.items() if ending in endings), None)
        known = ending in RECORD_READERS or ending == PARQUET or ending in PLAIN_TEXT
        if content is None and not known and _is_binary(file):
            content = "binary data"
        if content is None:
            return False
        self.tally.skip(f"{content} ({ending})" if ending else content)
        return True

    def _refuse_kind(self, path: Path, source: str) -> None:
        ending = ending_of(path)
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
        return item.name if item.path is None else file_key(item.path, self.about(item))


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
