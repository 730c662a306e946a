"""``generate`` for many prompts: files, JSON lines, standard input; text and JSON, in order."""

from __future__ import annotations

import io
import json
import signal
import sys
from pathlib import Path

import pytest

from tests.runs import conftest
from tests.runs.conftest import Lab, start

lab = conftest.lab


@pytest.fixture
def fitted(lab: Lab) -> Lab:
    lab.fit()
    return lab


def lines_of(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


PROMPTS = ["times ", "1", "", "less one is 12 times", "is"]


def test_a_file_of_prompts_is_continued_in_its_order_each_as_alone(fitted: Lab) -> None:
    Path("prompts.txt").write_text("\n".join(PROMPTS) + "\n", encoding="utf-8")
    many = fitted(
        "generate", "--prompts", "prompts.txt", "--format", "json", "--max_new_tokens", "30",
        "--num_samples", "2", "--batch_size", "3", "--seed", "5",
    )  # fmt: skip
    assert many.code == 0, many.err
    records = lines_of(many.out)
    assert [r["prompt"] for r in records] == [p for p in PROMPTS for _ in range(2)]
    assert [r["seed"] for r in records] == list(range(5, 15))
    assert [r["sample"] for r in records] == [0, 1] * 5
    for record in records[::3]:
        alone = fitted(
            "generate", "--prompt", record["prompt"], "--max_new_tokens", "30",
            "--seed", str(record["seed"]),
        )  # fmt: skip
        assert alone.out == record["prompt"] + record["text"] + "\n"
        assert len(record["tokens"]) == len(record["logprobs"]) == 30
        assert record["ended"] == "length"
        assert record["seconds"] > 0
    text = fitted(
        "generate", "--prompts", "prompts.txt", "--max_new_tokens", "30", "--num_samples", "2",
        "--seed", "5",
    )  # fmt: skip
    assert text.out == "".join(r["prompt"] + r["text"] + "\n" for r in records)


def test_json_lines_keep_their_fields_and_standard_input_is_read(
    fitted: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("p.jsonl").write_text(
        '{"prompt": "is\\n", "id": 7}\n{"prompt": "1", "text": "x"}\n', encoding="utf-8"
    )
    out = fitted("generate", "--prompts", "p.jsonl", "--format", "json", "--max_new_tokens=3").out
    records = lines_of(out)
    assert [(r["prompt"], r.get("id")) for r in records] == [("is\n", 7), ("1", None)]
    assert records[1]["text"] != "x"
    stdin = io.TextIOWrapper(io.BytesIO(b"is\n1"))
    monkeypatch.setattr(sys, "stdin", stdin)
    piped = fitted("generate", "--prompts", "-", "--format", "json", "--max_new_tokens=3").out
    assert [r["prompt"] for r in lines_of(piped)] == ["is", "1"]


def test_stop_strings_and_tokens_end_a_text(fitted: Lab) -> None:
    flags = ("generate", "--prompt", "1 ", "--max_new_tokens", "200", "--seed", "1")
    whole = fitted(*flags).out.removesuffix("\n")
    assert "\n" in whole
    stopped = fitted(*flags, "--stop", "\\n", "--format", "json").out
    (record,) = lines_of(stopped)
    assert "1 " + record["text"] == whole.split("\n")[0]
    assert record["ended"] == "stop_string"
    streamed = fitted(*flags, "--stop", '["\\\\n", "never"]').out
    assert streamed == "1 " + record["text"] + "\n"
    token = record["tokens"][5]
    (by_token,) = lines_of(fitted(*flags, "--stop_tokens", str(token), "--format=json").out)
    assert by_token["ended"] == "stop_token"
    assert by_token["tokens"] == record["tokens"][: record["tokens"].index(token)]
    refusal = fitted.refused(*flags, "--stop_tokens", "<|nowhere|>")
    assert "--stop_tokens <|nowhere|>: no such token" in refusal


def test_top_tokens_show_what_else_was_weighed(fitted: Lab) -> None:
    flags = ("generate", "--prompt", "1 ", "--max_new_tokens", "4", "--top_tokens", "2")
    lines = fitted(*flags).out.splitlines()
    (record,) = lines_of(fitted(*flags, "--format", "json").out)
    assert len(lines) == len(record["top_tokens"]) == 4
    for line, top in zip(lines, record["top_tokens"], strict=True):
        assert [len(top), line.count("%")] == [2, 3]
        assert f"{top[0]['token']!r}" in line


def test_the_longest_shared_passage_is_told(fitted: Lab) -> None:
    flags = ("generate", "--prompt", "1 ", "--max_new_tokens", "60", "--share_with", "text.txt")
    told = fitted(*flags)
    (record,) = lines_of(fitted(*flags, "--format", "json").out)
    text = Path("text.txt").read_text(encoding="utf-8")
    assert record["shared"]
    assert record["shared"] in text
    longer = len(record["shared"]) + 1
    starts = range(len(record["text"]) - longer + 1)
    assert not any(record["text"][i : i + longer] in text for i in starts)
    assert f"{len(record['shared'])} of {len(record['text'])} characters" in told.err
    assert "--share_with nowhere.txt" in fitted.refused(*flags[:-1], "nowhere.txt")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompts", "nowhere.txt"], "--prompts nowhere.txt: No such file"),
        (["--prompts", "empty.txt"], "--prompts empty.txt: holds no line"),
        (["--prompts", "bad.jsonl"], "--prompts bad.jsonl, line 1: no object with a text"),
        (["--prompts", "odd.txt"], "--prompts odd.txt, line 1: not UTF-8"),
        (["--prompts", "é.txt"], "--prompts é.txt, line 1: "),
        (["--prompts", "empty.txt", "--prompt", "a"], "give one of them"),
        (["--prompt", "1", "--batch_size", "3"], "--batch_size 3 would do nothing"),
        (["--prompt", "1", "--stop", ""], "--stop: an empty string"),
        (["--interactive", "true", "--format", "json"], "--format json would do nothing"),
        (["--top_tokens", "-1"], "--top_tokens -1: must be 0 or more"),
    ],
)
def test_what_cannot_be_read_is_named(fitted: Lab, arguments: list[str], words: str) -> None:
    Path("empty.txt").write_text("", encoding="utf-8")
    Path("bad.jsonl").write_text('["1"]\n', encoding="utf-8")
    Path("odd.txt").write_bytes(b"\xff\n")
    Path("é.txt").write_text("ß\n", encoding="utf-8")
    assert words in fitted.refused("generate", *arguments)


def test_a_line_that_cannot_be_read_ends_the_command_behind_the_others(fitted: Lab) -> None:
    Path("p.jsonl").write_text('{"prompt": "1"}\n{"prompt": "2"}\n{}\n', encoding="utf-8")
    ended = fitted("generate", "--prompts", "p.jsonl", "--format=json", "--max_new_tokens=3")
    assert ended.code == 2
    assert [record["prompt"] for record in lines_of(ended.out)] == ["1", "2"]
    assert "--prompts p.jsonl, line 3: no object" in ended.err


def test_ctrl_c_writes_what_there_is(fitted: Lab) -> None:
    Path("prompts.txt").write_text("1\n2\n3\n", encoding="utf-8")
    process = start(
        fitted.folder, "generate", "--prompts", "prompts.txt", "--format", "json",
        "--max_new_tokens", "100000", "--batch_size", "2",
    )  # fmt: skip
    assert process.stderr is not None
    process.stderr.readline()  # the model is loaded
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert {record["ended"] for record in lines_of(out)} <= {"interrupted"}
