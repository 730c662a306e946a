"""The table of a study at a terminal: arms down, seeds across, a run a cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from rich.table import Table
from rich.text import Text

T = TypeVar("T")

# From the longest form of a cell (`43% 1.2345 (1.2001)`) to the shortest (`1.2001`).
CELL_WIDTHS = (19, 10, 6)
GAP = 2
NARROWEST_NAME = 8
# Title, line of the seeds, three lines below the table, and the cursor's.
LINES_AROUND = 6
STYLES = {"finished": "green", "running": "bold", "waiting": "dim"}
SHORT = {
    "stopped": "stop",
    "diverged": "div.",
    "out of memory": "memory",
    "crashed": "crash",
    "refused": "refuse",
}


@dataclass
class Cell:
    """One run, as far as it has come.

    Attributes:
        steps: That it will make.
        state: ``waiting``, ``running``, or how it ended.
        step: The last one that it logged.
        train_loss: Its last one.
        latest: The study's measure at the last validation.
        best: The study's measure so far: the best validation's, or the last one's.
    """

    steps: int
    state: str = "waiting"
    step: int = 0
    train_loss: float | None = None
    latest: float | None = None
    best: float | None = None

    def forms(self) -> list[str]:
        """What the cell can say, from long to short."""
        done = f"{100 * self.step // max(1, self.steps)}%"
        best = "" if self.best is None else figure(self.best)
        if self.state == "finished":
            return [best or "done"]
        if self.state == "waiting":
            if not self.step:
                return ["waiting", "wait"]
            return [f"paused {done} {best}".rstrip(), f"paused {done}", "paused"]
        if self.state != "running":
            word = self.state.replace("_", " ")
            return [f"{word} at {done}", word, SHORT.get(word, word[:6])]
        if self.latest is not None:
            return [f"{done} {figure(self.latest)} ({best})", f"{done} {best}", done]
        loss = [] if self.train_loss is None else [f"{done} train {figure(self.train_loss)}"]
        return [*loss, done]

    def text(self, width: int) -> Text:
        """The longest form that fits."""
        forms = self.forms()
        words = next((form for form in forms if len(form) <= width), forms[-1])
        return Text(words, style=STYLES.get(self.state, "red"))


def figure(value: float) -> str:
    """A measure in six characters."""
    return f"{value:.4f}" if 0 <= value < 10 else f"{value:.4g}"


@dataclass(frozen=True)
class Grid:
    """The runs of a study by arm and seed.

    Attributes:
        cells: By arm, then by seed.
        references: The arm that each is compared with.
        measure: What the numbers are, in words.
    """

    cells: Mapping[str, Mapping[int, Cell]]
    references: Mapping[str, str]
    measure: str

    @property
    def seeds(self) -> list[int]:
        """Every seed that an arm has."""
        return list(dict.fromkeys(seed for row in self.cells.values() for seed in row))

    def mean(self, arm: str) -> float | None:
        """Of an arm all of whose runs have finished."""
        values = [cell.best for cell in self.cells[arm].values() if cell.state == "finished"]
        found = [value for value in values if value is not None]
        return fmean(found) if len(found) == len(self.cells[arm]) else None

    def difference(self, arm: str) -> float | None:
        """Its mean less its reference's, over the same seeds."""
        other = self.references[arm]
        if other == arm or other not in self.cells:
            return None
        ours, theirs = self.mean(arm), self.mean(other)
        same = self.cells[arm].keys() == self.cells[other].keys()
        return None if ours is None or theirs is None or not same else ours - theirs


@dataclass(frozen=True)
class Layout:
    """What of a table a terminal has room for."""

    name: int
    cell: int
    arms: list[str]
    seeds: list[int]
    means: bool


def lay_out(grid: Grid, width: int, height: int | None) -> Layout:
    """Fit a grid into a terminal.

    Args:
        grid: The runs.
        width: Columns of the terminal.
        height: Its lines; None shows every arm.
    """
    seeds = grid.seeds
    longest = max(len(arm) for arm in grid.cells)
    name = min(longest, max(NARROWEST_NAME, width // 4))
    compared = any(other in grid.cells for arm, other in grid.references.items() if other != arm)
    means = 2 * (CELL_WIDTHS[-1] + 1 + GAP) if compared else 0
    narrow = max(CELL_WIDTHS[-1], *(len(str(seed)) for seed in seeds))
    widths = [max(cell, narrow) for cell in CELL_WIDTHS]
    # A cell for each seed is worth most, then the loss of a run under way, then the means.
    long, middle, short = widths
    choices = [(long, means), (middle, means), (middle, 0), (short, means), (short, 0)]
    cell, extra = next(
        (c for c in choices if name + len(seeds) * (c[0] + GAP) + c[1] <= width), (narrow, 0)
    )
    room = max(1, (width - name - extra) // (cell + GAP))
    lines = len(grid.cells) if height is None else max(1, height - LINES_AROUND)
    return Layout(
        name=name,
        cell=cell,
        arms=most_telling(list(grid.cells), lines, lambda arm: list(grid.cells[arm].values())),
        seeds=most_telling(
            seeds, room, lambda seed: [row[seed] for row in grid.cells.values() if seed in row]
        ),
        means=bool(extra),
    )


def most_telling(items: list[T], room: int, cells_of: Callable[[T], Sequence[Cell]]) -> list[T]:
    """As many as there is room for, in their order: those with a run under way, then the open."""

    def rank(item: T) -> int:
        states = {cell.state for cell in cells_of(item)}
        return 0 if "running" in states else 1 if "waiting" in states else 2

    kept = sorted(range(len(items)), key=lambda index: rank(items[index]))[:room]
    return [items[index] for index in sorted(kept)]


def draw(grid: Grid, title: str, width: int, height: int | None) -> Table:
    """The table of a study.

    Args:
        grid: The runs.
        title: The line above.
        width: Columns of the terminal.
        height: Its lines; None shows every arm.
    """
    layout = lay_out(grid, width, height)
    whole = Table.grid()
    whole.add_column(no_wrap=True, overflow="ellipsis")
    whole.add_row(Text(title, style="bold"))
    whole.add_row(cells_table(grid, layout))
    for line in captions(grid, layout):
        whole.add_row(Text(line, style="dim"))
    return whole


def cells_table(grid: Grid, layout: Layout) -> Table:
    """The cells alone, with their arms and seeds."""
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    table.add_column("arm", width=layout.name, no_wrap=True, overflow="ellipsis")
    for seed in layout.seeds:
        head = f"seed {seed}" if len(f"seed {seed}") <= layout.cell else str(seed)
        table.add_column(head, width=layout.cell, no_wrap=True, overflow="ellipsis")
    if layout.means:
        table.add_column("mean", justify="right", no_wrap=True, width=CELL_WIDTHS[-1] + 1)
        table.add_column("differs", justify="right", no_wrap=True, width=CELL_WIDTHS[-1] + 1)
    for arm in layout.arms:
        row = grid.cells[arm]
        words = [row[seed].text(layout.cell) if seed in row else Text("") for seed in layout.seeds]
        if layout.means:
            mean, difference = grid.mean(arm), grid.difference(arm)
            words.append(Text("" if mean is None else figure(mean)))
            words.append(Text("" if difference is None else f"{difference:+.4f}"))
        table.add_row(Text(arm), *words)
    return table


def captions(grid: Grid, layout: Layout) -> list[str]:
    """What the numbers are, and what there was no room for."""
    wide = layout.cell >= CELL_WIDTHS[0]
    numbers = "latest validation (best so far)" if wide else "best so far"
    lines = [f"{grid.measure}: {numbers}"]
    if layout.means:
        lines[0] += "; mean, differs from its reference: provisional"
    hidden = [arm for arm in grid.cells if arm not in layout.arms]
    if hidden:
        states = [cell.state for arm in hidden for cell in grid.cells[arm].values()]
        counts = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
        lines.append(f"{len(hidden)} more arms, for which the terminal is too low: {counts} runs")
    if missing := [str(seed) for seed in grid.seeds if seed not in layout.seeds]:
        lines.append(f"the terminal is too narrow for seeds {', '.join(missing)}")
    return lines
