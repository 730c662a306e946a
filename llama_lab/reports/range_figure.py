"""The figure of a learning-rate range test: losses over rates, and the two rates that it names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import plotly.graph_objects as go

from llama_lab.reports.figures import Drawing, colour, draw


@dataclass(frozen=True, kw_only=True)
class RangeCurve:
    """What a range test saw; it names no rate where the loss does not fall by more than noise."""

    rates: Sequence[float]
    losses: Sequence[float]
    smoothed: Sequence[float]
    steepest: float | None
    lowest: float | None


def range_figure(curve: RangeCurve) -> Drawing:
    """Losses as dots, their mean as a line, and a vertical line at each rate that is named."""
    rates, smoothed = list(curve.rates), list(curve.smoothed)
    traces = [
        go.Scatter(
            name="loss",
            mode="markers",
            x=rates,
            y=list(curve.losses),
            marker={"size": 4, "color": colour("arm-0"), "opacity": 0.45},
            hovertemplate="%{y:.4f} at %{x:.3~g}<extra></extra>",
        ),
        go.Scatter(
            name="mean",
            mode="lines",
            x=rates,
            y=smoothed,
            line={"width": 2.4, "color": colour("arm-0")},
            hovertemplate="mean %{y:.4f} at %{x:.3~g}<extra></extra>",
        ),
    ]
    top, low = max(smoothed), min(curve.losses)
    room = 0.08 * (top - low) or 0.1
    shared = {
        "margin": {"l": 56, "r": 16, "t": 44, "b": 48},
        "xaxis": {
            "type": "log",
            "title": {"text": "learning rate"},
            "exponentformat": "power",
            "dtick": 1,
        },
        "yaxis": {
            "title": {"text": "training loss, nats per token"},
            "range": [low - room, top + room],
        },
    }
    return draw(
        traces,
        {**shared, **_marks(curve, narrow=False), "height": 440},
        {**shared, **_marks(curve, narrow=True), "height": 360},
    )


def _marks(curve: RangeCurve, *, narrow: bool) -> dict[str, Any]:
    steepest, lowest = curve.steepest, curve.lowest
    if steepest is None or lowest is None:
        return {}
    close = narrow or math.log10(lowest / steepest) < 0.5
    return {
        "shapes": [_line(steepest, "pays"), _line(lowest, "quiet")],
        "annotations": [
            _word(steepest, "steepest", "right" if close else "center"),
            _word(lowest, "lowest", "left" if close else "center"),
        ],
    }


def _line(rate: float, variable: str) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": rate,
        "x1": rate,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": colour(variable), "width": 1.5, "dash": "dash"},
    }


def _word(rate: float, word: str, anchor: str) -> dict[str, Any]:
    return {
        "x": math.log10(rate),
        "yref": "paper",
        "y": 1,
        "yanchor": "bottom",
        "xanchor": anchor,
        "showarrow": False,
        # Two digits, and no power of ten.
        "text": f"{word} {Decimal(f'{rate:.1e}'):f}",
    }
