"""What every figure shares: looks, safe texts, and colours that the style sheet has."""

from __future__ import annotations

import re
from importlib import resources

import pytest

pytest.importorskip("scipy", reason="scipy comes with the extra `lab`")
pytest.importorskip("plotly", reason="plotly comes with the extra `lab`")

from llama_lab.reports.charts import study_charts
from llama_lab.reports.figures import arm_looks, plain, wrapped
from tests.reports.studies import study


def test_the_base_is_grey_and_the_others_take_colours_and_then_dashes() -> None:
    looks = arm_looks(["a", "base", *"bcdefgh"], "base")
    assert looks[1].colour == "var(--arm-base)"
    others = [look for look in looks if look.name != "base"]
    assert [look.variable for look in others] == [f"arm-{k % 6}" for k in range(8)]
    assert [look.dash for look in others] == ["solid"] * 6 + ["dash"] * 2
    assert len({look.symbol for look in looks[:8]}) == 8
    assert (looks[0].sign, looks[1].sign) == ("●", "■")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_style_sheet_has_every_colour_of_a_figure(scheme: str) -> None:
    sheet = resources.files("llama_lab.reports").joinpath("report.css").read_text("utf-8")
    light, _, dark = sheet.partition("@media screen and (prefers-color-scheme: dark)")
    has = set(re.findall(r"(--[\w-]+): [#r]", light if scheme == "light" else dark))
    used = set(re.findall(r"var\((--[\w-]+)\)", str(study_charts(study(copies=3)).as_data())))
    assert used > {"--arm-base", "--arm-5", "--pays", "--ink"}
    assert used <= has


def test_a_text_is_no_markup_and_no_template() -> None:
    assert plain("<b>&\n%{x} $a$") == "&lt;b&gt;&amp; &#37;{x} &#36;a&#36;"


def test_a_long_name_is_cut_at_two_lines() -> None:
    assert wrapped("one two three", 8) == "one two<br>three"
    assert wrapped("one two three four", 8) == "one two<br>three …"
    assert wrapped("x" * 5000, 8) == f"{'x' * 8}<br>{'x' * 8} …"
