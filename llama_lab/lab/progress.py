"""One display for all runs of a study: a bar on a terminal, a line per run elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from llama_lab.training.progress import clock
from llama_lab.training.records import read_rows

if TYPE_CHECKING:
    from llama_lab.lab.pool import Job
    from llama_lab.lab.run import Run


class StudyProgress:
    """Shows which runs are done and how far those under way are; use it as a context.

    Args:
        title: What is being run.
        runs: All of them.
        done: How many were finished before.
    """

    def __init__(self, title: str, runs: Sequence[Run], *, done: int) -> None:
        self.runs = {run.key: run for run in runs}
        self.done, self.total = done, len(runs)
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[words]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.overall = self.progress.add_task(title, total=self.total, completed=done, words="")
        self.bars: dict[str, TaskID] = {}
        self.began, self.finished_here = time.monotonic(), 0

    def __enter__(self) -> StudyProgress:
        self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def update(self, jobs: list[Job]) -> None:
        """Move the bars of the runs under way."""
        if not self.console.is_terminal:
            return
        for key in list(self.bars):
            if key not in {job.key for job in jobs}:
                self.progress.remove_task(self.bars.pop(key))
        for job in jobs:
            run = self.runs[job.key]
            if job.key not in self.bars:
                self.bars[job.key] = self.progress.add_task(
                    f"  {job.key}", total=run.planned.steps, words=""
                )
            rows = read_rows(run.folder / "metrics.csv")
            if rows:
                loss = next((r["train_loss"] for r in reversed(rows) if r.get("train_loss")), "")
                words = f"loss {float(loss):.4f}" if loss else ""
                self.progress.update(
                    self.bars[job.key], completed=int(rows[-1]["step"]), words=words
                )
        self.progress.update(self.overall, completed=self.done, words=self._words())

    def ended(self, run: Run, answer: dict[str, Any]) -> None:
        """Say how a run ended."""
        self.done += answer["end"] != "stopped"
        self.finished_here += 1
        reason = f": {answer['reason']}" if answer["reason"] else ""
        end = answer["end"].replace("_", " ")
        line = f"{self.done:>4}/{self.total}  {run.key}  {end}{reason}  {self._words()}"
        self.console.print(line, markup=False)
        self.console.file.flush()

    def _words(self) -> str:
        if not self.finished_here:
            return ""
        each = (time.monotonic() - self.began) / self.finished_here
        return f"{clock(each * (self.total - self.done))} left"
