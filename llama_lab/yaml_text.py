"""YAML of settings: no key appears twice, and names stay the text that was written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from llama_lab.errors import UserError
from llama_lab.names import is_utf8

_TAG = "tag:yaml.org,2002:"
_STRING, _MERGE = f"{_TAG}str", f"{_TAG}merge"
_FLOAT = r"[-+]?(\d[\d_]*\.[\d_]*([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.[\d_]+([eE][-+]?\d+)?)"
# YAML 1.1 would also read on, no, 010 and 1:30 as true, false, 8 and 90, and 1e-3 as text.
_PLAIN = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(0|[1-9][\d_]*)", "-+0123456789"),
    ("float", rf"{_FLOAT}|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+.0123456789"),
    ("merge", r"<<", "<"),
)


class OddInt(int):
    """A whole number that was not written as Python writes it, such as 1_000."""

    written: str


class OddFloat(float):
    """A number that was not written as Python writes it, such as 1e3: it may be meant as text."""

    written: str


def as_text(value: Any) -> Any:
    """A number or truth value as it was written; anything else as it is."""
    if isinstance(value, OddInt | OddFloat):
        return value.written
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def parse_yaml(text: str, source: str) -> Any:
    """The plain content of a text.

    A key is always text, so that an arm may be called ``on`` or ``010``. An unquoted value is a
    number, true, false or null by YAML 1.2's spelling, and text otherwise.

    Args:
        text: YAML, or JSON.
        source: Where it comes from, for messages.

    Raises:
        UserError: It is no YAML, or a key stands twice in it.
    """
    try:
        loader = _Loader(text)
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise _no_yaml(source, error) from error
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _refuse_doubled(root, source)
        return loader.construct_document(root)
    except (yaml.YAMLError, RecursionError) as error:
        raise _no_yaml(source, error) from error
    finally:
        loader.dispose()


def _no_yaml(source: str, error: Exception) -> UserError:
    return UserError(f"{source}: not a YAML file ({' '.join(str(error).split())})")


def dump_yaml(content: Any) -> str:
    """Settings as YAML that every reader takes alike: a text like 1e3 or on is in quotes."""
    return str(yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


class _Loader(yaml.SafeLoader):
    """Keys are text; plain values are resolved by YAML 1.2's rules."""

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                key.tag = _STRING
        return node

    def compose_scalar_node(self, anchor: str | None) -> yaml.ScalarNode:
        """One value. JSON escapes a character as two surrogates; one alone is no text."""
        node: yaml.ScalarNode = super().compose_scalar_node(anchor)
        if not is_utf8(node.value):
            try:
                node.value = node.value.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError as error:
                reason = "half of a surrogate pair, which UTF-8 cannot hold"
                raise yaml.MarkedYAMLError(reason, node.start_mark) from error
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        return _with_spelling(OddInt(super().construct_yaml_int(node)), node)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        return _with_spelling(OddFloat(super().construct_yaml_float(node)), node)


def _with_spelling(number: Any, node: yaml.ScalarNode) -> Any:
    """A plain number, or one that remembers how it was written where that was another way."""
    plain = number.real
    if repr(plain) == node.value:
        return plain
    number.written = node.value
    return number


class _Dumper(yaml.SafeDumper):
    """Puts in quotes what YAML 1.1 or 1.2 would take for something else than text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, text: str) -> yaml.ScalarNode:
        """Text; other quotes than double ones turn Unicode's own line breaks into blanks."""
        style = '"' if re.search("[\x85\u2028\u2029]", text) else None
        return self.represent_scalar(_STRING, text, style=style)

    def represent_odd(self, number: OddInt | OddFloat) -> yaml.ScalarNode:
        """As it was written."""
        kind = "int" if isinstance(number, int) else "float"
        return self.represent_scalar(f"{_TAG}{kind}", number.written)


_Dumper.add_representer(str, _Dumper.represent_str)
for _odd in (OddInt, OddFloat):
    _Dumper.add_representer(_odd, _Dumper.represent_odd)
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)
_Loader.add_constructor(f"{_TAG}float", _Loader.construct_yaml_float)
_Loader.yaml_implicit_resolvers = {}
for _kind, _pattern, _first in _PLAIN:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"{_TAG}{_kind}", re.compile(f"^({_pattern})$"), list(_first))


def _refuse_doubled(root: yaml.Node, source: str) -> None:
    """Refuse a key that stands twice in one mapping; readers would take the last in silence."""
    for mapping in _mappings(root, set(), ()):
        first: dict[str, yaml.Node] = {}
        for key, _ in mapping.value:
            other = first.setdefault(key.value, key) if isinstance(key, yaml.ScalarNode) else key
            if other is not key:
                lines = f"{other.start_mark.line + 1} and {key.start_mark.line + 1}"
                raise UserError(f"{source}: {key.value} stands twice, in lines {lines}; keep one")


def _mappings(
    node: yaml.Node, seen: set[int], above: tuple[int, ...]
) -> Iterator[yaml.MappingNode]:
    """Every mapping in a text, each once however many aliases name it."""
    if id(node) in above:
        raise yaml.MarkedYAMLError("an alias stands within what it names", node.start_mark)
    if id(node) in seen or isinstance(node, yaml.ScalarNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        yield node
    for entry in node.value:
        for child in entry if isinstance(entry, tuple) else (entry,):
            yield from _mappings(child, seen, (*above, id(node)))
