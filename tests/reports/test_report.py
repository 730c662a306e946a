"""The files of a report: whole, safe against hostile text, and saying what the study found."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy", reason="scipy comes with the extra `lab`")
pytest.importorskip("plotly", reason="plotly comes with the extra `lab`")

from llama_lab.reports.markdown import escape, fence
from llama_lab.reports.study_report import write_reports
from llama_lab.reports.texts import visible
from llama_lab.studies.results import StudyResult
from tests.reports.studies import SEEDS, study

HOSTILE = "</script><b id=injected>|`*x*` %{y} $a$ \u202e\u0000\n\r=1+1 \ud800 中文 😀"


def written(result: StudyResult, folder: Path) -> dict[str, str]:
    write_reports(result, folder)
    return {
        name: (folder / name).read_bytes().decode()
        for name in ("report.html", "report.md", "results.csv", "results.json")
    }


def hostile(result: StudyResult) -> StudyResult:
    """The same study, each text in it an attack."""
    names = {"layernorm": HOSTILE, "learned positions": "x" * 5000}

    conclusions = [
        dataclasses.replace(
            arm,
            name=names.get(arm.name, arm.name),
            reference=names.get(arm.reference, arm.reference),
        )
        for arm in result.family.arms
    ]
    family = dataclasses.replace(result.family, arms=tuple(conclusions))
    arms = [
        dataclasses.replace(
            arm,
            name=names.get(arm.name, arm.name),
            changes={HOSTILE: [HOSTILE, HOSTILE]},
            matched=HOSTILE,
            runs=[
                dataclasses.replace(
                    run,
                    arm=names.get(arm.name, arm.name),
                    reason=HOSTILE,
                    sample=run.sample + HOSTILE * 50,
                    passage=run.passage + HOSTILE[:9],
                )
                for run in arm.runs
            ],
        )
        for arm in result.arms
    ]
    texts = dict.fromkeys(("name", "description", "expectation", "command"), HOSTILE)
    return dataclasses.replace(
        result, **texts, arms=arms, family=family, notes=[HOSTILE], chance=[HOSTILE]
    )


class Outline(HTMLParser):
    """The elements of a page, and the text between them outside of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._code = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._code = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._code = False

    def handle_data(self, data: str) -> None:
        self.text += "" if self._code else data


def test_json_holds_the_whole_study_and_null_for_what_is_not_finite(tmp_path: Path) -> None:
    result = study()

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return None if value in (float("inf"),) or value != value else value

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = written(result, tmp_path)["results.json"]
    assert json.loads(text, parse_constant=refuse) == plain(dataclasses.asdict(result))
    failed = json.loads(text)["arms"][2]["runs"][-1]
    assert failed["last_loss"] is None
    assert failed["curve"][-1]["val_loss"] is None
    assert failed["curve"][0]["val_loss"] is not None


def test_csv_has_a_row_for_each_run(tmp_path: Path) -> None:
    result = study()
    rows = list(csv.DictReader(io.StringIO(written(result, tmp_path)["results.csv"])))
    assert [(row["arm"], int(row["seed"])) for row in rows] == [
        (arm.name, seed) for arm in result.arms for seed in SEEDS
    ]
    run = result.arms[3].runs[0]
    row = rows[15]
    assert float(row["primary"]) == run.primary
    assert float(row["context 512 val_loss"]) == run.scores[2].val_loss
    assert row["arm_parameters"] == str(result.arms[3].parameters)
    assert row["decoding_context"] == "1024"
    failed = rows[14]
    assert (failed["end"], failed["primary"], failed["last_loss"]) == ("diverged", "", "")
    assert failed["reason"] == "training loss nan at step 210"
    assert rows[10]["context 512 refused"] == "learned positions end at 128"


def test_no_cell_of_the_csv_is_a_formula(tmp_path: Path) -> None:
    result = study()
    broken = dataclasses.replace(result.arms[0].runs[0], reason="=1+1", best_loss=-0.5)
    arm = dataclasses.replace(result.arms[0], runs=[broken, *result.arms[0].runs[1:]])
    text = written(dataclasses.replace(result, arms=[arm, *result.arms[1:]]), tmp_path)
    row = next(csv.DictReader(io.StringIO(text["results.csv"])))
    assert (row["reason"], row["best_loss"]) == ("'=1+1", "-0.5")


@pytest.mark.parametrize("name", ["report.html", "report.md"])
def test_a_failed_run_is_named_with_its_reason(name: str, tmp_path: Path) -> None:
    line = "learned positions, seed 5: diverged after 210 steps. training loss nan at step 210"
    assert line in written(study(), tmp_path)[name]
    assert "Runs without a result" not in written(study(failed=False), tmp_path)[name]


@pytest.mark.parametrize("name", ["report.html", "report.md"])
def test_each_arm_has_its_verdict_in_words(name: str, tmp_path: Path) -> None:
    result = study()
    text = written(result, tmp_path)[name]
    text = Outline(text).text if name.endswith("html") else text.replace("\\", "")
    found = {arm.name: arm.verdict for arm in result.family.arms}
    assert found["swiglu, wider by a third"] == "pays"
    assert found["learned positions"] == "diverged in 1 of 5"
    for arm in result.family.arms:
        assert arm.sentence.partition(": ")[2] in text
        assert arm.verdict in text.partition("Differences\n")[0]


def test_one_seed_has_no_verdict(tmp_path: Path) -> None:
    text = written(study(seeds=(7,), failed=False), tmp_path)
    assert text["report.md"].count(": no verdict.**") == 3


def page_data(page: str) -> dict[str, Any]:
    start = page.index('id="data">') + len('id="data">')
    return json.loads(page[start : page.index("</script>", start)])


def test_a_best_value_at_the_edge_of_those_tried_is_said_to_be(tmp_path: Path) -> None:
    result = study()
    said = "is the smallest model.optimizer.lr that was tried"
    assert said not in written(result, tmp_path)["report.md"]
    first = result.arms[0]
    tuned = {**first.tuned, "chosen": {"model.optimizer.lr": 0.001}}
    arms = [dataclasses.replace(first, tuned=tuned), *result.arms[1:]]
    told = written(dataclasses.replace(result, arms=arms), tmp_path)
    assert f"{first.name}: 0.001 {said}" in told["report.md"]
    assert said in told["report.html"]


def test_what_a_study_did_not_ask_for_is_left_out(tmp_path: Path) -> None:
    titles = ["Scores under other settings", "Decoding", "Causality", "Tuning", "What differs"]
    full = written(study(), tmp_path)["report.md"]
    result = study(scores=False)
    bare = [
        dataclasses.replace(
            arm,
            tuned={},
            changes={},
            matched="",
            reference=arm.name,
            runs=[dataclasses.replace(run, decoding=None, causal=None) for run in arm.runs],
        )
        for arm in result.arms[:1]
    ]
    family = dataclasses.replace(result.family, arms=())
    text = written(dataclasses.replace(result, arms=bare, family=family, notes=[]), tmp_path)
    for title in titles:
        assert f"## {title}" in full
    for title in titles[:-1]:
        assert title not in text["report.md"]
        assert title not in Outline(text["report.html"]).text
    assert "No arm is held against another" in text["report.md"]


def test_an_arm_that_sees_later_tokens_is_called_out(tmp_path: Path) -> None:
    result = study()
    result.arms[1].runs[0] = dataclasses.replace(result.arms[1].runs[0], causal=False)
    text = written(result, tmp_path)["report.md"]
    row = next(line for line in text.splitlines() if "NOT CAUSAL" in line)
    assert row.split("|")[1].strip() == "layernorm"
    assert row.split("|")[3].strip() == "4 of 5"
    assert text.count("NOT CAUSAL") == 1


def test_a_shared_passage_is_marked_in_its_sample(tmp_path: Path) -> None:
    page = written(study(), tmp_path)["report.html"]
    passage = "It was the best of times, it was the worst of times"
    assert page.count(f"<mark>{passage}</mark>") == 19


def test_no_text_of_a_user_becomes_markup_in_the_page(tmp_path: Path) -> None:
    plain = Outline(written(study(), tmp_path)["report.html"])
    page = written(hostile(study()), tmp_path)["report.html"]
    outline = Outline(page)
    assert not [attributes for _, attributes in outline.elements if "injected" in str(attributes)]
    tags = [tag for tag, _ in outline.elements]
    assert tags.count("script") == [tag for tag, _ in plain.elements].count("script") == 3
    assert outline.text.count("</script><b id=injected>") > 20
    assert page_data(page)["arms"][1]["name"] == visible(HOSTILE)
    assert not set(page) & {"\0", "\r", "\u202e"}


def test_no_text_of_a_user_becomes_markup_in_markdown(tmp_path: Path) -> None:
    text = written(hostile(study()), tmp_path)["report.md"]
    assert text.count("\n## ") == study_sections(tmp_path)
    assert not set(text) & {"\0", "\r", "\u202e"}
    outside = "".join(text.split("```")[::2])
    assert "\\</script\\>\\<b id=injected\\>\\|" in outside
    assert "<b id" not in outside.replace("\\<b", "")
    # Every table has as many cells in each row as in its header.
    for block in text.split("\n\n"):
        if block.startswith("| "):
            bars = {line.replace("\\|", "").count("|") for line in block.splitlines()}
            assert len(bars) == 1


def study_sections(folder: Path) -> int:
    return written(study(), folder)["report.md"].count("\n## ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# no headline", "\\# no headline"),
        ("- no item", "\\- no item"),
        ("-0.5 is a number", "-0.5 is a number"),
        ("1. no item", "1\\. no item"),
        ("1.5 is a number", "1.5 is a number"),
        ("two\nlines | <b>", "two lines \\| \\<b\\>"),
        ("val_bits_per_byte and _no_ stress", "val_bits_per_byte and \\_no\\_ stress"),
    ],
)
def test_markdown_escapes_what_would_be_markup_and_no_more(text: str, line: str) -> None:
    assert escape(text) == line


def test_a_fence_is_longer_than_any_in_the_text() -> None:
    assert fence("a ```` b") == "`````text\na ```` b\n`````"


def test_digests_are_short_in_the_page_and_whole_in_their_title(tmp_path: Path) -> None:
    result = study()
    digest = result.arms[0].runs[0].receipt["initial_weights"]["attention"]
    page = written(result, tmp_path)["report.html"]
    assert f'<code title="{digest}">{digest[:12]}</code>' in page


def test_exploratory_looks_are_said(tmp_path: Path) -> None:
    result = study()
    told = dataclasses.replace(result, family=dataclasses.replace(result.family, exploratory=True))
    assert "Exploratory" not in written(result, tmp_path)["report.md"]
    assert "Exploratory" in written(told, tmp_path)["report.md"]


def test_reports_replace_older_ones_and_leave_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("old")
    texts = written(study(), tmp_path)
    assert "old" not in texts["report.md"].split()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(texts)


def test_the_same_study_gives_the_same_bytes(tmp_path: Path) -> None:
    assert written(study(), tmp_path) == written(study(), tmp_path)
