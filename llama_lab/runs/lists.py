"""Lists among the settings: what a later list leaves out of an earlier one is said."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from llama_lab.yaml_text import parse_yaml

LISTS = (
    "trainer.callbacks",
    "trainer.logger",
    "trainer.plugins",
    "data.corpus",
    "data.val_corpus",
)


class Listed(NamedTuple):
    """A list that was given somewhere.

    Attributes:
        source: Where: a config, a checkpoint, an environment variable, a flag.
        name: The setting, dotted.
        items: What is in it.
    """

    source: str
    name: str
    items: list[Any]


def lists_in(settings: Mapping[str, Any], source: str) -> list[Listed]:
    """The lists in settings, which may be nested, dotted, or both."""
    return [
        Listed(source, name, items) for name in LISTS if (items := _as_list(_under(settings, name)))
    ]


def lists_among(words: list[str]) -> list[Listed]:
    """The lists that flags give, each in the place of what came before: not those with ``+=``."""
    lists: list[Listed] = []
    for word, following in pairwise([*words, ""]):
        flag, equals, value = word.partition("=")
        if (name := flag.removeprefix("--")) in LISTS:
            content = parse_yaml(value if equals else following, flag)
            lists += lists_in({name: content}, f"an earlier {flag}")
    return lists


class LeftOut(NamedTuple):
    """What a later list leaves out of an earlier one, in words, and how a flag keeps it."""

    said: str
    remedy: str

    def __str__(self) -> str:
        return "; ".join(filter(None, self))


def left_out(earlier: Iterable[Listed], settings: Mapping[str, Any]) -> list[LeftOut]:
    """Every list of which something did not reach the settings that count.

    Args:
        earlier: The lists that were given, in any order.
        settings: Nested, as they were resolved.
    """
    found: dict[LeftOut, None] = {}
    for source, name, items in earlier:
        is_text = name.startswith("data.")
        if is_text and len(items) == 1:
            continue  # one text in the place of another is what was asked for
        now = [_entry(item, is_text) for item in _as_list(_under(settings, name))]
        missing = [word for item in items if (word := _entry(item, is_text)) not in now]
        if missing:
            kept, verb = ("it", "is") if len(missing) == 1 else ("them", "are")
            remedy = "" if is_text or not now else f"to keep {kept}, write --{name}+={now[-1]}"
            there = f"{', '.join(missing)} from {source} {verb} left out"
            found[LeftOut(f"--{name} {', '.join(now) or 'null'}: {there}", remedy)] = None
    return list(found)


def _under(settings: Mapping[str, Any], name: str) -> Any:
    """The value of a dotted name."""
    if name in settings:
        return settings[name]
    group, _, rest = name.partition(".")
    inner = settings.get(group)
    return _under(inner, rest) if rest and isinstance(inner, Mapping) else None


def _as_list(value: Any) -> list[Any]:
    if value is None or isinstance(value, bool):
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _entry(item: Any, is_text: bool) -> str:
    """A text's name, or a class's, whatever its settings."""
    if is_text:
        return str(item)
    path = item.get("class_path", "") if isinstance(item, Mapping) else item
    return str(path).rsplit(".", 1)[-1]
