"""A signal ends every command with its exit code, one line, and no half-written file."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from llama_lab.errors import Stopped
from llama_lab.signals import signals_end_the_command
from tests.runs import conftest
from tests.runs.conftest import TEXT, TINY, Lab, start

lab = conftest.lab
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="Windows has none")
MODEL = [f"--{name}={value}" for name, value in TINY.items() if name.startswith("model.decoder")]


def ended_by(name: str, process: subprocess.Popen[str]) -> None:
    """Send a signal; the command must answer it as SIGTERM."""
    process.send_signal(getattr(signal, name))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    lines = err.splitlines()
    assert lines[-1].startswith(f"llama-lab: stopped by {name}"), err
    assert "Traceback" not in err


def reached(process: subprocess.Popen[str], words: str) -> None:
    """Wait until the command has said something on standard error."""
    assert process.stderr is not None
    said = ""
    while words not in said:
        line = process.stderr.readline()
        assert line, said
        said += line


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGTERM"])
def test_tokenize_leaves_nothing_of_a_store_that_is_not_whole(lab: Lab, name: str) -> None:
    # A pipe that never ends: the command is reading for as long as the test wants.
    os.mkfifo("endless.txt")
    process = start(lab.folder, "tokenize", "--corpus", "endless.txt", "--cache_dir", "cache")
    with Path("endless.txt").open("w") as pipe:
        pipe.write(TEXT * 200)
        pipe.flush()
        time.sleep(0.5)  # Python hears a signal in a read that waits, not in one that begins
        ended_by(name, process)
    assert not [path for path in Path().rglob("cache/*") if path.is_file()]


@pytest.mark.parametrize("name", ["SIGUSR1", pytest.param("SIGUSR2", marks=pytest.mark.slow)])
def test_generate_ends_within_its_text(lab: Lab, name: str) -> None:
    lab.fit()
    process = start(lab.folder, "generate", "--max_new_tokens", "1000000")
    reached(process, "step 12")
    assert process.stdout is not None
    process.stdout.read(20)
    ended_by(name, process)


@pytest.mark.parametrize("name", ["SIGUSR1", pytest.param("SIGUSR2", marks=pytest.mark.slow)])
def test_a_range_test_writes_no_report_of_a_part_of_its_steps(lab: Lab, name: str) -> None:
    pytest.importorskip("plotly", reason="pages need plotly")
    rates = ("--lr_min=1e-9", "--lr_max=1e-8", "--steps=1000000")
    process = start(
        lab.folder, "lr-range", "llama.yaml", *rates, *MODEL, "--data.corpus=text.txt",
        "--trainer.accelerator=cpu",
    )  # fmt: skip
    wait_for_store(lab.folder, process)
    ended_by(name, process)
    assert not (lab.folder / "logs").exists()


@pytest.mark.parametrize("name", ["SIGUSR1", pytest.param("SIGUSR2", marks=pytest.mark.slow)])
def test_a_bench_ends_while_it_times(lab: Lab, name: str) -> None:
    arguments = (*MODEL, "--data.corpus=text.txt", "--trainer.accelerator=cpu")
    process = start(lab.folder, "bench", "llama.yaml", *arguments)
    wait_for_store(lab.folder, process)
    ended_by(name, process)
    assert not (lab.folder / "logs").exists()


def wait_for_store(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a command has prepared its text, which comes before its first step."""
    end = time.monotonic() + 60
    while not list((folder / "data" / "cache").glob("*/info.json")):
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


class SignalledInItsDestructor:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0)  # where Python notices the signal


def meet_a_destructor(seconds: float) -> None:
    with signals_end_the_command():
        subject = SignalledInItsDestructor()
        del subject  # Python swallows what leaves a destructor
        for _ in range(int(seconds * 100)):
            time.sleep(0.01)
        if seconds:
            pytest.fail("the command went on")


@pytest.mark.parametrize("seconds", [0, 5])
def test_a_signal_that_meets_a_destructor_is_not_lost(
    seconds: float, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Stopped, match="stopped by SIGUSR1") as raised:
        meet_a_destructor(seconds)
    assert raised.value.signum == signal.SIGTERM
    assert "ignored" not in capsys.readouterr().err


def test_a_repeated_announcement_does_not_disturb_what_the_first_one_began() -> None:
    with signals_end_the_command():
        with pytest.raises(Stopped, match="stopped by SIGUSR1") as raised:
            os.kill(os.getpid(), signal.SIGUSR1)
        assert raised.value.signum == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR2)
        with pytest.raises(Stopped, match="stopped by SIGTERM"):  # whoever means it is heard
            os.kill(os.getpid(), signal.SIGTERM)
