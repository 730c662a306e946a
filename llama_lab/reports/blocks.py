"""Blocks of a report, which each output format renders.

All text in them is as its author wrote it: escaping is the renderers' work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


def kind_of(verdict: str) -> str:
    """What decides its colour and sign: ``diverged in 1 of 5`` is of the kind ``diverged``."""
    return "diverged" if verdict.startswith("diverged") else verdict


@dataclass(frozen=True)
class Digest:
    """A hash; a reader compares its beginning, and may ask for the rest."""

    full: str

    @property
    def short(self) -> str:
        """Twelve hexadecimal digits tell any two runs of a study apart."""
        return self.full[:12]


Cell = str | Digest


@dataclass(frozen=True)
class Paragraph:
    """Sentences."""

    text: str
    important: bool = False


@dataclass(frozen=True)
class Bullets:
    """Sentences that stand for themselves."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """One arm's verdict, and the sentence that gives it."""

    arm: str
    verdict: str
    sentence: str


@dataclass(frozen=True)
class Verdicts:
    """What the study concludes, an arm a line."""

    lines: tuple[Judged, ...]


@dataclass(frozen=True)
class Table:
    """Columns of names first, numbers behind them."""

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    names: int = 1
    """How many columns, from the left, hold words."""
    caption: str = ""
    folded: bool = False
    """Whether a page shows it only when asked."""


ChartKind = Literal["forest", "curves", "scores", "ratios", "range"]


@dataclass(frozen=True)
class Chart:
    """A drawing; only a page has it, and its caption says what it shows."""

    kind: ChartKind
    caption: str
    of: str = ""
    """Which of a kind's drawings; the page has them by this name."""


@dataclass(frozen=True)
class Sample:
    """What a run wrote."""

    arm: str
    text: str
    passage: str
    """The longest passage in it that the training text has word for word."""


@dataclass(frozen=True)
class Samples:
    """What the arms wrote with one seed, side by side."""

    seed: int
    samples: tuple[Sample, ...]
    open: bool = True
    """Whether a page shows it without being asked."""


@dataclass(frozen=True)
class Command:
    """A line for a shell."""

    line: str


Block = Paragraph | Bullets | Verdicts | Table | Chart | Samples | Command


@dataclass(frozen=True)
class Section:
    """A headline and what stands below it."""

    title: str
    blocks: tuple[Block, ...]

    @property
    def anchor(self) -> str:
        """Its name in links; our titles are plain words."""
        return self.title.lower().replace(" ", "-").replace(",", "")
