"""The figure of a learning-rate range test, as Plotly's own objects."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy", reason="scipy comes with the extra `lab`")
pytest.importorskip("plotly", reason="plotly comes with the extra `lab`")

from llama_lab.reports.range_figure import RangeCurve, range_figure

RATES = [0.00001, 0.0001, 0.001, 0.01]


def curve(steepest: float | None, lowest: float | None) -> RangeCurve:
    return RangeCurve(
        rates=RATES,
        losses=[4.0, 3.0, 2.0, 9.0],
        smoothed=[3.5, 3.0, 2.5, 5.0],
        steepest=steepest,
        lowest=lowest,
    )


def test_losses_are_dots_and_their_mean_a_line_with_both_rates_marked() -> None:
    figure = range_figure(curve(0.000032, 0.001)).figure
    losses, mean = figure.data
    assert (losses.name, losses.mode, losses.y) == ("loss", "markers", (4, 3, 2, 9))
    assert (mean.name, mean.mode, mean.y) == ("mean", "lines", (3.5, 3, 2.5, 5))
    assert losses.x == mean.x == tuple(RATES)
    layout = figure.layout
    assert (layout.xaxis.type, layout.xaxis.title.text) == ("log", "learning rate")
    assert layout.yaxis.title.text == "training loss, nats per token"
    # Up to where the mean goes: single losses may leave the screen.
    assert layout.yaxis.range[0] < 2
    assert 5 < layout.yaxis.range[1] < 9
    assert [line.x0 for line in layout.shapes] == [0.000032, 0.001]
    words = [note.text for note in layout.annotations]
    assert words == ["steepest 0.000032", "lowest 0.0010"]
    assert [note.x for note in layout.annotations] == pytest.approx([-4.4949, -3], abs=1e-4)


def test_words_of_rates_that_are_close_stand_on_either_side() -> None:
    def anchors(layout: object) -> list[str]:
        return [note.xanchor for note in layout.annotations]

    far, close = range_figure(curve(0.00003, 0.001)), range_figure(curve(0.0005, 0.001))
    assert anchors(far.figure.layout) == ["center", "center"]
    assert anchors(close.figure.layout) == anchors(far.narrow) == ["right", "left"]


def test_no_rate_is_marked_where_none_is_named() -> None:
    layout = range_figure(curve(None, None)).figure.layout
    assert not layout.shapes
    assert not layout.annotations
