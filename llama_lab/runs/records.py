"""Records of a run on disk: its folder, its settings and its metrics, without duplicates."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from llama_lab.checkpoints import checkpoint_of_step
from llama_lab.configs import new_run_folder, unwritable
from llama_lab.files import write_atomically
from llama_lab.parallel.sharded_checkpoints import copy_checkpoint
from llama_lab.runs.continuing import Place
from llama_lab.runs.events import RunEvents
from llama_lab.runs.user_callbacks import InRunFolder
from llama_lab.training.module import language_model
from llama_lab.training.state import RunState
from llama_lab.yaml_text import dump_yaml

COLUMNS = (
    "step",
    "train_loss",
    "lr",
    "grad_norm",
    "tokens_per_second",
    "flops_per_second",
    "mfu",
    "val_loss",
    "val_perplexity",
    "val_bits_per_byte",
    "val_targets",
    "passes",
)


class MetricsCsv(Logger):
    """``metrics.csv``: one row a step that logged anything, all digits, appended.

    (Lightning's CSVLogger deletes the file of a folder that is used a second time.)
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.path = folder / "metrics.csv"
        self.row: dict[str, Any] = {}

    @property
    def name(self) -> str:
        """Unused: the folder is the name."""
        return ""

    @property
    def version(self) -> str:
        """Unused: the folder is the version."""
        return ""

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """The settings are in config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Add to the row of ``step``; a new step writes the one before."""
        if self.row and self.row["step"] != step:
            self.save()
        self.row.setdefault("step", step)
        self.row.update(metrics)

    @rank_zero_only
    def save(self) -> None:
        """Append the row at hand."""
        if not self.row:
            return
        columns = columns_of(self.path) or list(COLUMNS)
        if new := [key for key in self.row if key not in columns]:
            columns += new
            write_rows(self.path, columns, read_rows(self.path))
        append_rows(self.path, columns, [self.row])
        self.row = {}

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Leave nothing behind."""
        self.save()

    @rank_zero_only
    def cut(self, step: int) -> None:
        """Drop what was logged after ``step``: a resumed run writes it again."""
        cut_rows(self.path, step)


def diagnostics_csv(folder: Path) -> Path:
    """Where a run's diagnostics are: a row a layer of each step that was measured."""
    return folder / "diagnostics.csv"


def columns_of(path: Path) -> list[str]:
    """The names in a file's first line; none where there is no file."""
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])


def read_rows(path: Path) -> list[dict[str, str]]:
    """The whole rows of a metrics file; a row that a kill cut off is none."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    return list(csv.DictReader(io.StringIO(whole)))


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a whole file, atomically."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue().encode())


def append_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows to a file of these columns; make it where there is none."""
    if not path.is_file():
        write_rows(path, columns, [])
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.DictWriter(file, columns, lineterminator="\n").writerows(rows)


def cut_rows(path: Path, step: int) -> None:
    """Drop the rows after ``step``, and one that a kill cut off, where there is such a file."""
    if path.is_file():
        kept = [row for row in read_rows(path) if int(row["step"]) <= step]
        write_rows(path, columns_of(path), kept)


class RunFolder(Callback):
    """Gives a run its folder, once nothing stands in the way of training.

    Every check of settings and data comes before: a refused run leaves no folder.

    Args:
        place: Where that is.
        config: The run's settings.
        at: A new run's folder, where it is not the next free one under its name.
        placed: Callbacks of the user that write into the folder.
    """

    def __init__(
        self,
        place: Place,
        config: dict[str, Any],
        *,
        at: Path | None = None,
        placed: InRunFolder | None = None,
    ) -> None:
        self.place, self.config, self.at, self.placed = place, config, at, placed
        self.resumed, self.origin = place.resumed, place.origin
        if self.resumed is not None and placed is not None:
            # Before their state is restored: they compare the folders.
            placed.place(self.resumed)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the folder, or take up the one of the resumed run, and open its records."""
        pl_module = language_model(pl_module)
        folder = self.resumed
        if folder is None and trainer.is_global_zero:
            folder = self.at or new_run_folder(self.place.logs, self.place.name)
        folder = trainer.strategy.broadcast(folder)
        assert folder is not None
        pl_module.run.folder = folder
        if self.placed is not None:
            self.placed.place(folder)
        if trainer.is_global_zero:
            try:
                (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
                text = dump_yaml(self.config)
                write_atomically(folder / "config.yaml", text.encode())
            except OSError as error:
                raise unwritable(folder, error) from error
        trainer.loggers = [MetricsCsv(folder), RunEvents(folder), *trainer.loggers]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drop from the records what a killed run logged after its last checkpoint.

        A run that goes on in a new folder takes the best checkpoint so far along.
        """
        pl_module = language_model(pl_module)
        if self.origin is not None:
            self._branch(self.origin, trainer, pl_module.run)
        if self.resumed is None:
            return
        if trainer.is_global_zero:
            cut_rows(diagnostics_csv(self.resumed), trainer.global_step)
        for logger in trainer.loggers:
            if isinstance(logger, MetricsCsv | RunEvents):
                logger.cut(trainer.global_step)

    def _branch(self, origin: Path, trainer: Trainer, run: RunState) -> None:
        """State where the run comes from; its best checkpoint so far lies there."""
        run.branched_from = {"checkpoint": str(origin), "step": trainer.global_step}
        copied = False
        if trainer.is_global_zero and run.folder is not None:
            best = checkpoint_of_step(run.best_step, [origin, origin.with_name("best.ckpt")])
            if copied := best is not None:
                copy_checkpoint(best, run.folder / "checkpoints" / "best.ckpt")
        if not trainer.strategy.broadcast(copied):
            run.best_loss, run.best_step = math.inf, 0
