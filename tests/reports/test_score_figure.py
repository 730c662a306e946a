"""Scores under other settings, as Plotly's own objects."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy", reason="scipy comes with the extra `lab`")
pytest.importorskip("plotly", reason="plotly comes with the extra `lab`")

from llama_lab.reports.figures import arm_looks
from llama_lab.reports.score_figure import ArmScores, score_figure


def test_an_arm_is_a_line_with_an_interval_at_each_setting() -> None:
    first, second = arm_looks(["base", "other"], "base")
    arms = [
        ArmScores(look=first, means=[1.0, 2.0], low=[0.9, None], high=[1.2, None]),
        ArmScores(look=second, means=[1.5, None], low=[1.25, None], high=[1.75, None]),
    ]
    drawing = score_figure(arms, ["context 128", "a setting with a long name"], "loss, nats")
    base, other = drawing.figure.data
    assert (base.name, other.name) == ("base", "other")
    assert base.y == (1, 2)
    assert other.y == (1.5, None)
    assert base.error_y.array == pytest.approx([0.2, 0])
    assert base.error_y.arrayminus == pytest.approx([0.1, 0])
    # Beside each other, around their setting.
    assert base.x[0] < 0 < other.x[0]
    assert [x + y for x, y in zip(base.x, other.x, strict=True)] == pytest.approx([0, 2])
    assert other.meta == {"arm": 1, "mean": True}
    layout = drawing.figure.layout
    assert layout.yaxis.title.text == "loss, nats"
    assert layout.xaxis.ticktext == ("context 128", "a setting with a<br>long name")
    assert drawing.narrow.xaxis.ticktext[0] == "context<br>128"
