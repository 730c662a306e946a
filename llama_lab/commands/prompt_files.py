"""Prompts of ``llama-lab generate``: one argument, a file of lines, JSON lines, standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from llama_lab.errors import UserError

JSON_LINES = (".jsonl", ".ndjson")
FIELD = "prompt"


class Prompt(NamedTuple):
    """A text to continue.

    Attributes:
        text: The text; none or an empty one begins a text.
        named: What messages call it.
        fields: What else its JSON line holds.
    """

    text: str | None
    named: str
    fields: dict[str, Any]


def one_prompt(text: str | None) -> Iterator[Prompt]:
    """The prompt of the command line."""
    yield Prompt(text, "--prompt", {})


def read_prompts(name: str, flag: str = "--prompts") -> Iterator[Prompt]:
    """The prompts of a file, read line by line as they are needed.

    Args:
        name: The file, or - for standard input.
        flag: The setting that names it.

    Raises:
        UserError: It cannot be read, is not UTF-8, or a line is no object with a ``prompt``.
    """
    with ExitStack() as opened:
        lines: Iterable[bytes] = sys.stdin.buffer
        if name != "-":
            try:
                lines = opened.enter_context(Path(name).open("rb"))
            except OSError as error:
                raise UserError(
                    f"{flag} {name}: {error.strerror}; give a file of prompts, or - for "
                    "standard input"
                ) from error
        is_json = Path(name).suffix in JSON_LINES
        found = False
        for number, raw in enumerate(lines, start=1):
            found = True
            where = f"{flag} {name}, line {number}"
            try:
                line = raw.decode().removeprefix("\ufeff") if number == 1 else raw.decode()
            except UnicodeDecodeError as error:
                raise UserError(f"{where}: not UTF-8 text; write the file in UTF-8") from error
            line = line.removesuffix("\n").removesuffix("\r")
            yield _of_json(line, where) if is_json else Prompt(line, where, {})
        if not found:
            raise UserError(f"{flag} {name}: holds no line; write a prompt into each line")


def _of_json(line: str, where: str) -> Prompt:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{where}: not JSON ({error.msg}); write an object into each line"
        ) from error
    text = fields.pop(FIELD, None) if isinstance(fields, dict) else None
    if not isinstance(text, str):
        raise UserError(f'{where}: no object with a text under "{FIELD}"; give it one')
    return Prompt(text, where, fields)
