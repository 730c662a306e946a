"""The report of a study of parts: the same four files as any study's, from the same blocks."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llama_lab.errors import UserError
from llama_lab.kernels.pair_timing import PartResult
from llama_lab.reports.blocks import Block, Bullets, Chart, Command, Paragraph, Section, Table
from llama_lab.reports.charts import PageCharts
from llama_lab.reports.figures import Drawing
from llama_lab.reports.forest_figure import Interval, ratio_figure
from llama_lab.reports.markdown import render_markdown
from llama_lab.reports.pages import render_page
from llama_lab.reports.study_report import write_texts
from llama_lab.reports.tables import NONE, facts, mebibytes, number
from llama_lab.reports.texts import as_json

HEADER = (
    "part", "first", "second", "first (ms)", "second (ms)", "times as fast", "95 % interval",
    "first keeps (MiB)", "second keeps (MiB)",
)  # fmt: skip
CSV_FIELDS = tuple(f.name for f in dataclasses.fields(PartResult) if f.name != "ratios")


@dataclass(frozen=True, kw_only=True)
class PartReport:
    """Everything that the report of a study of parts shows."""

    name: str
    description: str
    expectation: str
    sizes: dict[str, dict[str, int]]
    turns: int
    seconds: float
    backward: bool
    parts: list[PartResult]
    threads: int
    device: dict[str, Any]
    versions: dict[str, str]
    command: str


def read_part_report(folder: Path) -> PartReport:
    """What an earlier call has written.

    Raises:
        UserError: Nothing was, or by another version.
    """
    path = folder / "results.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        parts = [PartResult(**part) for part in content.pop("parts")]
        return PartReport(**content, parts=parts)
    except FileNotFoundError as error:
        raise UserError(
            f"--report_only true: {path} is not there; leave the flag out, and parts are timed"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path}: no results of a study of parts ({' '.join(str(error).split())}); leave "
            "--report_only out, and parts are timed anew"
        ) from error


def write_part_report(report: PartReport, folder: Path) -> None:
    """Write the four files.

    Raises:
        RunError: The disk is full or refuses.
    """
    title = f"Study {report.name}"
    contents = sections(report)
    drawn = {size: timed(report.parts, size) for size in report.sizes}
    ratios = {
        f"{size}, {family}": ratio_chart([part for part in parts if part.is_same is is_same])
        for size, parts in drawn.items()
        for family, is_same in FAMILIES.items()
    }
    texts = {
        "report.html": render_page(title, contents, PageCharts({"ratios": ratios})),
        "report.md": render_markdown(title, contents),
        "results.csv": as_csv(report.parts),
        "results.json": as_json(dataclasses.asdict(report), indent=2) + "\n",
    }
    write_texts(texts, folder)


FAMILIES = {"plain and fused": True, "older and newer": False}
TITLES = {"plain and fused": "Plain against fused", "older and newer": "Older against newer"}


def timed(parts: Iterable[PartResult], size: str) -> list[PartResult]:
    """Those of a size that were not skipped."""
    return [part for part in parts if part.size == size and not part.skipped]


def as_csv(parts: list[PartResult]) -> str:
    """A row a part and size; what is not known is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow((*CSV_FIELDS, "outcome"))
    writer.writerows((*(getattr(p, name) for name in CSV_FIELDS), p.outcome) for p in parts)
    return file.getvalue()


def sections(report: PartReport) -> list[Section]:
    """The whole report but its title."""
    named: dict[str, list[Block]] = {
        "The study": _question(report),
        **{TITLES[family]: _results(report, family) for family in FAMILIES},
        "Not timed": _skipped(report),
        "How it was measured": [Bullets(tuple(method(report)))],
        "Run it again": _again(report),
    }
    return [Section(title, tuple(blocks)) for title, blocks in named.items() if blocks]


def _question(report: PartReport) -> list[Block]:
    texts = [report.description]
    if report.expectation:
        texts.append(f"What was expected: {report.expectation}")
    passes = "forward and backward" if report.backward else "forward alone"
    texts.append(
        f"Times of {passes} on {report.device['name']}, {report.threads} thread(s), "
        f"{report.device['precision']}; {report.turns} turns. They hold for this device, these "
        "sizes and these versions, and for no others."
    )
    return [Paragraph(text) for text in texts if text]


def _results(report: PartReport, family: str) -> list[Block]:
    blocks: list[Block] = []
    for size, sizes in report.sizes.items():
        parts = [p for p in timed(report.parts, size) if p.is_same is FAMILIES[family]]
        if not parts:
            continue
        given = ", ".join(f"{name} {value}" for name, value in sizes.items())
        caption = (
            f"{size} ({given}): how many times as fast the second writing is as the first; median "
            "over the turns, its 95 % interval, and each turn as a small dot, on a logarithmic "
            "scale."
        )
        rows = tuple(map(_row, parts))
        blocks += [
            Chart("ratios", caption, f"{size}, {family}"),
            Table(HEADER, rows, names=3, caption=f"{size}: medians over {report.turns} turns"),
        ]
    notes = tuple(
        f"{name}: {note}"
        for name, note in {
            p.part: p.note for p in report.parts if p.is_same is FAMILIES[family] and p.note
        }.items()
    )
    return [*blocks, Bullets(notes)] if blocks and notes else blocks


def _row(part: PartResult) -> tuple[str, ...]:
    return (
        part.part,
        part.first,
        part.second,
        milliseconds(part.first_seconds),
        milliseconds(part.second_seconds),
        number(part.ratio, ".2f"),
        NONE if part.low is None else f"{number(part.low, '.2f')} to {number(part.high, '.2f')}",
        mebibytes(part.first_kept),
        mebibytes(part.second_kept),
    )


def milliseconds(seconds: float | None) -> str:
    """Three digits."""
    return NONE if seconds is None else f"{1000 * seconds:#.3g}".rstrip(".")


def _skipped(report: PartReport) -> list[Block]:
    lines = tuple(f"{p.part}, {p.size}: {p.skipped}" for p in report.parts if p.skipped)
    return [Bullets(lines)] if lines else []


def method(report: PartReport) -> list[str]:
    """How the numbers came about: a sentence each."""
    deviations = [p.deviation for p in report.parts if p.deviation is not None]
    sentences = [
        "In every turn both writings are timed one right after the other, in an order that changes "
        f"from turn to turn, each for at least {report.seconds:g} s; calls before the first turn "
        "(compiling is in them) do not count.",
        "The ratio of a turn is the first's time over the second's: above 1 the second is faster. "
        "The interval is the sign test's, from one order statistic of the turns' ratios to "
        "another: it supposes no distribution, but turns that do not depend on each other. Each "
        "interval covers by itself, not all of them together.",
    ]
    if deviations:
        sentences.append(
            "Plain and fused writings were first checked to compute the same outputs"
            + (" and gradients" if report.backward else "")
            + f": they differ by at most {max(deviations):.1g} of the largest entry."
        )
    if report.backward:
        sentences.append(
            "Kept: the bytes that autograd holds from the forward until the backward, without "
            "inputs and weights. It is counted, not measured, and not the peak: what a kernel "
            "needs for a moment is not in it."
        )
    return sentences


def _again(report: PartReport) -> list[Block]:
    machine = {**report.device, "threads": report.threads}
    return [
        Command(report.command),
        facts("device", machine),
        facts("versions", report.versions),
        facts("sizes", report.sizes),
    ]


def line(part: PartResult, width: int) -> str:
    """One part for the terminal."""
    start = f"{part.size:<8} {part.part:<{width}}  "
    if part.skipped:
        return f"{start}skipped: {part.skipped}"
    _, first, second, first_time, second_time, ratio, interval, *_ = _row(part)
    words = {
        "faster": f"{second} is faster",
        "slower": f"{second} is slower",
        "undecided": "no difference shown",
    }
    return (
        f"{start}{first} {first_time} ms, {second} {second_time} ms: {ratio} times as fast "
        f"({interval}); {words[part.outcome]}"
    )


def ratio_chart(parts: Sequence[PartResult]) -> Drawing:
    """A row for each pair of writings: its median ratio, interval, outcome, and the turns'."""
    rows = [
        Interval(
            name=part.part,
            verdict=part.outcome,
            kind=part.outcome,
            mean=part.ratio,
            low=part.low,
            high=part.high,
            each=part.ratios,
        )
        for part in parts
    ]
    label = "times as fast as the first writing"
    return ratio_figure(rows, label, below="slower", above="faster")
