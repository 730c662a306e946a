"""The page in a real Chromium: what is drawn, what switches do, how it fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy", reason="scipy comes with the extra `lab`")
pytest.importorskip("plotly", reason="plotly comes with the extra `lab`")

from llama_lab.reports.study_report import write_reports
from llama_lab.reports.texts import visible
from llama_lab.studies.results import StudyResult
from tests.reports.browser import LAPTOP, PHONE, Browser
from tests.reports.studies import study
from tests.reports.test_report import HOSTILE, hostile

Open = Callable[[StudyResult], Path]


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Open:
    """Write a study's report and open it, at laptop width and light; the log starts anew."""

    def show(result: StudyResult) -> Path:
        write_reports(result, tmp_path)
        browser.errors.clear()
        browser.requests.clear()
        browser.emulate(scheme="light")
        browser.resize(LAPTOP)
        page = tmp_path / "report.html"
        browser.open(page)
        return page

    return show


def shown_arms(browser: Browser, chart: str) -> list[int]:
    """The arms whose means a chart draws, from its drawing, not from what it was asked."""
    return browser.run(
        f"""[...document.querySelectorAll('[data-chart={chart}] .scatterlayer .trace')]
        .map(node => node.__data__[0].trace).filter(t => t.visible === true && t.meta.mean)
        .map(t => t.meta.arm).sort((a, b) => a - b)"""
    )


def of_curves(browser: Browser, expression: str) -> Any:
    plot = "document.querySelector('[data-chart=curves] .plot')"
    return browser.run(f"(plot => {expression})({plot})")


def overflow(browser: Browser) -> int:
    """By how many pixels the page is wider than the screen."""
    return browser.run(
        "document.documentElement.scrollWidth - document.body.parentNode.clientWidth"
    )


def press(browser: Browser, selector: str) -> None:
    """Press Enter on an element, as one without a mouse does."""
    browser.run(f"document.querySelector({selector!r}).focus()")
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
    browser.call("Input.dispatchKeyEvent", type="keyDown", text="\r", **enter)
    browser.call("Input.dispatchKeyEvent", type="keyUp", **enter)
    browser.settle()


def test_the_page_opens_without_complaint_and_asks_for_nothing_but_itself(
    browser: Browser, show: Open
) -> None:
    page = show(study())
    assert browser.errors == []
    assert browser.requests == [page.as_uri()]
    assert shown_arms(browser, "curves") == [0, 1, 2, 3]
    assert shown_arms(browser, "scores") == [0, 1, 2, 3]
    rows = "document.querySelectorAll('[data-chart=forest] .errorbar').length"
    assert browser.run(rows) == 3
    # Each arm: a band and a mean; each run a thin line, the failed one too.
    assert of_curves(browser, "plot.data.length") == 4 * 2 + 20


def test_a_button_switches_an_arm_off_and_on_in_every_chart(browser: Browser, show: Open) -> None:
    show(study())
    button = "[data-chart=curves] button[data-arm='1']"
    press(browser, button)
    assert shown_arms(browser, "curves") == shown_arms(browser, "scores") == [0, 2, 3]
    left = of_curves(browser, "plot.data.filter(t => t.visible && t.meta.arm === 1).length")
    assert left == 0
    pressed = "[...document.querySelectorAll(`button[data-arm='1']`)].map(b => b.ariaPressed)"
    assert browser.run(pressed) == ["false", "false"]
    press(browser, button)
    assert shown_arms(browser, "curves") == shown_arms(browser, "scores") == [0, 1, 2, 3]
    for word, arms in (("none", []), ("all", [0, 1, 2, 3])):
        browser.run(
            f"[...document.querySelectorAll('.arms button')].find(b => b.textContent === '{word}')"
            ".click()"
        )
        browser.settle()
        assert shown_arms(browser, "curves") == arms
    assert browser.errors == []


def test_axes_switch(browser: Browser, show: Open) -> None:
    show(study(seeds=(1, 2), failed=False))
    mean = "plot.data.find(t => t.meta.mean)"
    assert drawn_titles(browser) == ["step", "validation, bits per byte"]
    bits, steps = (of_curves(browser, f"Array.from({mean}.{axis})") for axis in "yx")
    ends = {"tokens": 600 * 4096, "flops": 600 * 4096 * 5.1e6, "step": 600}
    for key, title in {"seconds": "seconds of training", "flops": "FLOPs of training"}.items():
        choose(browser, "axis", key)
        assert drawn_titles(browser) == [title, "validation, bits per byte"]
        found = of_curves(browser, f"Array.from({mean}.x)")
        assert found != steps
        assert found[-1] == pytest.approx(ends.get(key, 66), rel=0.1)
    for key, title in {"val_loss": "validation", "train_loss": "training"}.items():
        choose(browser, "measure", key)
        assert drawn_titles(browser) == ["FLOPs of training", f"{title} loss, nats per token"]
        assert of_curves(browser, f"Array.from({mean}.y)") != bits
    for key in ("tokens", "step"):
        choose(browser, "axis", key)
        assert of_curves(browser, f"{mean}.x.at(-1)") == ends[key]
    assert browser.errors == []


def choose(browser: Browser, name: str, value: str) -> None:
    browser.run(f"document.querySelector(`input[name={name}][value={value}]`).click()")
    browser.settle()


def drawn_titles(browser: Browser) -> list[str]:
    """Of the horizontal and the vertical axis of the curves."""
    return browser.run(
        """['.xtitle', '.ytitle'].map(
        name => document.querySelector(`[data-chart=curves] ${name}`).textContent)"""
    )


@pytest.mark.parametrize(
    "result",
    [
        study(),
        study(copies=4),
        study(seeds=(1,), scores=False, failed=False),
        hostile(study()),
    ],
    ids=["four arms", "thirteen arms", "one seed", "hostile"],
)
def test_nothing_is_wider_than_the_screen(
    result: StudyResult, browser: Browser, show: Open
) -> None:
    show(result)
    # Nor is a text of a chart cut off.
    cut = """[...document.querySelectorAll('.plot svg text')].map(t => t.getBoundingClientRect())
        .filter(r => r.width && (r.left < -1 || r.right > innerWidth + 1)).length"""
    squeezed = """[...document.querySelectorAll('.plot')]
        .filter(p => p.offsetHeight !== p.querySelector('.main-svg').height.baseVal.value).length"""
    for size in (LAPTOP, PHONE):
        browser.resize(size)
        browser.settle()  # what a chart does late counts too
        assert browser.run("innerWidth") == size[0]
        assert overflow(browser) <= 0
        assert browser.run(cut) == browser.run(squeezed) == 0
        assert overlapping_names(browser) == []
    assert browser.errors == []


def overlapping_names(browser: Browser) -> list[str]:
    """Names in the forest plot that lie on others, at the side or above their intervals."""
    names: list[tuple[str, float, float, float, float]] = browser.run(
        """[...document.querySelectorAll(
            '[data-chart=forest] .ytick text, [data-chart=forest] .annotation-text')]
        .map(t => [t.textContent, t.getBoundingClientRect()]).filter(([_, r]) => r.width)
        .map(([name, r]) => [name, r.left, r.right, r.top + 1, r.bottom - 1])"""
    )
    return [
        f"{name} on {other}"
        for i, (name, left, right, top, bottom) in enumerate(names)
        for other, its_left, its_right, its_top, its_bottom in names[:i]
        if left < its_right and its_left < right and top < its_bottom and its_top < bottom
    ]


def test_the_page_and_its_charts_follow_the_colour_scheme(browser: Browser, show: Open) -> None:
    show(study())

    def colours() -> list[str]:
        return browser.run(
            """[getComputedStyle(document.body).backgroundColor,
            getComputedStyle(document.querySelector('[data-chart=curves] .xtitle')).fill,
            document.querySelector('[data-chart=curves] .plot').data
                .find(t => t.meta.mean).line.color]"""
        )

    light = colours()
    browser.emulate(scheme="dark")
    dark = colours()
    assert all(a != b for a, b in zip(light, dark, strict=True))
    browser.emulate(scheme="light")
    assert colours() == light
    browser.emulate(scheme="dark")
    browser.emulate(scheme="dark", media="print")
    assert colours() == light


def test_hostile_names_and_samples_are_shown_as_they_are(browser: Browser, show: Open) -> None:
    show(hostile(study()))
    name = visible(HOSTILE)
    assert browser.run("document.getElementById('injected')") is None
    button = "document.querySelector(`button[data-arm='1'] bdi`).textContent"
    assert browser.run(button) == name
    labels = "[...document.querySelectorAll('[data-chart=forest] .ytick')].map(t => t.textContent)"
    assert any(label.startswith("</script><b id=injected>") for label in browser.run(labels))
    samples = "[...document.querySelectorAll('.samples pre')].map(p => p.textContent)"
    assert any(text.endswith(name * 50) for text in browser.run(samples))
    assert browser.errors == []
