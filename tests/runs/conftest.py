"""A tiny run through the real command line, in a folder of its own."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from llama_lab.cli import main

TEXT = "".join(f"{i} times {i} is {i * i}, and {i} less one is {i - 1};\n" for i in range(1, 260))

TINY: dict[str, Any] = {
    "model.decoder.dim": 16,
    "model.decoder.n_layers": 2,
    "model.decoder.context_length": 16,
    "model.decoder.attention.n_heads": 4,
    "model.decoder.attention.n_kv_heads": 2,
    "model.schedule.warmup_steps": 3,
    "data.corpus": "text.txt",
    "data.batch_size": 8,
    "trainer.accelerator": "cpu",
    "trainer.max_steps": 12,
    "trainer.val_check_interval": 5,
    "trainer.log_every_n_steps": 1,
    "seed_everything": 3,
    "name": "tiny",
}
OF_THE_CLOCK = ("tokens_per_second", "flops_per_second", "mfu")


def flags(**changes: Any) -> list[str]:
    """The tiny run's flags; ``__`` in a name is a dot, ``...`` drops the flag."""
    settings = {**TINY, **{name.replace("__", "."): value for name, value in changes.items()}}
    return [f"--{name}={_word(value)}" for name, value in settings.items() if value is not ...]


def _word(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


@dataclass
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass
class Lab:
    """A working folder with a text in it, and ways to run ``llama-lab`` there."""

    folder: Path
    capsys: Any

    def __call__(self, *argv: str) -> Outcome:
        """Run in this process."""
        code = main(list(argv))
        out, err = self.capsys.readouterr()
        return Outcome(code, out, err)

    def fit(self, **changes: Any) -> Outcome:
        """Train the tiny run, which must succeed."""
        outcome = self("fit", *flags(**changes))
        assert outcome.code == 0, outcome.err
        return outcome

    def refused(self, *argv: str) -> str:
        """The one error line of a command that must be refused."""
        before = self.files()
        outcome = self(*argv)
        lines = outcome.err.strip().splitlines()
        assert outcome.code == 2, outcome
        assert len(lines) == 1, outcome.err
        assert lines[0].startswith("llama-lab: error: ")
        assert not {f for f in self.files() - before if "cache" not in f.parts}, "left something"
        return lines[0].removeprefix("llama-lab: error: ")

    def files(self) -> set[Path]:
        """Every file of the folder."""
        return {p.relative_to(self.folder) for p in self.folder.rglob("*") if p.is_file()}

    def run(self, number: int = 0, name: str = "tiny") -> Path:
        """A run's folder."""
        return self.folder / "logs" / name / f"run_{number}"

    def checkpoint(self, which: str = "last", number: int = 0) -> dict[str, Any]:
        """A checkpoint's contents, weights only."""
        path = self.run(number) / "checkpoints" / f"{which}.ckpt"
        return torch.load(path, weights_only=True)

    def metrics(self, number: int = 0, name: str = "tiny") -> list[dict[str, str]]:
        """The rows of metrics.csv, without what a clock decides."""
        with (self.run(number, name) / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        return [{k: v for k, v in row.items() if k not in OF_THE_CLOCK} for row in rows]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Lab:
    """A folder with ``text.txt`` in it, and ``llama-lab`` to run there."""
    monkeypatch.chdir(tmp_path)
    # A sample at each validation takes as long as the training that it belongs to.
    monkeypatch.setattr("llama_lab.runs.callbacks.SAMPLE_TOKENS", 20)
    (tmp_path / "text.txt").write_text(TEXT)
    return Lab(tmp_path, capsys)


def start(folder: Path, *argv: str, **environment: str) -> subprocess.Popen[str]:
    """A real process of ``llama-lab``, on one thread."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(
        [sys.executable, "-m", "llama_lab", *argv],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def equal_weights(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two checkpoints hold the same weights to the bit."""
    a, b = a["state_dict"], b["state_dict"]
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def diagnostics_of(run: Path) -> list[dict[str, str]]:
    """The rows of diagnostics.csv."""
    with (run / "diagnostics.csv").open() as file:
        return list(csv.DictReader(file))


def write_yaml(path: Path, values: Any) -> Path:
    """A YAML file."""
    path.write_text(yaml.safe_dump(values))
    return path


Run = Callable[..., Outcome]
