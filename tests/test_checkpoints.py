"""Checkpoints that say what is wrong with them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from llama_lab.checkpoints import KEY, load_file, own_part, read_record
from llama_lab.errors import Stopped, UserError


def contents(**changes: Any) -> dict[str, Any]:
    own = own_part(decoder={"dim": 8}, tokenizer={"kind": "char"}, config={}, progress={})
    return {"state_dict": {"decoder.a": torch.ones(2)}, "global_step": 3, KEY: own, **changes}


def test_a_record_speaks_of_logical_tensors(tmp_path: Path) -> None:
    torch.save(contents(), tmp_path / "a.ckpt")
    record = read_record(tmp_path / "a.ckpt")
    assert record.step == 3
    assert list(record.weights) == ["a"]


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (torch.ones(3), "not a checkpoint of llama-lab"),
        ({"state_dict": {}}, "not a checkpoint of llama-lab"),
        (contents(**{KEY: {"format": 99}}), "format 99"),
        (contents(**{KEY: {"format": 1, "config": [1]}}), "its settings are damaged"),
        (contents(**{KEY: {"format": 1, "config": {"data": 5}}}), "its settings are damaged"),
    ],
    ids=["a tensor", "another trainer's", "a newer version's", "a list's", "a number's"],
)
def test_foreign_files_are_named_as_such(tmp_path: Path, payload: Any, words: str) -> None:
    torch.save(payload, tmp_path / "a.ckpt")
    with pytest.raises(UserError, match=words):
        load_file(tmp_path / "a.ckpt")


class Malice:
    """Would run code when unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("pwned",)


def test_a_pickle_that_would_run_code_runs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({KEY: Malice()}, "a.ckpt")
    with pytest.raises(UserError, match="not a whole checkpoint"):
        load_file("a.ckpt")
    assert not Path("pwned").exists()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        load_file(tmp_path / "none.ckpt")


def test_a_signal_while_a_file_is_read_is_not_taken_for_a_bad_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: Any, **kwargs: Any) -> None:
        raise Stopped(15, "stopped by SIGTERM")

    torch.save(contents(), tmp_path / "a.ckpt")
    monkeypatch.setattr(torch, "load", stop)
    with pytest.raises(Stopped):
        load_file(tmp_path / "a.ckpt")
