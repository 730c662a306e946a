"""The Python API: three lines, from a checkpoint, a run folder and a Hugging Face folder."""

import os
from pathlib import Path

import pytest

from llama_lab import generate, load
from llama_lab.errors import UserError
from tests.runs import conftest
from tests.runs.conftest import Lab

lab = conftest.lab


def test_three_lines_of_python_continue_a_text(lab: Lab) -> None:
    lab.fit()
    model = load("last")
    pieces = list(generate(model, "times ", max_new_tokens=12, seed=3))
    assert len(pieces) == 12
    folder = load(next(Path("logs").glob("*/run_0")))
    (completion,) = generate(folder, ["times "], max_new_tokens=12, seed=3, logprobs=True)
    assert completion.text == "".join(pieces)
    assert str(completion) == "times " + completion.text
    assert len(completion.logprobs) == len(completion.ids) == 12
    assert max(completion.logprobs) <= 0
    assert completion.ended == "length"


def test_a_hugging_face_folder_is_loaded_as_it_is(lab: Lab) -> None:
    lab.fit()
    assert lab("export", "last", "--output", "folder").code == 0
    prompts = ["times ", "1", "less one is "]
    texts = [c.text for c in generate(load("last"), prompts, temperature=0, max_new_tokens=9)]
    again = [c.text for c in generate(load("folder"), prompts, temperature=0, max_new_tokens=9)]
    assert texts == again
    assert texts == [
        "".join(generate(load("last"), p, temperature=0, max_new_tokens=9)) for p in prompts
    ]


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    os.chdir(tmp_path)
    with pytest.raises(UserError, match="load: nowhere: no such file"):
        load("nowhere")
