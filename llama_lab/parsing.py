"""The argument parser: jsonargparse, with every error as one readable line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple, NoReturn, get_args

from docstring_parser.attrdoc import AttributeDocstrings
from jsonargparse import ArgumentParser, set_parsing_settings

from llama_lab.configs import nearest
from llama_lab.errors import UserError

# Without it the docstring under a config's field does not reach `--help`.
set_parsing_settings(docstring_parse_attribute_docstrings=True)


@cache
def _attribute_docs(component: Any) -> dict[str, Any]:
    return _read_attribute_docs(AttributeDocstrings(), component)


# A study parses its arms one after another, each by a parser that Lightning builds anew: the source
# of a class is read once.
_read_attribute_docs = AttributeDocstrings.get_attr_docs
AttributeDocstrings.get_attr_docs = lambda _, component: _attribute_docs(component)  # type: ignore

_TYPE_WORDS = {
    "tuple": "a list",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "NoneType": "null",
}

OF_FIT = ("--model.", "--data.", "--trainer.")
"""With what the flags of ``fit`` begin that say what is trained, and how."""

# Lightning also takes a part of an epoch; here it counts steps.
COUNTS = ("--trainer.val_check_interval",)


class Flag(NamedTuple):
    """A setting on the command line."""

    name: str
    value: str


class Parser(ArgumentParser):
    """An ArgumentParser whose errors are :class:`UserError`, one line each."""

    def parse_args(self, args: Sequence[str], **options: Any) -> Any:  # type: ignore[override]
        """Parse; 1e4 is a whole number where one is due."""
        return super().parse_args(whole_numbers(self, args), **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise UserError(readable(message, self._option_string_actions)) from ex


def kinds_of(parser: ArgumentParser, flag: str) -> set[Any]:
    """The types that a flag's value may have; none for what is no flag."""
    action = parser._option_string_actions.get(flag)
    hint = getattr(action, "type", None) or getattr(action, "_typehint", None)
    kinds = set(get_args(hint)) or ({hint} if hint else set())
    return kinds - {float} if flag in COUNTS else kinds


def whole_numbers(parser: ArgumentParser, words: Sequence[str]) -> list[str]:
    """The words, with 1e4 as 10000 where a flag takes whole numbers: YAML takes it for a float."""
    arranged: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        if not equals:
            flag, value = (arranged or [""])[-1], word
        kinds = kinds_of(parser, flag)
        is_whole = int in kinds and kinds <= {int, type(None)}
        number = _whole(value) if is_whole else None
        arranged.append(word if number is None else f"{flag}={number}" if equals else str(number))
    return arranged


def _whole(word: str) -> int | None:
    """The whole number that a word such as 1e4, 2.5e3 or 10.0 writes as a float, if it does."""
    if not re.fullmatch(r"[+-]?\d+(\.\d*)?([eE]\+?\d{1,2})?", word) or word.lstrip("+-").isdigit():
        return None
    number = Decimal(word)
    return int(number) if number == number.to_integral_value() else None


def split_flags(argv: list[str], prefixes: tuple[str, ...]) -> tuple[list[str], list[Flag]]:
    """A command's own arguments, and those flags, each with its value, that are for another.

    Raises:
        UserError: Such a flag has no value.
    """
    own: list[str] = []
    flags: list[Flag] = []
    words = iter(argv)
    for word in words:
        flag, equals, value = word.partition("=")
        if not flag.startswith(prefixes):
            own.append(word)
            continue
        following = value if equals else next(words, None)
        if following is None:
            raise UserError(f"{flag}: its value is missing")
        flags.append(Flag(flag, following))
    return own, flags


def readable(message: str, flags: Iterable[str]) -> str:
    """A parser's message as one line: the setting, the value that arrived, what it takes.

    Args:
        message: What jsonargparse or argparse says, maybe over several lines.
        flags: Every flag of the parser, for the nearest one to a misspelt one.
    """
    if found := re.search(r"unrecognized arguments: (\S+)", message):
        return _unknown(found[1], flags)
    if found := re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'", message):
        return _unknown(f"--{found[1]}.{found[2]}", flags)
    if found := re.search(r"Option '([\w.]+)' is not accepted", message):
        return _unknown(f"--{found[1]}", flags)
    if found := re.search(r"argument (\S+): expected one argument", message):
        return (
            f"{found[1]}: its value is missing; write {found[1]} VALUE, "
            f"or {found[1]}=VALUE where the value begins with a dash"
        )
    if found := re.search(r"arguments are required: (.+)", message):
        return f"{found[1]} is missing; --help shows the call"
    if found := re.search(r"Unable to load config ['\"](.*?)['\"]", message):
        flag = re.search(r'Parser key "([\w.]+)"', message)
        setting = f"--{flag[1]} " if flag else ""
        return f"{setting}{found[1]}: neither a file nor a mapping of settings"
    if found := re.match(r'(?s)Parser key "([\w.]+)":(.*?)(?:Got|Given) value: (.*)', message):
        flag_name, explanation, value = found.groups()
        # A union's refusals nest; the last line of them has the value as it was written.
        value = value.rpartition("Given value: ")[2]
        value = {"None": "null", "True": "true", "False": "false"}.get(value.strip(), value.strip())
        return f"--{flag_name} {_one_line(value)}: must be {_expected(explanation)}"
    return _one_line(message)


def _unknown(argument: str, flags: Iterable[str]) -> str:
    flag = argument.split("=", 1)[0]
    if not flag.startswith("-"):
        return f"{argument}: one argument too many; --help shows the call"
    guess = nearest(flag, flags)
    return f"{flag}: no such setting; " + (f"did you mean {guess}?" if guess else "see --help")


def _expected(explanation: str) -> str:
    """``int``, ``Literal`` and their unions in words, in the order in which they are declared."""
    if length := re.search(r"tuple with (\d+) elements", explanation):
        return f"a list of {length[1]} values"
    # A union is listed whole first and then error by error; the list is enough.
    types = re.search(r"Subtypes: (.*)", explanation)
    text = types[1] if types else explanation
    words: list[str] = []
    for literal, name in re.findall(r"Literal\[([^\]]*)\]|<class '(\w+)'>", text):
        words += re.findall(r"'([^']*)'", literal)
        words += [_TYPE_WORDS.get(name, name)] if name else []
    return " or ".join(words) if words else _one_line(explanation)


def _one_line(text: str) -> str:
    return " ".join(text.split())
