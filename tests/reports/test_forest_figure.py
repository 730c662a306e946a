"""Forest plots, as Plotly's own objects."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("scipy", reason="scipy comes with the extra `lab`")
pytest.importorskip("plotly", reason="plotly comes with the extra `lab`")

from llama_lab.reports.forest_figure import Interval, difference_figure, ratio_figure

PAYS = Interval(
    name="rope", verdict="pays", kind="pays", mean=-0.2, low=-0.3, high=-0.1, each=[-0.25, -0.15]
)
ALONE = Interval(
    name="one <seed>", verdict="no verdict", kind="no verdict", mean=0.5, low=None, high=None,
    each=[0.5],
)  # fmt: skip


def test_a_row_is_a_mean_with_its_interval_above_a_dot_for_each_seed() -> None:
    figure = difference_figure(
        [PAYS, ALONE], "difference in loss", below="better", above="worse"
    ).figure
    names = ["rope, each", "one &lt;seed&gt;, each", "rope", "one &lt;seed&gt;"]
    assert [trace.name for trace in figure.data] == names
    dots, _, mean, alone = figure.data
    assert (mean.x, mean.y) == ((-0.2,), (1,))
    assert mean.error_x.array == pytest.approx([0.1])
    assert mean.error_x.arrayminus == pytest.approx([0.1])
    assert mean.marker.color == "var(--pays)"
    assert "(-0.3000 to -0.1000)" in mean.hovertemplate
    assert dots.x == (-0.25, -0.15)
    assert all(y < mean.y[0] for y in dots.y)
    assert alone.error_x.array is None
    assert alone.marker.color == "var(--undecided)"
    assert " to " not in alone.hovertemplate


def test_the_axis_has_the_measure_both_sides_and_the_names_in_order() -> None:
    layout = difference_figure(
        [PAYS, ALONE], "loss & co", below="better", above="worse"
    ).figure.layout
    assert layout.xaxis.title.text == "loss &amp; co"
    assert [note.text for note in layout.annotations] == ["← better", "worse →"]
    assert layout.yaxis.tickvals == (1, 0)
    assert layout.yaxis.ticktext == (
        "<b>rope</b><br>pays",
        "<b>one &lt;seed&gt;</b><br>no verdict",
    )
    assert layout.shapes[0].x0 == layout.shapes[0].x1 == 0
    low, high = layout.xaxis.range
    assert low < -0.3
    assert high > 0.5


def test_a_narrow_screen_has_the_names_above_the_intervals() -> None:
    drawing = difference_figure([PAYS, ALONE], "loss", below="better", above="worse")
    assert drawing.narrow.yaxis.showticklabels is False
    texts = [note.text for note in drawing.narrow.annotations[2:]]
    assert texts == ["<b>rope</b> · pays", "<b>one &lt;seed&gt;</b> · no verdict"]
    assert drawing.narrow.height > drawing.figure.layout.height


def test_a_half_lies_as_far_from_1_as_the_double() -> None:
    rows = [
        Interval(name=str(x), verdict=kind, kind=kind, mean=x, low=x / 1.1, high=x * 1.1, each=[x])
        for x, kind in ((0.5, "slower"), (2.0, "faster"))
    ]
    figure = ratio_figure(rows, "times as fast", below="slower", above="faster").figure
    axis = figure.layout.xaxis
    assert axis.type == "log"
    assert axis.range[0] == pytest.approx(-axis.range[1])
    assert axis.range[1] > math.log10(2.2)
    assert figure.layout.shapes[0].x0 == 1
    assert [trace.marker.color for trace in figure.data[2:]] == ["var(--costs)", "var(--pays)"]
    assert [trace.marker.symbol for trace in figure.data[2:]] == ["square", "circle"]
