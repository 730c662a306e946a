"""Forest plots: an interval for each comparison, beside the value that means no difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from llama_lab.reports.figures import Drawing, colour, draw, plain, wrapped

COLOURS = {"pays": "pays", "costs": "costs", "faster": "pays", "slower": "costs"}
SYMBOLS = {
    "pays": "circle",
    "costs": "square",
    "undecided": "circle-open",
    "no verdict": "x-thin-open",
    "diverged": "x-thin-open",
    "faster": "circle",
    "slower": "square",
}


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A row of a forest plot."""

    name: str
    verdict: str
    kind: str
    """What decides its colour and marker."""
    mean: float | None
    low: float | None
    high: float | None
    each: Sequence[float]
    """What the mean is taken over, a small dot each."""

    @property
    def colour(self) -> str:
        """That of its verdict."""
        return colour(COLOURS.get(self.kind, "undecided"))


@dataclass(frozen=True)
class Scale:
    """The axis on which intervals lie."""

    origin: float
    """What means no difference."""
    at: Callable[[float], float]
    """Where a value lies on the axis."""
    axis: dict[str, Any]
    hover: str
    digits: int


DIFFERENCE = Scale(0, float, {"tickformat": "+~g"}, hover="+.4f", digits=4)
# A half lies as far from 1 as the double does.
RATIO = Scale(
    1,
    math.log10,
    {"tickformat": ".3~g", "type": "log", "dtick": math.log10(2)},
    hover=".2f",
    digits=2,
)


def difference_figure(rows: Sequence[Interval], label: str, *, below: str, above: str) -> Drawing:
    """Differences around 0; ``below`` and ``above`` say what either side of it means."""
    return _forest(rows, label, (below, above), DIFFERENCE)


def ratio_figure(rows: Sequence[Interval], label: str, *, below: str, above: str) -> Drawing:
    """Ratios around 1, on a logarithmic scale."""
    return _forest(rows, label, (below, above), RATIO)


def _forest(rows: Sequence[Interval], label: str, sides: tuple[str, str], scale: Scale) -> Drawing:
    heights = range(len(rows) - 1, -1, -1)
    traces = [
        *(_each(row, at) for row, at in zip(rows, heights, strict=True)),
        *(_mean(row, at, scale) for row, at in zip(rows, heights, strict=True)),
    ]
    shared = {
        "shapes": [
            {
                "type": "line",
                "x0": scale.origin,
                "x1": scale.origin,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": colour("quiet"), "width": 1.5},
            }
        ],
    }
    x = {"title": {"text": plain(label)}, "range": _reach(rows, scale), **scale.axis}
    y = {
        "range": [-0.7, len(rows) - 0.3],
        "showgrid": False,
        "fixedrange": True,
        "tickvals": list(heights),
        "tickfont": {"size": 13},
        "ticktext": [f"<b>{wrapped(row.name, 32)}</b><br>{row.verdict}" for row in rows],
    }
    words = [
        _note(x=0, xanchor="left", text=f"← {sides[0]}", font={"color": colour("quiet")}),
        _note(x=1, xanchor="right", text=f"{sides[1]} →", font={"color": colour("quiet")}),
    ]
    names = [_name(row, at) for row, at in zip(rows, heights, strict=True)]
    wide = {
        **shared,
        "height": 110 + 58 * len(rows),
        "margin": {"l": 56, "r": 16, "t": 34, "b": 48},
        "xaxis": {**x, "nticks": 9},
        "yaxis": y,
        "annotations": words,
    }
    narrow = {
        **shared,
        "height": 110 + 76 * len(rows),
        "margin": {"l": 12, "r": 16, "t": 34, "b": 48},
        "xaxis": {**x, "nticks": 5},
        "yaxis": {**y, "showticklabels": False},
        "annotations": [*words, *names],
    }
    return draw(traces, wide, narrow)


def _each(row: Interval, at: int) -> go.Scatter:
    return go.Scatter(
        name=f"{plain(row.name)}, each",
        mode="markers",
        x=list(row.each),
        y=[at - 0.2] * len(row.each),
        hoverinfo="x",
        marker={"size": 5, "color": row.colour, "opacity": 0.55},
    )


def _mean(row: Interval, at: int, scale: Scale) -> go.Scatter:
    name, error, between = plain(row.name), None, ""
    if row.mean is not None and row.low is not None and row.high is not None:
        error = {
            "type": "data",
            "symmetric": False,
            "array": [row.high - row.mean],
            "arrayminus": [row.mean - row.low],
            "color": row.colour,
            "thickness": 2.5,
            "width": 5,
        }
        between = f" ({row.low:.{scale.digits}f} to {row.high:.{scale.digits}f})"
    return go.Scatter(
        name=name,
        mode="markers",
        x=[row.mean],
        y=[at],
        error_x=error,
        marker={
            "size": 11,
            "color": row.colour,
            "symbol": SYMBOLS.get(row.kind, "circle"),
            "line": {"width": 2, "color": row.colour},
        },
        hovertemplate=(
            f"<b>{name}</b>: {row.verdict}<br>%{{x:{scale.hover}}}{between}<extra></extra>"
        ),
    )


def _reach(rows: Sequence[Interval], scale: Scale) -> list[float]:
    """From the least to the greatest value, with some room."""
    values = [v for row in rows for v in (row.mean, row.low, row.high, *row.each) if v is not None]
    places = [scale.at(value) for value in (scale.origin, *values)]
    low, high = min(places), max(places)
    room = 0.08 * (high - low) or 0.01
    return [low - room, high + room]


def _note(**more: Any) -> dict[str, Any]:
    return {
        "showarrow": False,
        "xref": "paper",
        "yref": "paper",
        "y": 1,
        "yanchor": "bottom",
        **more,
    }


def _name(row: Interval, at: int) -> dict[str, Any]:
    """A row's name above its interval, where there is no room beside it."""
    return _note(
        x=0,
        xanchor="left",
        y=at + 0.22,
        yref="y",
        align="left",
        font={"size": 13},
        text=f"<b>{wrapped(row.name, 22)}</b> · {row.verdict}",
        bgcolor=colour("veil"),
    )
