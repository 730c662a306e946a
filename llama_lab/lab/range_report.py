"""What a learning-rate range test found: a page with its curve, and its numbers."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from llama_lab.lab.blocks import Bullets, Chart, Command, Section
from llama_lab.lab.pages import render_page
from llama_lab.lab.report import write_texts
from llama_lab.lab.texts import as_json
from llama_lab.training.rate_range import Walk


def findings(walk: Walk) -> dict[str, Any]:
    """Steps, the rate of the steepest fall and that of the lowest loss, and the loss there."""
    return {
        "steps": len(walk.rates),
        "steepest_lr": walk.steepest,
        "lowest_lr": walk.lowest,
        "lowest_loss": min(walk.smoothed),
        "highest_lr": walk.rates[-1],
    }


def sentences(walk: Walk) -> list[str]:
    """The findings in words."""
    found = findings(walk)
    end = (
        f"above {found['highest_lr']:.2g} the training diverged"
        if walk.left
        else f"at {found['highest_lr']:.2g}, the highest, it was still sound: raise --lr_max"
    )
    return [
        f"the loss falls fastest at {found['steepest_lr']:.2g}",
        f"it is lowest, {found['lowest_loss']:.3f}, at {found['lowest_lr']:.2g}; {end}",
        "begin with a peak between the two; a long run wants the lower one",
    ]


def write_range(name: str, walk: Walk, command: str, folder: Path) -> None:
    """Write ``report.html``, ``results.csv`` and ``results.json``.

    Raises:
        UserError: Plotly is not installed.
        RunError: The disk is full or refuses.
    """
    curve = {"rates": walk.rates, "losses": walk.losses, "smoothed": walk.smoothed}
    found = findings(walk)
    caption = (
        "Training loss of each step over its learning rate, and the mean of the "
        f"{2 * walk.span + 1} around each."
    )
    contents = [
        Section("What was found", (Bullets(tuple(sentences(walk))), Chart("range", caption))),
        Section("Run it again", (Command(command),)),
    ]
    title = f"Learning rates of {name}"
    texts = {
        "report.html": render_page(title, contents, {"arms": [], "range": {**curve, **found}}),
        "results.csv": as_csv(walk),
        "results.json": as_json({"name": name, **found, **curve}, indent=2) + "\n",
    }
    write_texts(texts, folder)


def as_csv(walk: Walk) -> str:
    """A row a step."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("step", "lr", "train_loss", "smoothed_loss"))
    rows = zip(walk.rates, walk.losses, walk.smoothed, strict=True)
    writer.writerows((i, *row) for i, row in enumerate(rows, 1))
    return file.getvalue()
