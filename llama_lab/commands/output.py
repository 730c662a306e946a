"""Standard output of the commands: UTF-8 in every locale, and a reader that may leave early."""

from __future__ import annotations

import io
import os
import sys
from typing import Any

from llama_lab.files import json_bytes
from llama_lab.names import BY_BYTES, spelt


def write_utf8() -> None:
    """Make both outputs UTF-8 with plain line feeds, also in the C locale.

    A name whose bytes are not UTF-8 is told by its bytes.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=BY_BYTES, newline="\n")


def one_line(error: BaseException) -> str:
    """A message as one line that cannot steer a terminal, though it may quote what a file says."""
    text = spelt(" ".join(str(error).split()))
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_json(content: Any) -> None:
    """Print JSON as people read it; a name that is not UTF-8 comes back whole from a parser."""
    print(json_bytes(content).decode(), end="")


def discard_stdout() -> None:
    """Send the rest nowhere, after a BrokenPipeError: the reader (``head``, say) has left.

    Otherwise Python flushes once more at its exit and complains.
    """
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
