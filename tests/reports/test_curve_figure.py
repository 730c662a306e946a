"""Learning curves, as Plotly's own objects."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy", reason="scipy comes with the extra `lab`")
pytest.importorskip("plotly", reason="plotly comes with the extra `lab`")

from llama_lab.reports.curve_figure import AXES, ArmCurves, MeanCurve, RunCurve, curve_figure
from llama_lab.reports.figures import arm_looks

LOOKS = arm_looks(["base", "other"], "base")


def places(steps: list[float]) -> dict[str, list[float]]:
    return {axis: [10**k * step for step in steps] for k, axis in enumerate(AXES)}


def arms() -> list[ArmCurves]:
    steps = [0.0, 2.0, 10.0]
    whole = RunCurve(seed=1, end="finished", xs=places(steps), ys=[9.0, 4.0, 2.0])
    failed = RunCurve(seed=2, end="diverged", xs=places([0.0, 3.0]), ys=[9.0, 8.0])
    mean = MeanCurve(
        runs=1, xs=places(steps), ys=[9.0, 4.0, 2.0], low=[8.0, 3.0, 1.0], high=[10.0, 5.0, 3.0]
    )
    return [
        ArmCurves(look=LOOKS[0], runs=[whole, failed], mean=mean),
        ArmCurves(look=LOOKS[1], runs=[failed], mean=None),
    ]


def test_an_arm_is_a_band_its_runs_and_their_mean() -> None:
    figure = curve_figure(arms(), "validation loss, nats per token").figure
    assert [trace.name for trace in figure.data] == [
        "base, band",
        "base, seed 1",
        "base, seed 2",
        "base, mean",
        "other, seed 2",
    ]
    band, run, failed, mean, _ = figure.data
    assert band.x == (0, 2, 10, 10, 2, 0)
    assert band.y == (10, 5, 3, 1, 3, 8)
    assert (band.fill, band.fillcolor) == ("toself", "var(--arm-base)")
    assert (run.x, run.y) == ((0, 2, 10), (9, 4, 2))
    assert run.line.dash is None
    assert failed.line.dash == "dot"
    assert failed.marker.size == (0, 9)
    assert "diverged" in failed.hovertemplate
    assert mean.line.width > 2 * run.line.width
    assert "mean of 1" in mean.hovertemplate
    assert figure.layout.xaxis.title.text == "step"
    assert figure.layout.yaxis.title.text == "validation loss, nats per token"


def test_one_finished_run_has_no_band() -> None:
    curve = places([0.0, 1.0])
    run = RunCurve(seed=1, end="finished", xs=curve, ys=[2.0, 1.0])
    mean = MeanCurve(runs=1, xs=curve, ys=[2.0, 1.0], low=None, high=None)
    figure = curve_figure([ArmCurves(look=LOOKS[0], runs=[run], mean=mean)], "loss").figure
    assert [trace.name for trace in figure.data] == ["base, seed 1", "base, mean"]


def test_every_trace_has_its_place_on_the_other_axes() -> None:
    drawing = curve_figure(arms(), "loss")
    assert set(drawing.xs) == set(AXES) - {"step"}
    for k, axis in enumerate(AXES):
        if axis != "step":
            expected = [[10**k * x for x in trace.x] for trace in drawing.figure.data]
            assert drawing.xs[axis] == expected


def test_meta_says_what_the_page_may_hide_fade_and_zoom_to() -> None:
    metas = [trace.meta for trace in curve_figure(arms(), "loss").figure.data]
    assert [meta["arm"] for meta in metas] == [0, 0, 0, 0, 1]
    assert [meta.get("fades", False) for meta in metas] == [True, True, False, False, False]
    assert [meta.get("mean", False) for meta in metas] == [False] * 3 + [True, False]
    # Behind 0.3 of the axis: of the arm with a mean its band, of the other its run.
    late = [meta.get("late") for meta in metas]
    assert late[:3] == [None] * 3
    assert late[3] == {axis: [1, 3] for axis in AXES}
    assert late[4] == {axis: [8, 8] for axis in AXES}
