"""Settings in YAML: nothing stands twice, names stay text, and numbers are numbers."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_lab.errors import UserError
from llama_lab.yaml_text import as_text, dump_yaml, parse_yaml

ODD = (
    *("010", "0o10", "0x1F", "1:30", "on", "off", "yes", "no", "On", "y", "1e3", "1e-3"),
    *("2024-01-01", "1_000", "+5", "-0", ".5", "5.", "null", "~", "true"),
)


@pytest.mark.parametrize("word", ODD)
def test_a_key_is_the_text_that_was_written(word: str) -> None:
    assert parse_yaml(f"arms: {{{word}: {{}}}}", "a") == {"arms": {word: {}}}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *((word, word) for word in ("on", "yes", "no", "010", "1:30", "0x1F", "2024-01-01", "_1")),
        *(("1e3", 1000.0), ("1e-3", 0.001), ("1.0e+4", 10000.0), (".5", 0.5), ("5.", 5.0)),
        *(("1_000", 1000), ("+5", 5), ("-0", 0), ("7", 7), (".inf", float("inf"))),
        *(("true", True), ("False", False), ("null", None), ("~", None), ("", None)),
        *(("'1e3'", "1e3"), ('"true"', "true")),
    ],
)
def test_an_unquoted_value_is_read_by_the_spelling_of_yaml_1_2(word: str, value: Any) -> None:
    found = parse_yaml(f"a: {word}", "a")["a"]
    assert found == value
    assert isinstance(found, type(value))


@pytest.mark.parametrize("word", ["1e3", "1.50", "1_000", "+5", "-0", "7", ".5", "true"])
def test_a_number_that_is_meant_as_text_is_the_text_that_was_written(word: str) -> None:
    assert as_text(parse_yaml(f"a: {word}", "a")["a"]) == word
    assert dump_yaml(parse_yaml(f"a: {word}", "a")) == f"a: {word}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3", "file.yaml: a stands twice, in lines 1 and 3; keep one"),
        ("a: {b: 1, b: 1}", "file.yaml: b stands twice, in lines 1 and 1; keep one"),
        ("a:\n- b: 1\n  c: 2\n  b: 3", "file.yaml: b stands twice, in lines 2 and 4; keep one"),
        ('{"a": 1, a: 2}', "file.yaml: a stands twice, in lines 1 and 1; keep one"),
        ("a: [", "file.yaml: not a YAML file (while parsing a flow node"),
        ("? [1]\n: 2", "file.yaml: not a YAML file (while constructing a mapping"),
        ("a: &a {b: *a}", "file.yaml: not a YAML file (an alias stands within what it names"),
        ("a: " + "[" * 5000, "file.yaml: not a YAML file ("),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse_yaml(text, "file.yaml")
    assert str(refusal.value).startswith(words)
    assert "\n" not in str(refusal.value)


def test_anchors_and_merges_are_no_doubles() -> None:
    text = "base: &base {a: 1, b: 2}\narm: {<<: *base, b: 3}\nother: *base"
    assert parse_yaml(text, "a")["arm"] == {"a": 1, "b": 3}


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.sampled_from(ODD),
    st.text(),
)
CONTENT = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(), CONTENT))
def test_settings_come_back_from_the_text_that_they_are_written_as(content: Any) -> None:
    text = dump_yaml(content)
    assert parse_yaml(text, "a") == content
    # Readers of YAML 1.1 take a float such as 1e-05, but no text, for something else.
    assert yaml.safe_load(text) == content
