"""Files that reach the disk whole or not at all."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from llama_lab.errors import RunError

Content = bytes | memoryview | Callable[[IO[bytes]], Any]
"""The bytes of a file, or what writes them into the file that it is given."""


def write_synced(path: Path, content: Content) -> None:
    """Write a new file and wait until the disk has it."""
    with open(path, "xb") as file:
        if isinstance(content, bytes | memoryview):
            file.write(content)
        else:
            content(file)
        file.flush()
        os.fsync(file.fileno())


def replace_synced(path: Path, content: Content) -> None:
    """Write a file so that its name never stands for half of it, even over a power cut.

    The bytes go to a temporary file in the same folder (a rename across file systems would copy),
    are forced to the disk, and take the name in one step. A failure leaves nothing behind.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        write_synced(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: Content) -> None:
    """:func:`replace_synced`, for the files of a run.

    Raises:
        RunError: The disk is full or refuses.
    """
    try:
        replace_synced(path, content)
    except (OSError, RuntimeError) as error:  # torch.save wraps a full disk
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        reason = cause.strerror if cause is not None and cause.strerror else error
        raise RunError(
            f"cannot write {path} ({reason}); what stood there before is untouched"
        ) from error


def json_bytes(content: Any) -> bytes:
    """A file of JSON as people read it, in UTF-8."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    # Only a lone surrogate is not UTF-8, and its escape is what JSON has for it.
    return text.encode("utf-8", "backslashreplace")


def umask() -> int:
    """The mode bits that new files are denied; there is no way to read it without setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
