"""Going on with a run: in its own folder, in a branch beside it, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_lab.checkpoints import Record, newest_step
from llama_lab.configs import run_folder_of
from llama_lab.runs.user_callbacks import ended_early_line


@dataclass(frozen=True)
class Place:
    """Where a run is kept.

    Attributes:
        logs: Where the folders of runs are.
        name: The run's name there.
        resumed: The folder of the run that goes on in it.
        origin: The checkpoint that a run in a new folder goes on from.
        words: What the user should know of it.
    """

    logs: Path
    name: str
    resumed: Path | None = None
    origin: Path | None = None
    words: str = ""


def place_of(record: Record | None, logs: Path, name: str) -> Place:
    """The place of a run that goes on from a checkpoint, or of a new one.

    From its newest checkpoint on a run goes on in its folder. From an older one it branches into a
    folder beside the old one, which keeps all that was recorded after that step.
    """
    if record is None:
        return Place(logs, name)
    folder = run_folder_of(record.path)
    if folder is None:
        return Place(logs, name, origin=record.path)
    newest = newest_step(folder)
    if record.step >= newest:
        return Place(logs, name, resumed=folder)
    words = (
        f"{record.path} is at step {record.step:,} and its run went on to step {newest:,}: what "
        "follows goes into a run folder of its own"
    )
    return Place(folder.parent.parent, folder.parent.name, origin=record.path, words=words)


def ended_early(record: Record | None, settings: dict[str, Any]) -> str | None:
    """Why a resumed run would only be ended again by the same callback, if so."""
    ended = record.progress.get("ended_early") if record is not None else None
    if record is None or ended is None:
        return None
    then, now = (c["trainer"].get("callbacks") for c in (record.config, settings))
    if then != now:
        return None
    line = ended_early_line(ended, record.step, record.config["trainer"]["max_steps"])
    return (
        f"{record.path}: {line}; nothing is left to train; to go on, change the callback (for "
        "instance its patience), or leave callbacks out with --trainer.callbacks null"
    )
