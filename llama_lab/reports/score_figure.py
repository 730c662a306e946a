"""The figure of scores under other settings: a mean and an interval for each arm and setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from llama_lab.reports.figures import ArmLook, Drawing, draw, plain, wrapped


@dataclass(frozen=True, kw_only=True)
class ArmScores:
    """An arm's scores, one a setting; None where the arm has none."""

    look: ArmLook
    means: list[float | None]
    low: list[float | None]
    high: list[float | None]


def score_figure(arms: Sequence[ArmScores], settings: Sequence[str], title: str) -> Drawing:
    """A line for each arm over the settings, in their order."""
    # Arms stand a little apart, so that their intervals do not cover each other.
    gap = 0.03 * min(1, 8 / len(arms))
    traces = [_trace(arm, i, gap * (i - (len(arms) - 1) / 2)) for i, arm in enumerate(arms)]

    def layout(height: int, width: int) -> dict[str, Any]:
        return {
            "height": height,
            "margin": {"l": 56, "r": 16, "t": 16, "b": 36},
            "xaxis": {
                "tickvals": list(range(len(settings))),
                "ticktext": [wrapped(name, width) for name in settings],
                "range": [-0.3, len(settings) - 0.7],
            },
            "yaxis": {"title": {"text": title}},
        }

    return draw(traces, layout(400, 16), layout(340, 8))


def _trace(arm: ArmScores, index: int, shift: float) -> go.Scatter:
    look, name = arm.look, plain(arm.look.name)
    return go.Scatter(
        name=name,
        meta={"arm": index, "mean": True},
        mode="lines+markers",
        x=[k + shift for k in range(len(arm.means))],
        y=arm.means,
        line={"width": 2, "color": look.colour, "dash": look.dash},
        marker={"size": 9, "symbol": look.symbol, "color": look.colour},
        error_y={
            "type": "data",
            "symmetric": False,
            "color": look.colour,
            "thickness": 1.2,
            "width": 4,
            "array": [_length(y, high) for y, high in zip(arm.means, arm.high, strict=True)],
            "arrayminus": [_length(low, y) for y, low in zip(arm.means, arm.low, strict=True)],
        },
        hovertemplate=f"<b>{name}</b><br>%{{y:.4f}}<extra></extra>",
    )


def _length(start: float | None, end: float | None) -> float:
    return 0 if start is None or end is None else end - start
