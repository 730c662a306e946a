"""Text that any file of a report can hold."""

from __future__ import annotations

import json
import math
from typing import Any


def _visible_characters() -> dict[int, str]:
    controls = {c: chr(0x2400 + c) for c in range(0x20) if chr(c) not in "\n\t"} | {0x7F: "\u2421"}
    turners = [0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    unseen = [*range(0x80, 0xA0), *turners, 0x2028, 0x2029]
    lone = [*range(0xD800, 0xE000), 0xFFFE, 0xFFFF]
    return controls | {c: f"\u27e8U+{c:04X}\u27e9" for c in unseen} | dict.fromkeys(lone, "\ufffd")


_VISIBLE = _visible_characters()


def visible(text: str) -> str:
    """The text with what no page may hold, or what would turn the text around it, made visible.

    NUL and other control characters become their pictures, bidirectional controls their code
    points, lone surrogates U+FFFD. Line feeds and tabs stay.
    """
    return text.translate(_VISIBLE)


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON that every parser reads: numbers that are not finite are null."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
