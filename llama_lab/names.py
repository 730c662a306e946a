"""Names from outside whose bytes are not UTF-8: told by their bytes, or refused.

Python reads each such byte as a lone surrogate, U+DC80 to U+DCFF. A file of that name can be opened
so, but no receipt, config or event file can hold the name as text.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from collections.abc import Mapping

from llama_lab.errors import UserError

BY_BYTES = "llama_lab.by_bytes"
"""The name of :func:`spelt` among the ways in which a stream treats what it cannot encode."""

_LONE = re.compile("[\ud800-\udfff]")
_REMEDY = "not UTF-8 text; give it, or name the file, in UTF-8"


def is_utf8(text: str) -> bool:
    """Whether a file in UTF-8 can hold the text."""
    return _LONE.search(text) is None


def spelt(text: str) -> str:
    """The text with every byte that is not UTF-8 as ``\\xe9``, other surrogates as ``\\ud800``.

    This is for people to read: only the text itself opens the file.
    """
    return _LONE.sub(_escape, text)


def refuse_arguments(argv: list[str]) -> None:
    """Refuse arguments that no receipt, report or checkpoint could hold as text.

    Raises:
        UserError: One has bytes that are not UTF-8.
    """
    for before, word in zip(["", *argv], argv, strict=False):
        if not is_utf8(word):
            flag = f"{before} " if before.startswith("--") and not word.startswith("--") else ""
            raise UserError(f"{flag}{spelt(word)}: {_REMEDY}")


def refuse_variables(environment: Mapping[str, str], prefixes: tuple[str, ...]) -> None:
    """Refuse environment variables that give settings in other bytes than UTF-8.

    Args:
        environment: Values by name.
        prefixes: With what the names of the settings begin.

    Raises:
        UserError: One is not UTF-8.
    """
    for name, value in sorted(environment.items()):
        if name.startswith(prefixes) and not is_utf8(name + value):
            raise UserError(f"environment variable {spelt(name)} {spelt(value)}: {_REMEDY}")


def refuse_working_directory() -> None:
    """Refuse a working directory that event files and receipts could not name.

    Raises:
        UserError: Its path is not UTF-8.
    """
    with contextlib.suppress(OSError):  # it was removed: the command says what it misses
        refuse_path("the working directory", os.getcwd())


def refuse_path(said: str, path: str | os.PathLike[str]) -> None:
    """Refuse a path that was found on the disk and would be written into the files of a run.

    Args:
        said: By what the user named it.
        path: What was found.

    Raises:
        UserError: It is not UTF-8.
    """
    if not is_utf8(os.fspath(path)):
        raise UserError(f"{said}: {spelt(os.fspath(path))} is not UTF-8 text; rename the folder")


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


def _by_bytes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return spelt(error.object[error.start : error.end]), error.end


codecs.register_error(BY_BYTES, _by_bytes)
