"""A report as one HTML page that asks nothing of a network: styles, code and data are in it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from html import escape as escape_html
from importlib import resources

from plotly.offline import get_plotlyjs

from llama_lab.reports.blocks import (
    Block,
    Bullets,
    Cell,
    Chart,
    Command,
    Digest,
    Paragraph,
    Sample,
    Samples,
    Section,
    Table,
    Verdicts,
    kind_of,
)
from llama_lab.reports.charts import PageCharts
from llama_lab.reports.texts import as_json, visible

# A word and a sign each: colour alone says nothing to many readers, and nothing on paper.
SIGNS = {"pays": "✓", "costs": "✗", "undecided": "?", "no verdict": "\u2013", "diverged": "\u2197"}
# The page itself forbids what it does without; Plotly draws into inline styles and data URLs.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)


def render_page(title: str, sections: Iterable[Section], charts: PageCharts) -> str:
    """The whole file."""
    sections = list(sections)
    links = "".join(f'<a href="#{s.anchor}">{escape(s.title)}</a>' for s in sections)
    body = "".join(
        f'<section id="{s.anchor}"><h2>{escape(s.title)}</h2>'
        f"{''.join(render(block) for block in s.blocks)}</section>\n"
        for s in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{_resource("report.css")}</style>
</head>
<body>
<header><h1>{escape(title)}</h1><nav aria-label="Sections">{links}</nav></header>
<main>
{body}</main>
<noscript>The charts need JavaScript; results.json has their numbers.</noscript>
<script type="application/json" id="data">{_as_script_data(charts.as_data())}</script>
<script>{get_plotlyjs()}</script>
<script>
{_resource("report.js")}</script>
</body>
</html>
"""


def _resource(name: str) -> str:
    return resources.files("llama_lab.reports").joinpath(name).read_text(encoding="utf-8")


def _as_script_data(data: object) -> str:
    """JSON in which no `</script>` or `<!--` can stand."""
    return as_json(_rounded(data)).replace("<", "\\u003c")


def _rounded(value: object) -> object:
    """Numbers with the digits that a chart can show, which is most of the page's size."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, str):
        return visible(value)
    return float(f"{value:.7g}") if isinstance(value, float) else value


def escape(text: str) -> str:
    """Text that no browser takes for markup."""
    return escape_html(visible(text))


@singledispatch
def render(block: Block) -> str:
    """One block."""
    raise TypeError(f"no way to draw {type(block).__name__}")


@render.register
def _(block: Paragraph) -> str:
    kind = ' class="important"' if block.important else ""
    return f"<p{kind}>{escape(block.text)}</p>"


@render.register
def _(block: Bullets) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in block.items)}</ul>"


@render.register
def _(block: Verdicts) -> str:
    lines = (
        f'<li class="{kind_of(line.verdict).replace(" ", "-")}"><span class="badge">'
        f'<span aria-hidden="true">{SIGNS[kind_of(line.verdict)]}</span> {line.verdict}</span>'
        f"<p><b><bdi>{escape(line.arm)}</bdi>:</b> {escape(line.sentence)}</p></li>"
        for line in block.lines
    )
    return f'<ul class="verdicts">{"".join(lines)}</ul>'


@render.register
def _(block: Table) -> str:
    def line(cells: Iterable[Cell], tag: str) -> str:
        return "".join(
            _cell(cell, "th" if i == 0 else tag, i, block.names) for i, cell in enumerate(cells)
        )

    shown = block.caption and not block.folded
    caption = f"<caption>{escape(block.caption)}</caption>" if shown else ""
    rows = "".join(f"<tr>{line(row, 'td')}</tr>" for row in block.rows)
    label = escape(block.caption or ", ".join(block.header[:4]))
    # A box that scrolls must be reachable by keyboard.
    table = (
        f'<div class="scrolls" tabindex="0" role="region" aria-label="{label}"><table>{caption}'
        f"<thead><tr>{line(block.header, 'th')}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    if not block.folded:
        return table
    return f"<details><summary>{escape(block.caption)}</summary>{table}</details>"


def _cell(cell: Cell, tag: str, column: int, names: int) -> str:
    kind = "" if column < names else ' class="number"'
    if isinstance(cell, Digest):
        return f'<{tag}{kind}><code title="{escape(cell.full)}">{escape(cell.short)}</code></{tag}>'
    return f"<{tag}{kind}><bdi>{escape(cell)}</bdi></{tag}>"


@render.register
def _(block: Chart) -> str:
    caption = escape(block.caption)
    return (
        f'<figure class="chart" data-chart="{block.kind}" data-of="{escape(block.of)}">'
        '<div class="controls"></div>'
        f'<div class="plot" role="img" aria-label="{caption}"></div>'
        f"<figcaption>{caption}</figcaption></figure>"
    )


@render.register
def _(block: Samples) -> str:
    state = " open" if block.open else ""
    texts = "".join(_sample(sample) for sample in block.samples)
    return (
        f"<details{state}><summary>Seed {block.seed}</summary>"
        f'<div class="samples">{texts}</div></details>'
    )


def _sample(sample: Sample) -> str:
    passage = sample.passage
    before, found, after = sample.text.partition(passage) if passage else (sample.text, "", "")
    text = (
        f"{escape(before)}<mark>{escape(found)}</mark>{escape(after)}" if found else escape(before)
    )
    apart = f"<pre><mark>{escape(passage)}</mark></pre>" if passage and not found else ""
    shared = f"<p>{len(passage):,} characters shared</p>" if passage else "<p>nothing shared</p>"
    return (
        f"<article><h3><bdi>{escape(sample.arm)}</bdi></h3>{shared}"
        f'<pre dir="auto">{text}</pre>{apart}</article>'
    )


@render.register
def _(block: Command) -> str:
    return f'<pre class="command">{escape(block.line)}</pre>'
