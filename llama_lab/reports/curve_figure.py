"""The figure of learning curves: each arm's runs, their mean and its band."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from llama_lab.reports.figures import ArmLook, Drawing, draw, plain

# What a button says, and what the axis does.
AXES = {
    "step": ("step", "step"),
    "tokens": ("tokens", "tokens"),
    "flops": ("FLOPs", "FLOPs of training"),
    "seconds": ("time", "seconds of training"),
}
LATE = 0.2999
"""Losses fall steeply at first: what tells arms apart is behind this share of the axis.

It is just below 0.3, so that rounding does not decide whether the point at 180 of 600 counts.
"""


@dataclass(frozen=True, kw_only=True)
class RunCurve:
    """A measure over one run."""

    seed: int
    end: str
    xs: Mapping[str, list[float]]
    """Of each axis."""
    ys: list[float]


@dataclass(frozen=True, kw_only=True)
class MeanCurve:
    """The mean over an arm's runs, and a band where there are two or more."""

    runs: int
    xs: Mapping[str, list[float]]
    ys: Sequence[float]
    low: Sequence[float] | None
    high: Sequence[float] | None


@dataclass(frozen=True, kw_only=True)
class ArmCurves:
    """All that is drawn of an arm."""

    look: ArmLook
    runs: Sequence[RunCurve]
    mean: MeanCurve | None


def curve_figure(arms: Sequence[ArmCurves], title: str) -> Drawing:
    """One measure of every arm over steps, and the places of its points on the other axes.

    Each trace's ``meta`` says which ``arm`` it is of, whether it is the ``mean``, whether it
    ``fades`` where many arms are shown, and the ``late`` range of its values over each axis.
    """
    drawn = [pair for i, arm in enumerate(arms) for pair in _traces(arm, i)]
    shared = {"yaxis": {"title": {"text": title}}}
    x = {"title": {"text": AXES["step"][1]}, "rangemode": "tozero"}
    drawing = draw(
        [trace for trace, _ in drawn],
        {**shared, "height": 460, "xaxis": {**x, "nticks": 10}},
        {**shared, "height": 360, "xaxis": {**x, "nticks": 5}},
    )
    xs = {axis: [places[axis] for _, places in drawn] for axis in AXES if axis != "step"}
    return Drawing(drawing.figure, drawing.narrow, xs)


Places = Mapping[str, list[float]]


def _traces(arm: ArmCurves, index: int) -> Iterator[tuple[go.Scatter, Places]]:
    mean = arm.mean
    if mean and mean.low and mean.high:
        # Around the band: to the end along its top, and back along its bottom.
        around = {axis: [*x, *reversed(x)] for axis, x in mean.xs.items()}
        yield _band(arm.look, [*mean.high, *reversed(mean.low)], around["step"], index), around
    for run in arm.runs:
        meta: dict[str, Any] = {"arm": index, "fades": run.end == "finished"}
        if not mean:
            meta["late"] = _late(run.xs, run.ys, run.ys)
        yield _run(arm.look, run, meta), run.xs
    if mean:
        yield _mean(arm.look, mean, index), mean.xs


def _band(look: ArmLook, y: list[float], x: list[float], index: int) -> go.Scatter:
    return go.Scatter(
        name=f"{plain(look.name)}, band",
        meta={"arm": index, "fades": True},
        x=x,
        y=y,
        mode="lines",
        line={"width": 0},
        fill="toself",
        fillcolor=look.colour,
        opacity=0.16,
        hoverinfo="skip",
    )


def _run(look: ArmLook, run: RunCurve, meta: dict[str, Any]) -> go.Scatter:
    name = f"{plain(look.name)}, seed {run.seed}"
    more: dict[str, Any] = {
        "mode": "lines",
        "line": {"width": 0.8, "color": look.colour},
        "opacity": 0.45,
    }
    if run.end != "finished":
        # It ends with a cross.
        sizes = [0] * (len(run.ys) - 1) + [9]
        more = {
            "mode": "lines+markers",
            "line": {"width": 1.5, "color": look.colour, "dash": "dot"},
            "marker": {"size": sizes, "symbol": "x", "color": look.colour, "line": {"width": 0}},
            "opacity": 0.9,
        }
    return go.Scatter(
        name=name,
        meta=meta,
        x=run.xs["step"],
        y=run.ys,
        hovertemplate=f"{name}: {run.end}<br>%{{y:.4f}} at %{{x:.4~s}}<extra></extra>",
        **more,
    )


def _mean(look: ArmLook, mean: MeanCurve, index: int) -> go.Scatter:
    name = plain(look.name)
    late = _late(mean.xs, mean.low or mean.ys, mean.high or mean.ys)
    return go.Scatter(
        name=f"{name}, mean",
        meta={"arm": index, "mean": True, "late": late},
        x=mean.xs["step"],
        y=list(mean.ys),
        mode="lines+markers",
        line={"width": 2.4, "color": look.colour, "dash": look.dash},
        marker={"size": 8, "symbol": look.symbol, "color": look.colour, "maxdisplayed": 8},
        hovertemplate=(
            f"<b>{name}</b>, mean of {mean.runs}<br>%{{y:.4f}} at %{{x:.4~s}}<extra></extra>"
        ),
    )


def _late(xs: Places, low: Sequence[float], high: Sequence[float]) -> dict[str, list[float]]:
    """The range of the values behind the share ``LATE`` of each axis."""
    ranges = {}
    for axis, x in xs.items():
        late = [k for k, place in enumerate(x) if place >= LATE * max(x)]
        if late:
            ranges[axis] = [min(low[k] for k in late), max(high[k] for k in late)]
    return ranges
