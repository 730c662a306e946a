"""Reports as GitHub-flavoured Markdown, readable as plain text too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import singledispatch

from llama_lab.reports.blocks import (
    Block,
    Bullets,
    Cell,
    Chart,
    Command,
    Digest,
    Paragraph,
    Samples,
    Section,
    Table,
    Verdicts,
)
from llama_lab.reports.texts import visible

# Signs that GitHub would take for markup anywhere in a line. An underscore within a word is none.
_MARKUP = re.compile(r"([\\`*\[\]<>&|~#$@])|(?<!\w)(_)|(_)(?!\w)")
_LINE_START = re.compile(r"^(\d+)([.)])(?=\s|$)|^([+=-])(?=[\s=-]|$)")


def render_markdown(title: str, sections: Iterable[Section]) -> str:
    """The whole file."""
    parts = [f"# {escape(title)}"]
    for section in sections:
        if texts := [text for block in section.blocks if (text := render(block))]:
            parts += [f"## {section.title}", *texts]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text as one line in which nothing is markup."""
    line = _MARKUP.sub(lambda m: "\\" + m[0], " ".join(visible(text).split()))
    return _LINE_START.sub(lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[3]}", line)


@singledispatch
def render(block: Block) -> str:
    """One block."""
    raise TypeError(f"no way to write {type(block).__name__}")


@render.register
def _(block: Paragraph) -> str:
    return f"**{escape(block.text)}**" if block.important else escape(block.text)


@render.register
def _(block: Bullets) -> str:
    return "\n".join(f"- {escape(item)}" for item in block.items)


@render.register
def _(block: Verdicts) -> str:
    return "\n".join(
        f"- **{escape(line.arm)}: {line.verdict}.** {escape(line.sentence)}" for line in block.lines
    )


@render.register
def _(block: Table) -> str:
    header = [escape(name) for name in block.header]
    rows = [[_cell(cell) for cell in row] for row in block.rows]
    widths = [max(3, *map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = [
        "-" * width if i < block.names else "-" * (width - 1) + ":"
        for i, width in enumerate(widths)
    ]
    lines = [_row(header, widths, block.names), _row(rule, widths, block.names)]
    lines += [_row(row, widths, block.names) for row in rows]
    caption = f"{escape(block.caption)}:\n\n" if block.caption else ""
    return caption + "\n".join(lines)


def _cell(cell: Cell) -> str:
    return escape(cell.short if isinstance(cell, Digest) else cell)


def _row(cells: Sequence[str], widths: Sequence[int], names: int) -> str:
    """Padded, so that the columns stand below each other in plain text too."""
    padded = (
        cell.ljust(width) if i < names else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"| {' | '.join(padded)} |"


@render.register
def _(block: Chart) -> str:
    return ""  # report.html draws it; its numbers are in the tables


@render.register
def _(block: Samples) -> str:
    parts = []
    for sample in block.samples:
        length = len(sample.passage)
        shared = f"; {length:,} characters in one piece are the training text's" if length else ""
        parts.append(
            f"**{escape(sample.arm)}**, seed {block.seed}{shared}:\n\n{fence(sample.text)}"
        )
        if sample.passage:
            parts.append(f"The passage:\n\n{fence(sample.passage)}")
    return "\n\n".join(parts)


@render.register
def _(block: Command) -> str:
    return fence(block.line)


def fence(text: str) -> str:
    """A code block, fenced by more backticks than the text has in a row."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}text\n{visible(text)}\n{ticks}"
