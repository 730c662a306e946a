"""Parser errors: one line with the setting, the value that arrived, and what it takes."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from llama_lab.errors import UserError
from llama_lab.parsing import Parser, readable


@dataclass(frozen=True, kw_only=True)
class Inner:
    """An inner group."""

    kind: Literal["half", "interleaved"] | None = None
    """Documented kind."""
    bias: bool | None = None
    """Documented bias."""


@dataclass(frozen=True, kw_only=True)
class Outer:
    """An outer group."""

    dim: int = 4
    """Documented width."""
    rate: float = 0.5
    """Documented rate."""
    inner: Inner = field(default_factory=Inner)
    """An inner group."""


def parser() -> Parser:
    made = Parser(prog="some command")
    made.add_argument("NAME", type=str, help="A name.")
    made.add_argument("--format", type=Literal["table", "json"], default="table", help="Format.")
    made.add_class_arguments(Outer, "model")
    return made


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--format", "xml"], "--format xml: must be table or json"),
        (["--model.dim", "wide"], "--model.dim wide: must be a whole number"),
        (["--model.dim", "null"], "--model.dim null: must be a whole number"),
        (["--model.dim", "[1,\n 2]"], "--model.dim [1, 2]: must be a whole number"),
        (["--model.rate", "fast"], "--model.rate fast: must be a number"),
        (
            ["--model.inner.kind", "full"],
            "--model.inner.kind full: must be half or interleaved or null",
        ),
        (["--model.inner.bias", "5"], "--model.inner.bias 5: must be true or false or null"),
        (
            ["--model.inner", "nowhere.yaml"],
            "--model.inner nowhere.yaml: neither a file nor a mapping of settings",
        ),
        (["--frmat", "json"], "--frmat: no such setting; did you mean --format?"),
        (["--model.dmi=5"], "--model.dmi: no such setting; did you mean --model.dim?"),
        (
            ["--model.inner", '{"knd": "half"}'],
            "--model.inner.knd: no such setting; did you mean --model.inner.kind?",
        ),
        (["--qqqqqqqqqqqqqqqqqqqqq", "1"], "--qqqqqqqqqqqqqqqqqqqqq: no such setting; see --help"),
        (["again"], "again: one argument too many; --help shows the call"),
    ],
)
def test_a_refused_call_is_one_line(arguments, line):
    with pytest.raises(UserError) as refused:
        parser().parse_args(["name", *arguments])
    assert str(refused.value) == line


def test_a_missing_argument_and_a_missing_value_are_named():
    with pytest.raises(UserError, match=r"^NAME is missing"):
        parser().parse_args([])
    with pytest.raises(UserError, match=r"^--format: its value is missing; write --format VALUE"):
        parser().parse_args(["name", "--format"])


def test_a_message_of_another_kind_is_folded_into_one_line():
    assert readable("first\n  second\n", []) == "first second"


def test_help_holds_the_docstring_of_every_field():
    text = parser().format_help()
    for words in ("Documented kind.", "Documented bias.", "Documented width.", "Documented rate."):
        assert words in text


@pytest.mark.parametrize(("word", "number"), [("1e4", 10_000), ("2.5e3", 2_500), ("12.0", 12)])
def test_a_whole_number_is_one_however_it_is_written(word: str, number: int) -> None:
    for arguments in (["--model.dim", word], [f"--model.dim={word}"]):
        assert parser().parse_args(["a", *arguments]).model.dim == number
    assert parser().parse_args(["1e4", "--model.rate=1e4"]).NAME == "1e4"
    with pytest.raises(UserError, match=r"^--model.dim 0.1: must be a whole number$"):
        parser().parse_args(["a", "--model.dim", "1e-1"])
