"""The figures of a study's page, and what its switches choose from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from llama_lab.reports import tables
from llama_lab.reports.blocks import ChartKind, kind_of
from llama_lab.reports.curve_figure import AXES, ArmCurves, MeanCurve, RunCurve, curve_figure
from llama_lab.reports.figures import ArmLook, Drawing, arm_looks
from llama_lab.reports.forest_figure import Interval, difference_figure
from llama_lab.reports.score_figure import ArmScores, score_figure
from llama_lab.studies.results import ArmResult, Point, RunResult, StudyResult
from llama_lab.studies.statistics import band

MOST_POINTS = 400
"""Of one curve in a page; more than a screen can show."""

# What a button says, and what the axis does.
MEASURES = {
    "val_bits_per_byte": ("bits per byte", "validation, bits per byte"),
    "val_loss": ("validation loss", "validation loss, nats per token"),
    "train_loss": ("training loss", "training loss, nats per token"),
}


@dataclass(frozen=True)
class PageCharts:
    """All that a page draws."""

    drawings: Mapping[ChartKind, Mapping[str, Drawing]]
    """Of each kind, by the name that a block of the page gives; curves by their measure."""
    arms: Sequence[ArmLook] = ()
    """A button each, which shows or hides it."""
    first: str | None = None
    """The measure that is shown first."""

    def as_data(self) -> dict[str, Any]:
        """Plain lists and dictionaries, for the page's script."""
        curves = self.drawings.get("curves", {})
        return {
            "charts": {
                kind: {name: drawing.as_data() for name, drawing in drawings.items()}
                for kind, drawings in self.drawings.items()
            },
            "arms": [
                {"name": a.name, "variable": a.variable, "dash": a.dash, "sign": a.sign}
                for a in self.arms
            ],
            "axes": {key: {"label": label, "title": title} for key, (label, title) in AXES.items()},
            "measures": {key: {"label": MEASURES[key][0]} for key in curves},
            "first": self.first,
        }


def study_charts(result: StudyResult) -> PageCharts:
    """The figures that a study's page can show."""
    looks = arm_looks([arm.name for arm in result.arms], result.base)
    measures = _measures(result)
    curves = {
        key: curve_figure(curves_of(result, key, looks), MEASURES[key][1]) for key in measures
    }
    drawings: dict[ChartKind, Mapping[str, Drawing]] = {"curves": curves}
    if tables.compared(result):
        drawings["forest"] = {"": forest(result)}
    if tables.score_names(result):
        drawings["scores"] = {"": scores(result, looks)}
    # The one that the verdicts are about is shown first.
    first = next((key for key in measures if key in result.measure), next(iter(measures), None))
    return PageCharts(drawings, looks, first)


def _measures(result: StudyResult) -> list[str]:
    """The measures that any run has."""
    points = [p for arm in result.arms for run in arm.runs for p in run.curve]
    return [key for key in MEASURES if any(getattr(point, key) is not None for point in points)]


def forest(result: StudyResult) -> Drawing:
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
            Interval(
                name=name,
                verdict=arm.verdict,
                kind=kind_of(arm.verdict),
                mean=comparison.difference,
                low=comparison.low,
                high=comparison.high,
                each=[here - there for here, there in pairs],
            )
        )
    below, above = ("worse", "better") if result.family.higher_is_better else ("better", "worse")
    return difference_figure(rows, f"difference in {result.measure}", below=below, above=above)


def curves_of(result: StudyResult, key: str, looks: Sequence[ArmLook]) -> list[ArmCurves]:
    """One measure of each arm's runs, and their mean with a band."""
    return [
        ArmCurves(look=look, runs=[_single(run, key) for run in arm.runs], mean=_mean(arm, key))
        for arm, look in zip(result.arms, looks, strict=True)
    ]


def _single(run: RunResult, key: str) -> RunCurve:
    points = _thinned(_measured(run, key))
    return RunCurve(
        seed=run.seed,
        end=tables.ending(run),
        xs=_places(points),
        ys=[getattr(point, key) for point in points],
    )


def _mean(arm: ArmResult, key: str) -> MeanCurve | None:
    """Mean and band over the finished runs, at the steps that all of them have."""
    by_step = [{p.step: p for p in _measured(run, key)} for run in tables.finished(arm)]
    if not by_step:
        return None
    steps = _thinned([step for step in by_step[0] if all(step in run for run in by_step)])
    if not steps:
        return None
    found = band([[getattr(run[step], key) for step in steps] for run in by_step])
    return MeanCurve(
        runs=len(by_step),
        xs={
            axis: [fmean(getattr(run[step], axis) for run in by_step) for step in steps]
            for axis in AXES
        },
        ys=found.mean,
        low=found.low,
        high=found.high,
    )


def _measured(run: RunResult, key: str) -> list[Point]:
    """The points that can be drawn: what was measured, and finite."""
    values = ((point, getattr(point, key)) for point in run.curve)
    return [point for point, value in values if value is not None and math.isfinite(value)]


def _thinned(items: list[Any]) -> list[Any]:
    """Every k-th item and the last, MOST_POINTS at most."""
    stride = -(-len(items) // MOST_POINTS)
    return [x for i, x in enumerate(reversed(items)) if i % stride == 0][::-1] if items else []


def _places(points: Sequence[Point]) -> dict[str, list[float]]:
    return {axis: [getattr(point, axis) for point in points] for axis in AXES}


def scores(result: StudyResult, looks: Sequence[ArmLook]) -> Drawing:
    """Mean and interval of each arm under each setting; none where it was refused."""
    names, measure = tables.score_names(result), tables.score_measure(result)
    arms = []
    for arm, look in zip(result.arms, looks, strict=True):
        values = [
            [v for s in tables.scores_of(arm, name) if (v := getattr(s, measure)) is not None]
            for name in names
        ]
        bands = [band([[v] for v in row]) if row else None for row in values]
        arms.append(
            ArmScores(
                look=look,
                means=[b.mean[0] if b else None for b in bands],
                low=[b.low[0] if b and b.low else None for b in bands],
                high=[b.high[0] if b and b.high else None for b in bands],
            )
        )
    return score_figure(arms, names, MEASURES[measure][1])
