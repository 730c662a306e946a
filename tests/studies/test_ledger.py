"""What a study remembers, and that one process at a time works in its folder."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from llama_lab.errors import UserError
from llama_lab.studies import ledger
from llama_lab.studies.ledger import Ledger, alone_in, refuse_trained


def test_it_comes_back_as_it_was_saved_and_keeps_its_threads(tmp_path: Path) -> None:
    first = Ledger.open(tmp_path, threads=3)
    first.times["base"] = {"step": 0.5, "forward": 0.1}
    first.looks.append(5)
    first.save()
    assert Ledger.open(tmp_path, threads=8) == first


def test_a_damaged_one_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text('{"threads": 1, "thread')
    with pytest.raises(UserError, match=r"study\.json: not a study's ledger"):
        Ledger.open(tmp_path, threads=1)


def test_studies_of_both_kinds_do_not_share_a_folder(tmp_path: Path) -> None:
    Ledger.open(tmp_path, threads=1).save()
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(UserError, match="holds a study that trains"):
        refuse_trained(tmp_path)
    (tmp_path / "study.json").unlink()
    refuse_trained(tmp_path)
    with pytest.raises(UserError, match="holds a study of parts"):
        Ledger.open(tmp_path, threads=1)


def test_a_second_study_waits_for_the_first_and_then_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("fcntl", reason="this system has no locks of that kind")
    monkeypatch.setattr(ledger, "SECONDS_FOR_OLD_WORKERS", 0.3)
    with (
        alone_in(tmp_path),
        pytest.raises(UserError, match="another process runs this study"),
        alone_in(tmp_path),
    ):
        pass
    assert "waiting for" in capsys.readouterr().out
    monkeypatch.setattr(ledger, "SECONDS_FOR_OLD_WORKERS", 30.0)
    entered, left = threading.Event(), threading.Event()

    def hold() -> None:
        with alone_in(tmp_path):
            entered.set()
            time.sleep(0.5)
            left.set()

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait()
    with alone_in(tmp_path):
        assert left.is_set()
    thread.join()
