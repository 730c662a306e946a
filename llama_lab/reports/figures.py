"""The base of every figure: its type, theme, colours and safe texts.

Colours are the style sheet's variables. The page puts the values in, light or dark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import plotly.graph_objects as go

from llama_lab.reports.texts import visible

SYMBOLS = {
    "circle": "●",
    "square": "■",
    "diamond": "◆",
    "triangle-up": "▲",
    "triangle-down": "▼",
    "cross": "✚",
    "x": "✖",
    "star": "★",
}
"""Of Plotly's markers, and the sign that stands for each in text."""
DASHES = ("solid", "dash", "dot")
COLOURS = 6
CLEAR = "rgba(0,0,0,0)"


def colour(name: str) -> str:
    """The value of a variable of the style sheet, such as ``arm-0``."""
    return f"var(--{name})"


AXIS = {
    "gridcolor": colour("grid"),
    "linecolor": colour("line"),
    "showline": True,
    "zeroline": False,
    "automargin": True,
    "tickfont": {"size": 12},
}
THEME = go.layout.Template(
    layout={
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "showlegend": False,
        "font": {"size": 13, "color": colour("ink")},
        "hoverlabel": {
            "bgcolor": colour("raised"),
            "bordercolor": colour("line"),
            "font": {"color": colour("ink")},
        },
        "hovermode": "closest",
        "modebar": {
            "bgcolor": CLEAR,
            "color": colour("quiet"),
            "activecolor": colour("ink"),
        },
        "margin": {"l": 56, "r": 16, "t": 16, "b": 48},
        "xaxis": AXIS,
        "yaxis": AXIS,
    }
)


@dataclass(frozen=True)
class Drawing:
    """A figure, and what a page may put in the place of its parts."""

    figure: go.Figure
    narrow: go.Layout
    """Its layout where the screen is narrow."""
    xs: Mapping[str, list[list[float]]] = field(default_factory=dict)
    """Of each axis that a reader may choose: every trace's x."""

    def as_data(self) -> dict[str, Any]:
        """Plain lists and dictionaries, for the page's script."""
        figure = self.figure.to_dict()
        return {
            "data": figure["data"],
            "layout": figure["layout"],
            "narrow": self.narrow.to_plotly_json(),
            "xs": self.xs,
        }


def draw(traces: Sequence[Any], wide: dict[str, Any], narrow: dict[str, Any]) -> Drawing:
    """Traces in the theme, with one layout for wide screens and one for narrow screens."""
    layout = {"template": THEME}
    return Drawing(go.Figure(list(traces), layout | wide), go.Layout(layout | narrow))


@dataclass(frozen=True)
class ArmLook:
    """How every figure draws an arm."""

    name: str
    variable: str
    """Of its colour in the style sheet."""
    dash: str
    symbol: str

    @property
    def colour(self) -> str:
        """Of its lines and markers."""
        return colour(self.variable)

    @property
    def sign(self) -> str:
        """Its marker, as a character."""
        return SYMBOLS[self.symbol]


def arm_looks(names: Sequence[str], base: str) -> list[ArmLook]:
    """A look for each arm: grey for the base, colours for the others, then other dashes.

    Each has a marker besides, for readers who do not tell the colours apart.
    """
    looks, symbols, coloured = [], list(SYMBOLS), 0
    for i, name in enumerate(names):
        k = 0 if name == base else coloured
        coloured += name != base
        looks.append(
            ArmLook(
                name=name,
                variable="arm-base" if name == base else f"arm-{k % COLOURS}",
                dash=DASHES[k // COLOURS % len(DASHES)],
                symbol=symbols[i % len(symbols)],
            )
        )
    return looks


def plain(text: str) -> str:
    """Text on one line that Plotly takes for no markup, and for no ``%{}`` of a template."""
    escaped = escape(visible(text), quote=False).replace("%", "&#37;").replace("$", "&#36;")
    return re.sub(r"\s+", " ", escaped)


def wrapped(text: str, width: int) -> str:
    """Plain text on two lines at most, of about ``width`` characters each."""
    lines = [""]
    pieces = (
        word[i : i + width] for word in visible(text).split() for i in range(0, len(word), width)
    )
    for piece in pieces:
        if lines[-1] and len(lines[-1]) + len(piece) >= width:
            lines.append(piece)
        else:
            lines[-1] = f"{lines[-1]} {piece}".strip()
    if len(lines) > 2:
        lines = [lines[0], f"{lines[1]} …"]
    return "<br>".join(map(plain, lines))
