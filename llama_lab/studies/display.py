"""The display of a study's runs: a table at a terminal, a line per run elsewhere."""

from __future__ import annotations

import csv
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live

from llama_lab.errors import Stopped
from llama_lab.runs.run_progress import clock
from llama_lab.studies.collect import FINAL, number, outcome_of
from llama_lab.studies.planned_arms import Run
from llama_lab.studies.pool import Job
from llama_lab.studies.progress_table import Cell, Grid, draw
from llama_lab.studies.study import UNITS, Study


class StudyProgress:
    """Shows which runs are done and how far those under way are; use it as a context.

    Args:
        title: What is being run.
        runs: All of them.
        study: Says which measure they are compared by.
    """

    def __init__(self, title: str, runs: Sequence[Run], study: Study) -> None:
        self.title, self.study = title, study
        self.followed = {run.key: FollowedRun(run, study) for run in runs}
        self.total = len(runs)
        self.done = sum(f.cell.state in FINAL for f in self.followed.values())
        cells: dict[str, dict[int, Cell]] = {}
        for run in runs:
            cell = self.followed[run.key].cell
            cells.setdefault(run.folder.parent.name, {})[run.seed] = cell
        references = {run.folder.parent.name: run.planned.arm.reference for run in runs}
        self.grid = Grid(cells, references, UNITS[study.measure])
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        # A terminal that cannot move its cursor (TERM=dumb) gets lines, as a file does.
        draws = sys.stdout.isatty() and not self.console.is_dumb_terminal
        self.live: Live | None = self._live() if draws and runs else None
        self.began, self.finished_here = time.monotonic(), 0

    def _live(self) -> Live:
        return Live(
            console=self.console,
            # Drawn between two looks at the runs: no thread is in the way of a signal.
            auto_refresh=False,
            # What is printed meanwhile appears above; what goes to a file still goes there.
            redirect_stderr=sys.stderr.isatty(),
        )

    def __enter__(self) -> StudyProgress:
        if self.live is not None:
            self.live.start()
            self._draw()
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        if self.live is None:
            return
        stopped = kind is not None and issubclass(kind, Stopped)
        for followed in self.followed.values():
            if followed.cell.state == "running":
                followed.cell.state = "stopped"
        try:
            self._draw(whole=True)
        finally:
            self.live.stop()
        if stopped:
            self.console.print("saving the runs that were under way")

    def update(self, jobs: list[Job]) -> None:
        """Look at the runs under way."""
        if self.live is None:
            return
        for job in jobs:
            followed = self.followed[job.key]
            followed.cell.state = "running"
            followed.read()
        self._draw()

    def ended(self, run: Run, answer: dict[str, Any]) -> None:
        """Say how a run ended; the table says it of those that went well."""
        self.done += answer["end"] != "stopped"
        self.finished_here += 1
        followed = self.followed[run.key]
        followed.cell.state = answer["end"]
        followed.read()
        if self.live is not None and answer["end"] == "finished":
            return
        reason = f": {answer['reason']}" if answer["reason"] else ""
        end = answer["end"].replace("_", " ")
        line = f"{self.done:>4}/{self.total}  {run.key}  {end}{reason}  {self._words()}"
        self.console.print(line, markup=False)
        self.console.file.flush()

    def _draw(self, *, whole: bool = False) -> None:
        assert self.live is not None
        title = f"{self.title}  {self.done}/{self.total} runs  {self._words()}".rstrip()
        width, height = self.console.size
        table = draw(self.grid, title, width, None if whole else height)
        self.live.update(table, refresh=True)

    def _words(self) -> str:
        if not self.finished_here:
            return ""
        each = (time.monotonic() - self.began) / self.finished_here
        return f"{clock(each * (self.total - self.done))} left"


class FollowedRun:
    """A run's cell, kept by what the run appends to its ``metrics.csv``.

    Only what is new is read: a long run's file has megabytes, and is looked at twice a second.
    """

    def __init__(self, run: Run, study: Study) -> None:
        self.path, self.study = run.folder / "metrics.csv", study
        end = outcome_of(run.folder)["end"]
        self.cell = Cell(run.planned.steps, end if end in FINAL else "waiting")
        self._begin(inode=0)
        self.read()

    def _begin(self, inode: int) -> None:
        self.inode, self.offset, self.columns = inode, 0, list[str]()
        cell = self.cell
        cell.step, cell.train_loss, cell.latest, cell.best = 0, None, None, None

    def read(self) -> None:
        """Take up the rows that are new."""
        for row in self._new_rows():
            cell = self.cell
            cell.step = int(row["step"])
            if (loss := number(row, "train_loss")) is not None:
                cell.train_loss = loss
            if (value := number(row, self.study.measure)) is not None:
                lowest = min(value, value if cell.best is None else cell.best)
                cell.latest, cell.best = value, lowest if self.study.when == "best" else value

    def _new_rows(self) -> list[dict[str, str]]:
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            self._begin(inode=0)
            return []
        with file:
            status = os.fstat(file.fileno())
            # A run that goes on from a checkpoint writes the file anew, without its last rows.
            if status.st_ino != self.inode or status.st_size < self.offset:
                self._begin(status.st_ino)
            file.seek(self.offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        lines = list(csv.reader(whole.decode("utf-8").splitlines()))
        if not self.columns and lines:
            self.columns = lines.pop(0)
        return [dict(zip(self.columns, line, strict=False)) for line in lines]
