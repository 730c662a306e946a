"""Data of a report's charts, as plain lists: the page picks axes and colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from llama_lab.reports import tables
from llama_lab.reports.blocks import kind_of
from llama_lab.studies.results import ArmResult, Point, RunResult, StudyResult
from llama_lab.studies.statistics import band

MOST_POINTS = 400
"""Of one curve in a page; more than a screen can show."""

# What a button says, and what the axis does.
AXES = {
    "step": {"label": "step", "title": "step"},
    "tokens": {"label": "tokens", "title": "tokens"},
    "flops": {"label": "FLOPs", "title": "FLOPs of training"},
    "seconds": {"label": "time", "title": "seconds of training"},
}
MEASURES = {
    "val_bits_per_byte": {"label": "bits per byte", "title": "validation, bits per byte"},
    "val_loss": {"label": "validation loss", "title": "validation loss, nats per token"},
    "train_loss": {"label": "training loss", "title": "training loss, nats per token"},
}


def chart_data(result: StudyResult) -> dict[str, Any]:
    """All that the page's charts need."""
    return {
        "arms": [{"name": arm.name, "base": arm.name == result.base} for arm in result.arms],
        "axes": AXES,
        "forest": forest(result),
        "curves": curves(result),
        "scores": scores(result),
    }


def forest(result: StudyResult) -> dict[str, Any]:
    """A row for each comparison: its mean, interval, verdict, and the seeds' differences."""
    runs = {
        (arm.name, run.seed): run.primary
        for arm in result.arms
        for run in arm.runs
        if run.primary is not None
    }
    references = {arm.name: arm.reference for arm in result.arms}
    rows = []
    for arm in tables.compared(result):
        name, comparison = arm.name, arm.comparison
        pairs = [(runs[name, s], runs[references[name], s]) for s in comparison.seeds]
        rows.append(
            {
                "name": name,
                "verdict": arm.verdict,
                "kind": kind_of(arm.verdict),
                "mean": comparison.difference,
                "low": comparison.low,
                "high": comparison.high,
                "seeds": [here - there for here, there in pairs],
            }
        )
    return {
        "rows": rows,
        "label": f"difference in {result.measure}",
        "sides": ["worse", "better"] if result.family.higher_is_better else ["better", "worse"],
    }


def curves(result: StudyResult) -> dict[str, Any]:
    """Each arm's runs and their mean with a band, for every measure that any of them has."""
    points = [p for arm in result.arms for run in arm.runs for p in run.curve]
    measures = {
        key: words
        for key, words in MEASURES.items()
        if any(getattr(point, key) is not None for point in points)
    }
    # The one that the verdicts are about is shown first.
    first = next((key for key in measures if key in result.measure), next(iter(measures), None))
    return {
        "measures": measures,
        "first": first,
        "arms": [
            {key: {"runs": _single(arm, key), "mean": _mean(arm, key)} for key in measures}
            for arm in result.arms
        ],
    }


def _single(arm: ArmResult, key: str) -> list[dict[str, Any]]:
    return [
        {
            "seed": run.seed,
            "end": tables.ending(run),
            **_line(_thinned(_measured(run, key)), lambda p: getattr(p, key)),
        }
        for run in arm.runs
    ]


def _mean(arm: ArmResult, key: str) -> dict[str, Any] | None:
    """Mean and band over the finished runs, at the steps that all of them have."""
    by_step = [{p.step: p for p in _measured(run, key)} for run in tables.finished(arm)]
    if not by_step:
        return None
    steps = _thinned([step for step in by_step[0] if all(step in run for run in by_step)])
    if not steps:
        return None
    found = band([[getattr(run[step], key) for step in steps] for run in by_step])
    axes = {
        axis: [fmean(getattr(run[step], axis) for run in by_step) for step in steps]
        for axis in AXES
    }
    return {"seeds": len(by_step), **axes, "y": found.mean, "low": found.low, "high": found.high}


def _measured(run: RunResult, key: str) -> list[Point]:
    """The points that can be drawn: what was measured, and finite."""
    values = ((point, getattr(point, key)) for point in run.curve)
    return [point for point, value in values if value is not None and math.isfinite(value)]


def _thinned(items: list[Any]) -> list[Any]:
    """Every k-th item and the last, MOST_POINTS at most."""
    stride = -(-len(items) // MOST_POINTS)
    return [x for i, x in enumerate(reversed(items)) if i % stride == 0][::-1] if items else []


def _line(points: Sequence[Point], y: Callable[[Point], float]) -> dict[str, Any]:
    axes = {axis: [getattr(point, axis) for point in points] for axis in AXES}
    return {**axes, "y": [y(point) for point in points]}


def scores(result: StudyResult) -> dict[str, Any]:
    """Mean and interval of each arm under each setting; null where it was refused."""
    names, measure = tables.score_names(result), tables.score_measure(result)
    arms = []
    for arm in result.arms:
        values = [
            [v for s in tables.scores_of(arm, name) if (v := getattr(s, measure)) is not None]
            for name in names
        ]
        bands = [band([[v] for v in row]) if row else None for row in values]
        arms.append(
            {
                "y": [b.mean[0] if b else None for b in bands],
                "low": [b.low[0] if b and b.low else None for b in bands],
                "high": [b.high[0] if b and b.high else None for b in bands],
            }
        )
    return {"names": names, "label": MEASURES[measure]["title"], "arms": arms}
