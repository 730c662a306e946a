"""The figures of a study: what of its results each one draws."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("scipy", reason="scipy comes with the extra `lab`")
pytest.importorskip("plotly", reason="plotly comes with the extra `lab`")

from llama_lab.reports.charts import study_charts
from llama_lab.studies.results import StudyResult
from tests.reports.studies import SEEDS, study


def traces(result: StudyResult, kind: str, name: str = "") -> dict[str, Any]:
    """The traces of a figure, by name."""
    return {t.name: t for t in study_charts(result).drawings[kind][name].figure.data}


def test_the_forest_plot_has_each_comparison_with_its_interval() -> None:
    result = study()
    found = traces(result, "forest")
    for arm in result.family.arms:
        c, mean = arm.comparison, found[arm.name]
        assert mean.x == (c.difference,)
        assert mean.error_x.array[0] == pytest.approx(c.high - c.difference)
        assert mean.error_x.arrayminus[0] == pytest.approx(c.difference - c.low)
        each = found[f"{arm.name}, each"].x
        assert len(each) == len(c.seeds)
        assert sum(each) / len(each) == pytest.approx(c.difference)
    layout = study_charts(result).drawings["forest"][""].figure.layout
    assert layout.xaxis.title.text == "difference in best val_bits_per_byte"
    assert layout.annotations[0].text == "← better"
    higher = dataclasses.replace(result.family, higher_is_better=True)
    other = study_charts(dataclasses.replace(result, family=higher)).drawings["forest"][""]
    assert other.figure.layout.annotations[0].text == "← worse"


def test_one_seed_has_neither_interval_nor_band() -> None:
    result = study(seeds=(7,), failed=False)
    assert all(t.error_x.array is None for t in traces(result, "forest").values())
    found = traces(result, "curves", "val_loss")
    assert sum(name.endswith(", mean") for name in found) == 4
    assert not any(name.endswith(", band") for name in found)


def test_a_band_is_over_finished_seeds_and_a_failed_one_is_drawn_alone() -> None:
    found = traces(study(), "curves", "val_loss")
    arm = "learned positions"
    mean, band = found[f"{arm}, mean"], found[f"{arm}, band"]
    assert "mean of 4" in mean.hovertemplate
    assert mean.x[-1] == 600
    assert found[f"{arm}, seed 5"].x[-1] == 200
    assert "diverged" in found[f"{arm}, seed 5"].hovertemplate
    finished = [found[f"{arm}, seed {seed}"].y[-1] for seed in SEEDS[:4]]
    assert mean.y[-1] == pytest.approx(sum(finished) / 4, rel=1e-12)
    # The band goes along its top and back along its bottom.
    count = len(mean.y)
    assert band.y[count - 1] - mean.y[-1] == pytest.approx(mean.y[-1] - band.y[count])
    assert band.y[count] < min(finished)


def test_long_curves_are_thinned_but_keep_their_end() -> None:
    result = study(seeds=(1, 2), failed=False)
    for arm in result.arms:
        for run in arm.runs:
            last = run.curve[-1]
            run.curve[len(run.curve) :] = [
                dataclasses.replace(last, step=600 + i, val_loss=1.0) for i in range(1, 3001)
            ]
    mean = traces(result, "curves", "val_loss")["llama, mean"]
    assert 300 <= len(mean.x) <= 400
    assert mean.x[-1] == 3600
    assert traces(result, "curves", "train_loss")["llama, seed 1"].x[-1] == 3600


def test_each_measure_has_its_figure_and_that_of_the_verdicts_is_first() -> None:
    result = study()
    charts = study_charts(result)
    titles = {key: d.figure.layout.yaxis.title.text for key, d in charts.drawings["curves"].items()}
    assert titles == {
        "val_bits_per_byte": "validation, bits per byte",
        "val_loss": "validation loss, nats per token",
        "train_loss": "training loss, nats per token",
    }
    assert charts.first == "val_bits_per_byte"
    assert study_charts(dataclasses.replace(result, measure="last val_loss")).first == "val_loss"
    assert study_charts(dataclasses.replace(result, measure="seconds")).first == "val_bits_per_byte"


def test_scores_are_means_over_seeds_and_absent_where_an_arm_was_refused() -> None:
    result = study()
    found = traces(result, "scores")
    first = [run.scores[0].val_bits_per_byte for run in result.arms[0].runs]
    assert found["llama"].y[0] == pytest.approx(sum(first) / len(first))
    assert found["llama"].error_y.array[0] > 0
    assert found["learned positions"].y[1:] == (None, None, None)
    assert "scores" not in study_charts(study(scores=False)).drawings
