"""The report of a learning-rate range test: a page with its curve, and its numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_lab.reports.blocks import Bullets, Chart, Command, Section
from llama_lab.reports.charts import PageCharts
from llama_lab.reports.pages import render_page
from llama_lab.reports.range_figure import RangeCurve, range_figure
from llama_lab.reports.study_report import write_texts
from llama_lab.reports.texts import as_json
from llama_lab.runs.rate_range import RangeTrial


def findings(trial: RangeTrial) -> dict[str, Any]:
    """What the mean of trainings says; rates are null where its loss does not fall."""
    falls = trial.falls
    return {
        "steps": len(trial.rates),
        "trainings": len(trial.each),
        "fall": trial.fall,
        "fall_by_chance": trial.fall_by_chance,
        "steepest_lr": trial.steepest if falls else None,
        "lowest_lr": trial.lowest if falls else None,
        "lowest_lr_of_each": [each.lowest for each in trial.each] if falls else None,
        "lowest_loss": min(trial.smoothed[i] for i in trial.whole) if falls else None,
        "highest_lr": trial.rates[-1],
    }


def sentences(trial: RangeTrial, found: Mapping[str, Any]) -> list[str]:
    """The findings in words."""
    if found["lowest_lr"] is None:
        return [
            f"no rate can be named: the loss falls by {max(0, found['fall']):.2g} nats at most, "
            f"and noise alone makes up to {found['fall_by_chance']:.2g} of it",
            f"the loss only rises: lower --lr_min, below {trial.rates[0]:.2g}"
            if trial.rises
            else f"the rates are too low to learn in so few steps: raise --lr_max, above "
            f"{found['highest_lr']:.2g}, or --steps",
        ]
    end = (
        f"above {found['highest_lr']:.2g} the training diverged"
        if trial.left
        else f"at {found['highest_lr']:.2g}, the highest, it was still sound: raise --lr_max"
    )
    each = found["lowest_lr_of_each"]
    spread = f" ({min(each):.2g} to {max(each):.2g} in {len(each)} trainings)" if each[1:] else ""
    return [
        f"the loss falls fastest at {found['steepest_lr']:.2g}",
        f"it is lowest, {found['lowest_loss']:.3f}, at {found['lowest_lr']:.2g}{spread}; {end}",
        "begin with a peak between the two; a long run wants the lower one",
    ]


def write_range(name: str, trial: RangeTrial, command: str, folder: Path) -> list[str]:
    """Write ``report.html``, ``results.csv`` and ``results.json``.

    Args:
        name: Of the config.
        trial: The mean of its trainings.
        command: That made them.
        folder: Where to.

    Returns:
        The findings in words.

    Raises:
        RunError: The disk is full or refuses.
    """
    found = findings(trial)
    said = sentences(trial, found)
    curve = {"rates": trial.rates, "losses": trial.losses, "smoothed": trial.smoothed}
    of = f", the mean of {found['trainings']} trainings," if found["trainings"] > 1 else ""
    caption = (
        f"Training loss of each step{of} over its learning rate, and the mean of the "
        f"{2 * trial.span + 1} around each."
    )
    contents = [
        Section("What was found", (Bullets(tuple(said)), Chart("range", caption))),
        Section("Run it again", (Command(command),)),
    ]
    drawing = range_figure(
        RangeCurve(**curve, steepest=found["steepest_lr"], lowest=found["lowest_lr"])
    )
    title = f"Learning rates of {name}"
    texts = {
        "report.html": render_page(title, contents, PageCharts({"range": {"": drawing}})),
        "results.csv": as_csv(trial),
        "results.json": as_json({"name": name, **found, **curve}, indent=2) + "\n",
    }
    write_texts(texts, folder)
    return said


def as_csv(trial: RangeTrial) -> str:
    """A row a step."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("step", "lr", "train_loss", "smoothed_loss"))
    rows = zip(trial.rates, trial.losses, trial.smoothed, strict=True)
    writer.writerows((i, *row) for i, row in enumerate(rows, 1))
    return file.getvalue()
