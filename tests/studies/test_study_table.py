"""The table of a study at a terminal: what it says, and what it leaves out where room is short."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("scipy", reason="the statistics of studies need the extra `lab`")
pytest.importorskip("plotly", reason="the report of a study needs the extra `lab`")

from llama_lab.studies.progress_table import Cell, Grid, draw
from tests.studies.test_ablate import STUDY, wait_for, write

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def grid(arms: int, seeds: int, **of_first: Any) -> Grid:
    """Every run has finished, at 2 plus a tenth an arm and a hundredth a seed, but the first."""
    cells = {
        f"arm-{a}": {
            s: Cell(100, "finished", step=100, best=2 + a / 10 + s / 100) for s in range(seeds)
        }
        for a in range(arms)
    }
    cells["arm-0"][0] = Cell(100, **of_first) if of_first else cells["arm-0"][0]
    return Grid(cells, dict.fromkeys(cells, "arm-0"), "bits per byte")


def shown(grid: Grid, width: int = 120, height: int | None = 40) -> list[str]:
    """The lines of the table on a terminal of that size."""
    out = io.StringIO()
    Console(file=out, width=width, height=height or 40).print(draw(grid, "study", width, height))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert all(len(line) <= width for line in lines)
    return lines


@pytest.mark.parametrize(
    ("cell", "wide", "narrow"),
    [
        ({}, "waiting", "wait"),
        ({"step": 43, "best": 1.2}, "paused 43% 1.2000", "paused"),
        ({"state": "running"}, "0%", "0%"),
        ({"state": "running", "step": 7, "train_loss": 3.25}, "7% train 3.2500", "7%"),
        (
            {"state": "running", "step": 43, "latest": 1.2345, "best": 1.2},
            "43% 1.2345 (1.2000)",
            "43%",
        ),
        ({"state": "diverged", "step": 20}, "diverged at 20%", "div."),
        ({"state": "out_of_memory"}, "out of memory at 0%", "memory"),
        ({"state": "finished", "step": 100, "best": 1.2}, "1.2000", "1.2000"),
    ],
)
def test_a_cell_says_as_much_as_it_has_room_for(
    cell: dict[str, Any], wide: str, narrow: str
) -> None:
    assert Cell(100, **cell).text(19).plain == wide
    assert Cell(100, **cell).text(6).plain == narrow


def test_means_and_differences_are_of_arms_whose_runs_have_all_finished() -> None:
    rows = shown(grid(3, 3))
    assert rows[2].split() == ["arm-0", "2.0000", "2.0100", "2.0200", "2.0100"]
    assert rows[3].split() == ["arm-1", "2.1000", "2.1100", "2.1200", "2.1100", "+0.1000"]
    assert "provisional" in rows[5]
    rows = shown(grid(3, 3, state="running", step=50, latest=9.0, best=9.0))
    assert rows[2].split() == ["arm-0", "50%", "9.0000", "(9.0000)", "2.0100", "2.0200"]
    assert rows[3].split() == ["arm-1", "2.1000", "2.1100", "2.1200", "2.1100"]


def test_twelve_arms_of_eight_seeds_fit_into_80_columns() -> None:
    rows = shown(grid(12, 8, state="running", step=50, latest=9.0, best=9.0), width=80)
    assert len(rows) == 2 + 12 + 1
    assert len(rows[1].split()) == 1 + 8 * 2
    assert rows[2].split()[1] == "50%"
    wide = shown(grid(12, 8, state="running", step=50, latest=9.0, best=9.0), width=160)
    assert wide[2].split()[1:3] == ["50%", "9.0000"]
    assert wide[1].split()[-2:] == ["mean", "differs"]


def test_a_low_terminal_shows_the_arms_with_a_run_under_way_and_counts_the_others() -> None:
    many = grid(60, 2)
    many.cells["arm-57"][1].state = "running"
    rows = shown(many, height=20)
    assert len(rows) < 20
    assert any(row.startswith("arm-57 ") for row in rows)
    assert any("46 more arms" in row and "92 finished" in row for row in rows)
    assert len(shown(many, height=None)) == 2 + 60 + 1


def test_a_narrow_terminal_names_the_seeds_that_it_has_no_room_for() -> None:
    rows = shown(grid(2, 8), width=40)
    assert rows[1].split() == ["arm", "0", "1", "2", "3"] or "seed" in rows[1]
    assert "too narrow for seeds" in " ".join(rows)


# ---- in a terminal -------------------------------------------------------------------------------


class Terminal:
    """``llama-lab`` in a terminal of its own."""

    def __init__(self, folder: Path, *argv: str, **environment: str) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", **environment}
        for name in ("COLUMNS", "LINES"):
            env.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llama_lab", *argv],
            cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        self.raw = b""
        self.reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self.reader.start()

    def _read(self, terminal: int) -> None:
        while True:
            try:
                data = os.read(terminal, 4096)
            except OSError:  # nobody has the other end any more
                data = b""
            if not data:
                return os.close(terminal)
            self.raw += data

    def ended(self) -> tuple[int, str]:
        """The exit code, and all that was written."""
        code = self.process.wait(120)
        self.reader.join(10)
        return code, self.raw.decode()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """A study that was stopped in a terminal while its runs were under way."""
    folder = tmp_path_factory.mktemp("table")
    arms = {"explodes": STUDY["arms"]["explodes"], "layernorm": STUDY["arms"]["layernorm"]}
    write(folder, arms=arms, scores={}, decode=None, probe=False)
    # The fourth worker begins when the table is there: three arms have been timed by three.
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'llama_lab.studies.worker' in sys.orig_argv:\n"
        "    os.write(2, b'a worker speaks\\n')\n"
    )
    path = os.pathsep.join([str(folder / "site"), os.environ.get("PYTHONPATH", "")])
    terminal = Terminal(
        folder, "ablate", "--config", "trial.yaml", "--jobs", "4",
        "--trainer.max_steps", "100000", PYTHONPATH=path,
    )  # fmt: skip
    for name in ("base/seed_0", "base/seed_1"):
        last = folder / "logs/studies/trial" / name / "checkpoints" / "last.ckpt"
        wait_for(last, terminal.process)  # type: ignore[arg-type]
    terminal.process.send_signal(signal.SIGTERM)
    return folder, *terminal.ended()


def plain_lines(out: str) -> list[str]:
    return [line.rstrip() for line in ESCAPES.sub("", out).replace("\r", "\n").splitlines()]


@pytest.mark.slow
def test_a_signal_ends_the_table_and_gives_the_cursor_back(
    stopped: tuple[Path, int, str],
) -> None:
    _, code, out = stopped
    assert code == 143
    assert out.count("\x1b[?25l") == 1
    assert out.rindex("\x1b[?25h") > out.rindex("\x1b[?25l")
    lines = [line for line in plain_lines(out) if line]
    assert lines[-1].startswith("llama-lab: stopped by SIGTERM; finished runs are kept")
    assert lines[-2] == "saving the runs that were under way"
    assert [line.split()[:2] for line in lines if line.startswith("base ")][-1] == [
        "base",
        "stopped",
    ]


@pytest.mark.slow
def test_what_is_said_meanwhile_stands_above_the_table(stopped: tuple[Path, int, str]) -> None:
    _, _, out = stopped
    lines = plain_lines(out)
    assert lines.count("a worker speaks") == out.count("a worker speaks") == 4
    assert any(re.match(r" +1/6  explodes/seed_\d  diverged: the training", line) for line in lines)


@pytest.mark.slow
def test_a_study_that_goes_on_shows_what_is_there(stopped: tuple[Path, int, str]) -> None:
    folder, _, _ = stopped
    terminal = Terminal(
        folder, "ablate", "--config", "trial.yaml", "--trainer.max_steps", "100000", NO_COLOR="1"
    )
    wait_for_words(terminal, "bits per byte: latest validation (best so far)")
    # Its worker has only just been started, and must not begin the run.
    terminal.process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    code, out = terminal.ended()
    assert code == 130
    assert time.monotonic() - asked < 60
    rows = {line.split()[0]: line for line in plain_lines(out) if line.count("  ") > 2}
    assert "diverged at 0%" in rows["explodes"]
    first = next(line for line in plain_lines(out) if line.startswith("base       "))
    assert first.count("paused") == 2
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", out)  # no colour


def wait_for_words(terminal: Terminal, words: str) -> None:
    """Wait until the terminal shows them."""
    end = time.monotonic() + 120
    while words.encode() not in terminal.raw:
        assert time.monotonic() < end, terminal.raw
        time.sleep(0.02)


@pytest.mark.slow
def test_a_terminal_that_cannot_move_its_cursor_gets_lines(tmp_path: Path) -> None:
    write(tmp_path, seeds=[0], arms={"explodes": STUDY["arms"]["explodes"]}, scores={})
    terminal = Terminal(tmp_path, "ablate", "--config", "trial.yaml", TERM="dumb")
    code, out = terminal.ended()
    assert code == 0, out
    assert "\x1b" not in out
    assert re.search(r"^   1/2  base/seed_0  finished  \d", out.replace("\r", ""), re.MULTILINE)
