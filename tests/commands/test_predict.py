"""``predict``: a file's order, any number of devices, and going on where a call was ended."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.runs import conftest
from tests.runs.conftest import Lab, start

lab = conftest.lab
PROMPTS = [f"{i} times {i} is" for i in range(40)] + ["", "1"]
OF_THE_CLOCK = ("seconds", "tokens_per_second")


@pytest.fixture
def fitted(lab: Lab) -> Lab:
    lab.fit()
    Path("prompts.txt").write_text("\n".join(PROMPTS) + "\n", encoding="utf-8")
    return lab


def call(output: str, *more: str, n: int = 12) -> list[str]:
    return [
        "predict", "--data.prompts", "prompts.txt", "--output", output, "--max_new_tokens", str(n),
        "--seed", "3", "--trainer.accelerator", "cpu", *more,
    ]  # fmt: skip


def texts(output: str) -> list[dict]:
    records = [json.loads(line) for line in Path(output).read_text(encoding="utf-8").splitlines()]
    return [{k: v for k, v in r.items() if k not in (*OF_THE_CLOCK, "logprobs")} for r in records]


def test_every_prompt_is_continued_in_the_files_order(fitted: Lab) -> None:
    assert fitted(*call("out.jsonl")).code == 0
    found = texts("out.jsonl")
    assert [r["prompt"] for r in found] == PROMPTS
    assert [r["seed"] for r in found] == list(range(3, 3 + len(PROMPTS)))
    alone = fitted("generate", "--prompt", PROMPTS[7], "--seed", "10", "--max_new_tokens", "12")
    assert alone.out == PROMPTS[7] + found[7]["text"] + "\n"
    assert not Path("out.jsonl.parts").exists()
    assert "--output out.jsonl: exists" in fitted.refused(*call("out.jsonl"))


def test_a_killed_call_goes_on_where_it_stopped(fitted: Lab) -> None:
    assert fitted(*call("whole.jsonl", n=200)).code == 0
    process = start(fitted.folder, *call("out.jsonl", n=200))
    parts = Path("out.jsonl.parts")
    deadline = time.monotonic() + 60
    while sum(len(part.read_bytes().splitlines()) for part in parts.glob("*.jsonl")) < 9:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    (part,) = parts.glob("*.jsonl")
    part.write_bytes(part.read_bytes() + b'9\t{"prompt')  # a line that was not written whole
    other = [word if word != "3" else "4" for word in call("out.jsonl", n=200)]
    refusal = fitted(*other)
    assert refusal.code == 2
    assert "holds texts with --seed 3, and this call has 4" in refusal.err
    again = fitted(*call("out.jsonl", n=200))
    assert again.code == 0
    assert "texts are there already" in again.err
    assert texts("out.jsonl") == texts("whole.jsonl")


@pytest.mark.slow
def test_several_processes_write_the_same_file(fitted: Lab) -> None:
    assert fitted(*call("one.jsonl")).code == 0
    environment = {**os.environ}
    process = start(fitted.folder, *call("two.jsonl", "--trainer.devices", "2"), **environment)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert texts("two.jsonl") == texts("one.jsonl")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data.prompts", "-"], "--data.prompts -: standard input cannot be read again"),
        (["--data.prompts", "nowhere.txt"], "--data.prompts nowhere.txt: No such file"),
        (["--output", "nowhere/out.jsonl"], "--output nowhere/out.jsonl: its folder is not there"),
        (["--num_samples", "2"], "--num_samples 2: predict writes one text a prompt"),
        (["--data.batch_size", "0"], "--data.batch_size 0: must be 1 or more"),
    ],
)
def test_what_makes_no_sense_is_refused(fitted: Lab, arguments: list[str], words: str) -> None:
    assert words in fitted.refused(*call("out.jsonl"), *arguments)
    assert not Path("out.jsonl.parts").exists()
