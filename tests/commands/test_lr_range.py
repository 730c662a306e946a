"""``llama-lab lr-range`` on a tiny model."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from llama_lab.cli import main
from tests.runs.conftest import TEXT, start

pytest.importorskip("plotly", reason="pages need plotly")

TINY = ("--model.decoder.dim=16", "--model.decoder.n_layers=1", "--data.corpus=text.txt")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_and_the_numbers_tell_the_rates_and_no_run_is_left(
    here: Path, capsys: Any
) -> None:
    rates = ("--lr_min=1e-4", "--lr_max=10", "--steps=60")
    muon = ("--model.optimizer.kind=muon", "--model.optimizer.rest_lr=0.01")
    assert main(["lr-range", "llama.yaml", *rates, *muon, *TINY]) == 0
    out = capsys.readouterr().out
    folder = here / "logs" / "lr-range" / "llama"
    found = json.loads((folder / "results.json").read_text())
    assert f"falls fastest at {found['steepest_lr']:.2g}" in out
    assert found["rates"][0] == pytest.approx(1e-4)
    grown = found["rates"][1] / found["rates"][0]
    assert grown == pytest.approx(1e5 ** (1 / 59))
    assert found["losses"][0] == pytest.approx(math.log(len(set(TEXT))), abs=0.3)
    assert found["lowest_loss"] < 0.8 * found["losses"][0]
    assert found["rates"][0] < found["steepest_lr"] <= found["lowest_lr"] < 10
    with (folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["lr"]) for row in rows] == pytest.approx(found["rates"])
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert re.search(r'"name": *"mean"', page)  # the smoothed losses
    assert not list(here.rglob("*.ckpt"))
    assert main(["runs"]) == 2
    assert "no run under logs" in capsys.readouterr().err


@pytest.mark.slow
def test_of_two_processes_one_reports(here: Path) -> None:
    ddp = ("--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.strategy=ddp")
    process = start(here, "lr-range", "llama.yaml", "--steps=20", *TINY, *ddp)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.count("report: ") == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--trainer.max_steps=5",), "--trainer.max_steps 5 would do nothing"),
        (("--model.schedule.kind=wsd",), "--model.schedule.kind wsd would do nothing"),
        (("--model.decoder.norm.kind=rmsnorn",), "rmsnorn"),
        (("--steps=3",), "--steps 3"),
    ],
)
def test_what_would_do_nothing_or_cannot_be_is_refused(
    here: Path, capsys: Any, flags: tuple[str, ...], words: str
) -> None:
    assert main(["lr-range", "llama.yaml", *TINY, *flags]) == 2
    assert words in capsys.readouterr().err
    assert not (here / "logs").exists()
