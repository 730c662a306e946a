"""Values out of a foreign ``config.json``: each is checked before it is used."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from llama_lab.errors import UserError
from llama_lab.model.settings import is_number, shown

LARGEST_TEXT = 1 << 28  # bytes: the largest tokenizer.json about is a seventh of it
# Bytes of JSON that is read whole, which may take 50 times as many: of a config, and of an index of
# 100,000 tensors.
LARGEST_CONFIG, LARGEST_INDEX = 1 << 20, 1 << 24
# The largest size of any one thing; a file that claims more is wrong, and costs time to disprove.
LARGEST = 1 << 24
LARGEST_COUNT = 1 << 16  # of layers, heads, or a head's width


def read_json(path: Path, *, most: int = LARGEST_CONFIG) -> dict[str, Any]:
    """A JSON file of at most so many bytes that holds an object.

    Raises:
        UserError: It is missing, too large, or anything else.
    """
    return parsed(read_text(path, most=most), path)


def parsed(text: str, path: Path) -> dict[str, Any]:
    """The object that a file's text holds.

    Raises:
        UserError: It holds anything else.
    """
    try:
        content = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: must hold a JSON object, not {type(content).__name__}")
    return content


def read_text(path: Path, *, most: int = LARGEST_TEXT) -> str:
    """A UTF-8 file of at most so many bytes, with the line ends that it has."""
    if not path.is_file():
        raise UserError(f"{path}: {missing(path)}")
    size = path.stat().st_size
    if size > most:
        raise UserError(f"{path}: {size:,} bytes are too many for such a file")
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text ({error})") from error


def missing(path: Path) -> str:
    """What is wrong where no file is: nothing is, or a folder, a pipe or a broken link."""
    return "not a file" if os.path.lexists(path) else "no such file"


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


class Values:
    """A foreign config's values, by key; ``null`` counts as absent.

    Every method raises :class:`UserError` where the value is not what it asks for.

    Args:
        content: Values by key.
        where: What the errors begin with, such as ``folder/config.json: rope_parameters.``.
    """

    REQUIRED: Any = object()

    def __init__(self, content: Mapping[str, Any], where: str) -> None:
        self.content, self.where = content, where

    def get(self, key: str) -> Any:
        """The value as it stands, ``None`` where it is absent."""
        return self.content.get(key)

    def refuse(self, key: str, remedy: str) -> NoReturn:
        """Say what is wrong with the value of ``key``."""
        value = shown(self.content.get(key))
        raise UserError(f"{self.where}{key} {value[:80]}: {remedy}")

    def whole(
        self, key: str, default: Any = REQUIRED, *, least: int = 1, most: int = LARGEST
    ) -> Any:
        """A whole number from ``least`` to ``most``."""
        value = self._value(key, default)
        if value is default:
            return value
        if not (isinstance(value, int) and not isinstance(value, bool) and least <= value <= most):
            self.refuse(key, f"must be a whole number from {least} to {most:,}")
        return value

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """A finite number above 0."""
        value = self._value(key, default)
        if value is default:
            return value
        if not (is_number(value) and 0 < value <= sys.float_info.max):
            self.refuse(key, "must be a finite number above 0")
        return float(value)

    def switch(self, key: str, default: Any = REQUIRED) -> Any:
        """True or false."""
        value = self._value(key, default)
        if value is not default and not isinstance(value, bool):
            self.refuse(key, "must be true or false")
        return value

    def word(self, key: str, words: Mapping[str, str], default: Any = REQUIRED) -> str:
        """What ``words`` make of the value, which must be one of them."""
        value = self._value(key, default)
        if not isinstance(value, str) or value not in words:
            self.refuse(key, f"this version reads {', '.join(words)}")
        return words[value]

    def items(self, key: str, kinds: tuple[Any, ...], length: int) -> list[Any] | None:
        """A list of ``length`` values out of ``kinds``, or ``None`` where it is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length or any(v not in kinds for v in value):
            self.refuse(key, f"must be a list of {length} out of {', '.join(map(str, kinds))}")
        return value[:length]

    def group(self, key: str) -> Values | None:
        """The values under ``key``, or ``None`` where it is absent."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(key, "must be an object")
        return Values(value, f"{self.where}{key}.")

    def renamed(self, names: Mapping[str, str]) -> Values:
        """The values with each key of ``names`` under the key that it is another name of."""
        content = dict(self.content)
        for other, key in names.items():
            value = content.pop(other, None)
            if value is None:
                continue
            if content.get(key) not in (None, value):
                self.refuse(other, f"contradicts {key} {content[key]}; keep one of the two")
            content[key] = value
        return Values(content, self.where)

    @property
    def place(self) -> str:
        """The group's name within its file, such as ``rope_parameters``."""
        return self.where.rpartition(": ")[2].removesuffix(".")

    def _value(self, key: str, default: Any) -> Any:
        value = self.get(key)
        if value is not None:
            return value
        if default is self.REQUIRED:
            raise UserError(f"{self.where}{key} is missing")
        return default


def agreed(places: Iterable[tuple[Values, str]]) -> float | None:
    """The number that may stand in several places; ``None`` where it stands in none.

    Raises:
        UserError: Two places disagree, or a value is no number above 0.
    """
    found: tuple[str, float] | None = None
    for values, key in places:
        value = values.number(key, None)
        if value is None:
            continue
        if found is not None and value != found[1]:
            values.refuse(key, f"contradicts {found[0]} {found[1]}; keep one of the two")
        found = found or (f"{values.place}.{key}".removeprefix("."), value)
    return None if found is None else found[1]
