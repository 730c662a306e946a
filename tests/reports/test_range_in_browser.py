"""The page of a learning-rate range test in a real Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("scipy", reason="scipy comes with the extra `lab`")
pytest.importorskip("plotly", reason="plotly comes with the extra `lab`")

from llama_lab.reports.range_report import write_range
from llama_lab.runs.rate_range import RangeTest, RangeTrial, averaged
from tests.reports.browser import LAPTOP, PHONE, Browser


def test_the_curve_and_both_rates_are_drawn_and_fit_the_screen(
    browser: Browser, tmp_path: Path
) -> None:
    test, trial = RangeTest(lr_min=1e-4, lr_max=1.0, steps=40), RangeTrial()
    for step in range(40):
        trial.add(test.rate(step), 3 + ((step - 25) / 20) ** 2)
    write_range("tiny", averaged([trial]), "llama-lab lr-range tiny.yaml", tmp_path)
    browser.errors.clear()
    browser.requests.clear()
    for size in (PHONE, LAPTOP):
        browser.resize(size)
        browser.open(tmp_path / "report.html")
        drawn = browser.run(
            """[...document.querySelectorAll('[data-chart=range] .scatterlayer .trace')]
            .map(node => node.__data__[0].trace.y.length)"""
        )
        assert drawn == [40, 40]
        labels = browser.run(
            """[...document.querySelectorAll('[data-chart=range] .annotation-text')]
            .map(node => node.textContent)"""
        )
        assert labels == [f"steepest {trial.steepest:.2g}", f"lowest {trial.lowest:.2g}"]
        wide = "document.documentElement.scrollWidth - document.body.parentNode.clientWidth"
        assert browser.run(wide) == 0
    assert browser.errors == []
    assert all(request.startswith(("file:", "data:", "blob:")) for request in browser.requests)
