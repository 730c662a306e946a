"""Lightning's automatic behaviours: none of them decides what a run here does."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

import pytest

from llama_lab.errors import UserError
from llama_lab.runs.automatic import CALLBACK_PACKAGES, work_alone
from tests.runs.conftest import Lab, flags, start
from tests.runs.test_resume import wait_for

SLURM = {
    "SLURM_JOB_ID": "4242",
    "SLURM_NTASKS": "1",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_JOB_NAME": "train",
    "SLURM_NODELIST": "localhost",
}


@pytest.fixture
def slurm(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SLURM job's environment; the file that a call of ``scontrol`` would leave."""
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    folder = lab.folder / "bin"
    folder.mkdir()
    called = lab.folder / "requeued"
    (folder / "scontrol").write_text(f"#!/bin/sh\ntouch {called}\n")
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return called


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2"])
def test_an_announced_end_is_answered_as_sigterm_in_the_run_s_own_folder(
    lab: Lab, slurm: Path, name: str
) -> None:
    process = start(lab.folder, "fit", *flags(trainer__max_steps=100_000))
    wait_for(lab.run() / "checkpoints" / "last.ckpt")
    process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert err.startswith(f"llama-lab: stopped by {name} at step ")
    assert not slurm.exists()
    assert not list(lab.folder.rglob("hpc_ckpt*"))
    assert lab.checkpoint()["global_step"] > 0


def test_a_new_run_begins_at_step_0_beside_a_checkpoint_that_lightning_would_take(
    lab: Lab, slurm: Path
) -> None:
    lab.fit(name="plain", trainer__max_steps=6)
    lab.fit(name="other", trainer__max_steps=3, seed_everything=9)
    left = lab.run(name="other") / "checkpoints" / "last.ckpt"
    left.rename(lab.folder / "hpc_ckpt_1.ckpt")
    outcome = lab.fit(name="again", trainer__max_steps=6)
    assert "going on from" not in outcome.out
    assert lab.metrics(name="again") == lab.metrics(name="plain")


def test_processes_that_a_launcher_started_must_be_those_of_the_trainer(
    lab: Lab, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "2")
    line = lab.refused("fit", *flags())
    assert "--trainer.devices" in line
    assert "started 2" in line


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        (
            "{class_path: lightning.pytorch.strategies.ModelParallelStrategy}",
            "ModelParallelStrategy",
        ),
        (
            "{class_path: lightning.pytorch.strategies.DDPStrategy, init_args: "
            "{model_averaging_period: 2}}",
            "model averaging",
        ),
    ],
)
def test_a_strategy_whose_work_was_not_shown_equal_is_refused(
    lab: Lab, strategy: str, name: str
) -> None:
    line = lab.refused("fit", *flags(trainer__strategy=strategy, trainer__devices=2))
    assert "--trainer.strategy" in line
    assert name in line


@pytest.mark.parametrize(
    ("variable", "value", "remedy"),
    [
        ("PL_TRAINER_MAX_STEPS", "5", "--trainer.max_steps 5"),
        ("PL_GLOBAL_SEED", "7", "--seed_everything 7"),
    ],
)
def test_settings_that_only_lightning_reads_are_refused(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, remedy: str
) -> None:
    lab.fit()  # it leaves no such variable to the next run of the process
    monkeypatch.setenv(variable, value)
    line = lab.refused("fit", *flags())
    assert variable in line
    assert remedy in line


def test_a_command_of_one_process_is_refused_where_a_launcher_begins_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "0")
    work_alone("llama-lab ablate")
    assert "SLURM_NTASKS" not in os.environ
    monkeypatch.setenv("SLURM_PROCID", "1")
    with pytest.raises(UserError, match="SLURM_PROCID is 1"):
        work_alone("llama-lab ablate")


BROUGHT = """
from pathlib import Path

from lightning.pytorch import Callback


class Brought(Callback):
    def on_fit_start(self, trainer, pl_module):
        Path("it-ran").touch()


def make():
    return Brought()
"""


@pytest.fixture
def package(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module of an installed distribution that brings Lightning a callback."""
    site, name = lab.folder / "site-packages", "brings_a_callback"
    about = site / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (site / f"{name}.py").write_text(BROUGHT)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{CALLBACK_PACKAGES}]\nbrought = {name}:make\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    return name


def test_a_callback_that_an_installed_package_brings_is_left_out_and_named(
    lab: Lab, package: str
) -> None:
    outcome = lab.fit(trainer__max_steps=1)
    assert "callback Brought: an installed package brought it, left out" in outcome.err
    assert not Path("it-ran").exists()


def test_a_callback_of_an_installed_package_that_the_user_names_stays(
    lab: Lab, package: str
) -> None:
    lab.fit(trainer__max_steps=1, trainer__callbacks=f"{{class_path: {package}.Brought}}")
    assert Path("it-ran").exists()
