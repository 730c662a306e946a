"""Files beneath a folder or of a glob: links are followed, and a folder is entered once.

A link to a folder that holds the link itself would lead round in circles, and a pipe, a socket or a
device may never end: these are left out, and so is a link whose target is not there. Each is
counted by its name.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath

from llama_lab.data.corpus.built_in import one_line, shown
from llama_lab.data.corpus.readers.records import SourceRequest, Tally

ANY_FOLDERS = "**"
STANDARD_INPUT = "-"
# What a shell calls the pipe that it makes of a command's output.
PIPES_BY_NAME = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")

# A file, whatever its path is called: device and inode.
FileKey = tuple[int, int] | str

SPECIAL_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def natural(path: PurePath) -> list[list[tuple[int, int, str]]]:
    """The key of the natural order: part by part, runs of digits as numbers, the rest by code
    point."""
    return [
        [
            (0, int(run), run) if run.isascii() and run.isdigit() else (1, 0, run)
            for run in re.split(r"([0-9]+)", part)
            if run
        ]
        for part in path.parts
    ]


def file_key(path: Path, about: os.stat_result) -> FileKey:
    """What two paths of one file, linked or not, have in common."""
    return (about.st_dev, about.st_ino) if about.st_ino else os.path.realpath(path)


def special_kind(mode: int) -> str | None:
    """``a named pipe``, ``a socket`` or ``a device``; ``None`` for what is none of these."""
    return next((kind for is_kind, kind in SPECIAL_KINDS if is_kind(mode)), None)


def names_pipe(source: str) -> bool:
    """Whether a source is standard input or a pipe, which can be read but once."""
    try:
        is_pipe = Path(source).is_fifo()
    except (OSError, ValueError):
        is_pipe = False
    return source == STANDARD_INPUT or is_pipe or source.startswith(PIPES_BY_NAME)


def has_input(pipe: str) -> bool:
    """Whether something can be read from standard input or a pipe.

    Standard input is waited for until its first byte or its end, which is not taken; a terminal
    counts as nothing.
    """
    if pipe != STANDARD_INPUT:
        return os.path.exists(pipe)
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return False
    peek = getattr(sys.stdin.buffer, "peek", None)
    return peek is None or bool(peek(1))


class Finder:
    """Finds the files of one source.

    Args:
        request: Words the refusals.
        tally: Counts what is left out.

    Raises:
        UserError: A folder cannot be listed, or nothing can be known of a file.
    """

    def __init__(self, request: SourceRequest, tally: Tally) -> None:
        self.request, self.tally = request, tally
        self.told: set[Path] = set()

    def beneath(self, folder: Path) -> list[Path]:
        """The files in ``folder`` and its folders, in natural order, without the hidden ones."""
        found = [
            path
            for here in self._folders(folder)
            for path in self._listed(here)
            if not path.name.startswith(".") and not self._is_folder(path)
        ]
        found.sort(key=lambda path: natural(path.relative_to(folder)))
        return [path for path in found if self._is_file(path)]

    def matching(self, pattern: str) -> list[Path]:
        """The files that a glob names, in natural order; ``**`` stands for any folders."""
        parts = list(PurePath(pattern).parts)
        start = Path(parts.pop(0)) if PurePath(pattern).anchor else Path()
        found = [start]
        for number, part in enumerate(parts):
            is_last = number == len(parts) - 1
            found = [path for base in found for path in self._step(base, part, is_last=is_last)]
        files = []
        for path in sorted(set(found), key=natural):
            if not self._is_folder(path):
                files += [path] if self._is_file(path) else []
            elif ANY_FOLDERS not in parts:
                self._leave_out("a folder, which a glob enters only for **", path)
        return files

    # ---- one step ----------------------------------------------------------------------------

    def _step(self, base: Path, part: str, *, is_last: bool) -> list[Path]:
        """What one part of a glob stands for in ``base``, which may be no folder."""
        if part == ANY_FOLDERS:
            folders = list(self._folders(base)) if self._is_folder(base) else []
            if not is_last:
                return folders
            return [p for f in folders for p in self._listed(f) if not p.name.startswith(".")]
        if not glob.has_magic(part):
            return [base / part] if os.path.lexists(base / part) else []
        if not self._is_folder(base):
            return []
        names = [path.name for path in self._listed(base)]
        if not part.startswith("."):
            names = [name for name in names if not name.startswith(".")]
        return [base / name for name in fnmatch.filter(names, part)]

    def _folders(self, top: Path) -> Iterator[Path]:
        """``top`` and every folder beneath it that is not hidden, each once."""
        entered = {file_key(top, os.stat(top)): top}
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            yield folder
            inner = [
                path
                for path in self._listed(folder)
                if not path.name.startswith(".") and self._is_folder(path)
            ]
            inner.sort(key=lambda path: natural(PurePath(path.name)))
            waiting += reversed([path for path in inner if self._enters(path, entered)])

    def _enters(self, folder: Path, entered: dict[FileKey, Path]) -> bool:
        holder = Path(os.path.realpath(folder.parent))
        if folder.is_symlink() and holder.is_relative_to(os.path.realpath(folder)):
            self._leave_out("a link to a folder that holds the link", folder)
            return False
        before = entered.setdefault(file_key(folder, os.stat(folder)), folder)
        if before is not folder:
            self._leave_out("a folder that is read under another path", folder, before)
        return before is folder

    def _listed(self, folder: Path) -> list[Path]:
        try:
            return [folder / name for name in os.listdir(folder)]
        except OSError as error:
            raise self._unreadable(folder, error) from error

    def _is_folder(self, path: Path) -> bool:
        return (mode := self._mode(path)) is not None and stat.S_ISDIR(mode)

    def _is_file(self, path: Path) -> bool:
        """Whether it can be read to its end; what cannot is counted."""
        mode = self._mode(path)
        if mode is None:
            self._leave_out("a link that leads nowhere", path)
        elif kind := special_kind(mode):
            self._leave_out(f"{kind}, which may never end", path)
        return path not in self.told

    def _mode(self, path: Path) -> int | None:
        """``None`` for a link that leads nowhere."""
        try:
            return os.stat(path).st_mode
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return None
            raise self._unreadable(path, error) from error

    def _leave_out(self, reason: str, path: Path, other: Path | None = None) -> None:
        if path not in self.told:
            self.told.add(path)
            self.tally.skip(reason, shown(path) + (f" as {shown(other)}" if other else ""))

    def _unreadable(self, path: Path, error: OSError) -> Exception:
        return self.request.error(
            shown(path),
            f"cannot be opened ({error.strerror or one_line(error)}); make it readable, or name "
            "the files beside it",
        )
