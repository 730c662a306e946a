"""A study's report: ``report.html``, ``report.md``, ``results.csv`` and ``results.json``."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from llama_lab.files import write_atomically
from llama_lab.reports import tables
from llama_lab.reports.charts import study_charts
from llama_lab.reports.contents import sections
from llama_lab.reports.markdown import render_markdown
from llama_lab.reports.pages import render_page
from llama_lab.reports.texts import as_json
from llama_lab.studies.results import ArmResult, RunResult, StudyResult

# What a row of results.csv takes from each.
ARM_FIELDS = ("reference", "parameters", "flops_per_token", "cache_bytes_per_token")
NOT_IN_ROWS = ("decoding", "scores", "curve", "sample", "passage", "receipt")
RUN_FIELDS = tuple(f.name for f in dataclasses.fields(RunResult) if f.name not in NOT_IN_ROWS)
DECODING_FIELDS = ("context", "tokens_per_second", "cache_bytes")
SCORE_FIELDS = ("val_loss", "val_bits_per_byte", "refused")
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_reports(result: StudyResult, folder: Path) -> None:
    """Write the four files; each name stands for the old file or the new one, never for half.

    Raises:
        RunError: The disk is full or refuses.
    """
    contents = sections(result)
    title = f"Study {result.name}"
    texts = {
        "report.html": render_page(title, contents, study_charts(result)),
        "report.md": render_markdown(title, contents),
        "results.csv": as_csv(result),
        "results.json": as_json(dataclasses.asdict(result), indent=2) + "\n",
    }
    write_texts(texts, folder)


def write_texts(texts: Mapping[str, str], folder: Path) -> None:
    """Write files by name, each whole or not at all.

    Raises:
        RunError: The disk is full or refuses.
    """
    for name, text in texts.items():
        # Only a lone surrogate is not UTF-8, and its escape is what JSON has for it.
        data = text.encode("utf-8", "backslashreplace")
        write_atomically(folder / name, partial(_write, data))


def _write(data: bytes, file: IO[bytes]) -> None:
    file.write(data)


def as_csv(result: StudyResult) -> str:
    """One row a run; what is not known is empty."""
    names = tables.score_names(result)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        (
            *RUN_FIELDS,
            *(f"arm_{name}" for name in ARM_FIELDS),
            *(f"decoding_{name}" for name in DECODING_FIELDS),
            *(f"{score} {field}" for score in names for field in SCORE_FIELDS),
        )
    )
    writer.writerows(_row(arm, run, names) for arm in result.arms for run in arm.runs)
    return file.getvalue()


def _row(arm: ArmResult, run: RunResult, names: list[str]) -> list[Any]:
    scores = {score.name: score for score in run.scores}
    cells = [getattr(run, name) for name in RUN_FIELDS]
    cells += [getattr(arm, name) for name in ARM_FIELDS]
    cells += [getattr(run.decoding, name, None) for name in DECODING_FIELDS]
    cells += [getattr(scores.get(name), field, None) for name in names for field in SCORE_FIELDS]
    return [_cell(value) for value in cells]


def _cell(value: Any) -> Any:
    """A value as a spreadsheet may read it."""
    if isinstance(value, str):
        # A text that begins like a formula would be carried out as one.
        return f"'{value}" if value.startswith(FORMULA) else value
    # A loss that is not finite is no number in a spreadsheet either.
    return None if value != value or value in (math.inf, -math.inf) else value
