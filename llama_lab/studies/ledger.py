"""The ledger of a study, kept between its starts: ``study.json`` in its folder, and a lock.

Outcomes of runs are not in it: each run keeps its own (``outcome.json``), so that a kill at any
moment leaves no account that says something else than the runs' folders.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from llama_lab.errors import UserError
from llama_lab.files import write_atomically

LEDGER = "study.json"
RESULTS = "results.json"
SECONDS_FOR_OLD_WORKERS = 120.0


@dataclass
class Ledger:
    """The study's memory.

    Attributes:
        folder: ``logs/studies/<name>``.
        threads: That every run computes on: results depend on it to the last bit.
        times: Seconds of each arm's step and validation forward, as timed at the first start.
        tuned: Values that were chosen for each arm, and the trials behind them.
        looks: Numbers of seeds at which a report with a verdict was written.
    """

    folder: Path
    threads: int
    times: dict[str, dict[str, float]] = field(default_factory=dict)
    tuned: dict[str, dict[str, Any]] = field(default_factory=dict)
    looks: list[int] = field(default_factory=list)

    @classmethod
    def open(cls, folder: Path, threads: int) -> Ledger:
        """The ledger in a folder, or a new one with so many threads."""
        path = folder / LEDGER
        if not path.is_file():
            if (folder / RESULTS).exists():
                raise UserError(f"{folder}: holds a study of parts; give this study another name")
            return cls(folder, threads)
        try:
            return cls(folder, **json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{path}: not a study's ledger ({' '.join(str(error).split())}); move the folder "
                "away, or give the study another name"
            ) from error

    def save(self) -> None:
        """Write it, whole."""
        contents = {
            "threads": self.threads,
            "times": self.times,
            "tuned": self.tuned,
            "looks": self.looks,
        }
        text = json.dumps(contents, indent=2) + "\n"
        write_atomically(self.folder / LEDGER, text.encode())


def refuse_trained(folder: Path) -> None:
    """Refuse to write a study of parts over one that has trained.

    Raises:
        UserError: The folder has a ledger.
    """
    if (folder / LEDGER).exists():
        raise UserError(
            f"{folder}: holds a study that trains; give this study of parts another name"
        )


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[IO[str]]:
    """Hold the study's folder; a killed study's workers hold it until they have saved.

    The lock goes with the open file, which workers inherit, so that it is held as long as any of
    them lives.

    Raises:
        UserError: Another process runs this study.
    """
    with (folder / ".lock").open("w") as file:
        try:
            import fcntl
        except ImportError:  # Windows: nothing keeps two from one folder there
            yield file
            return
        patience, said = time.monotonic() + SECONDS_FOR_OLD_WORKERS, False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if not said:
                    print(f"waiting for {folder}: a run of this study is being saved", flush=True)
                    said = True
                if time.monotonic() > patience:
                    raise UserError(
                        f"{folder}: another process runs this study; wait for it, or stop it"
                    ) from error
                time.sleep(0.2)
        yield file
