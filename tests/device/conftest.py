"""Commands on the CPU and on a pretended accelerator, each in a process of its own."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.device import pretended
from tests.runs.conftest import OF_THE_CLOCK, TEXT

ROOT = Path(__file__).parent.parent.parent
BOTH = ("cuda", "metal")

TINY = {
    "model.decoder.dim": 16,
    "model.decoder.n_layers": 2,
    "model.decoder.context_length": 16,
    "model.decoder.attention.n_heads": 4,
    "model.decoder.attention.n_kv_heads": 2,
    "model.schedule.warmup_steps": 1,
    "data.corpus": "text.txt",
    "data.batch_size": 8,
    "data.val_fraction": 0.05,
    "trainer.max_steps": 4,
    "trainer.val_check_interval": 2,
    "trainer.log_every_n_steps": 1,
    "seed_everything": 3,
    "name": "tiny",
}


def flags(**changes: Any) -> list[str]:
    """Of a tiny run; ``__`` in a name is a dot."""
    settings = {**TINY, **{name.replace("__", "."): value for name, value in changes.items()}}
    return [f"--{name}={value}" for name, value in settings.items()]


@dataclass
class Warm:
    """The process that :mod:`tests.device.warm` is."""

    process: subprocess.Popen[str]

    def ask(self, **request: Any) -> int:
        """An exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """One for all tests."""
    if not hasattr(os, "fork"):
        pytest.skip("children of a warm process are forked")
    if not pretended.can_be_installed():
        pytest.skip("this torch lets no Python be a device")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.device.warm"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield Warm(process)
    assert process.stdin is not None
    process.stdin.close()
    process.wait(60)


@dataclass
class Machine:
    """A folder in which commands compute on one kind of device.

    Attributes:
        rules: Of the pretended device; None is the CPU.
    """

    warm: Warm
    folder: Path
    rules: str | None

    @property
    def name(self) -> str:
        """What the flags call the device."""
        return "cpu" if self.rules is None else pretended.NAME

    @property
    def flags(self) -> list[str]:
        """With which Lightning's trainer takes it."""
        strategy = "auto" if self.rules is None else pretended.NAME
        return [f"--trainer.accelerator={self.name}", f"--trainer.strategy={strategy}"]

    def try_out(self, *argv: str) -> tuple[int, str, str]:
        """The exit code of ``llama-lab``, its output and its errors."""
        code = self.warm.ask(folder=str(self.folder), rules=self.rules, argv=argv)
        return code, self.read("out"), self.read("err")

    def __call__(self, *argv: str) -> str:
        """The output of ``llama-lab``, which must succeed."""
        code, out, err = self.try_out(*argv)
        assert code == 0, err
        return out

    def trainer(self, verb: str, *argv: str) -> str:
        """A command that takes the trainer's flags."""
        return self(verb, *argv, *self.flags)

    def call(self, function: str, **arguments: Any) -> Any:
        """What a function, ``module:name``, returns on this device."""
        code = self.warm.ask(
            folder=str(self.folder), rules=self.rules, call=function, **{"with": arguments}
        )
        assert code == 0, self.read("err")
        return json.loads(self.read("result"))

    def read(self, name: str) -> str:
        """A file."""
        return (self.folder / name).read_text(encoding="utf-8")

    def metrics(self, number: int = 0) -> list[dict[str, float]]:
        """The rows of metrics.csv, without what a clock decides."""
        return self.table("metrics.csv", number)

    def table(self, file: str, number: int = 0) -> list[dict[str, float]]:
        """The rows of a run's file."""
        with (self.folder / "logs" / "tiny" / f"run_{number}" / file).open() as lines:
            rows = list(csv.DictReader(lines))
        return [
            {k: float(v) for k, v in row.items() if v and k not in OF_THE_CLOCK} for row in rows
        ]


@pytest.fixture(scope="session")
def make_machine(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Machines by their rules, each in a new folder with ``text.txt`` in it."""

    def make(rules: str | None) -> Machine:
        folder = tmp_path_factory.mktemp(rules or "cpu")
        (folder / "text.txt").write_text(TEXT)
        lines = [json.dumps({"text": line}) for line in TEXT.splitlines()]
        (folder / "lines.jsonl").write_text("\n".join(lines))
        return Machine(warm, folder, rules)

    return make
