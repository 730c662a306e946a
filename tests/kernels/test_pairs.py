"""Studies of parts: what is timed computes the same, and is reported as any study is."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

pytest.importorskip("scipy", reason="the statistics of studies need the extra `lab`")
pytest.importorskip("plotly", reason="the report of a study needs the extra `lab`")

from llama_lab.cli import main
from llama_lab.configs import SHIPPED, read_yaml
from llama_lab.errors import RunError, UserError
from llama_lab.inspect.memory import Precision
from llama_lab.kernels.inputs import Bench, Pair, Part, Skipped, Writing
from llama_lab.kernels.kernel_report import HEADER
from llama_lab.kernels.kernel_run import run_parts
from llama_lab.kernels.kernel_study import KernelSizes, PartStudy, parse_part_study, read_part_study
from llama_lab.kernels.pair_timing import PartResult, Runner, check_equal, time_part
from llama_lab.kernels.pairs import PARTS
from tests.reports.browser import Browser

TINY = {
    "batch_size": 2,
    "context_length": 8,
    "dim": 16,
    "n_heads": 4,
    "n_kv_heads": 2,
    "hidden_dim": 32,
    "vocab_size": 24,
    "n_layers": 1,
}
QUICK = {"sizes": {"tiny": TINY}, "turns": 6, "seconds": 1e-4}
CPU = torch.device("cpu")
# Compiling takes most of a minute.
COMPILED = ["block"]
SAME = [
    pytest.param(name, marks=pytest.mark.slow) if name in COMPILED else name
    for name, part in PARTS.items()
    if part.is_same
]


def study(**content: Any) -> PartStudy:
    return parse_part_study("trial", {**QUICK, "parts": ["rmsnorm"], **content}, tuple(PARTS))


def bench(precision: Precision = "32-true", **sizes: int) -> Bench:
    return Bench(KernelSizes(**{**TINY, **sizes}), CPU, precision)


def pair_of(second: Callable[[torch.Tensor], torch.Tensor]) -> Pair:
    """x², and another writing on the same x."""
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    return Pair(Writing("square", lambda: x * x, (x,)), Writing("other", lambda: second(x), (x,)))


# ---- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SAME)
def test_both_writings_of_a_part_give_the_same_outputs_and_gradients(name: str) -> None:
    pair = PARTS[name].build(bench())
    for writing in pair:  # the check is of numbers, not of zeros
        outputs = Runner(writing, bench(), True).forward()
        assert all(output.abs().max() > 1e-3 for output in outputs)
    assert pair.first.label != pair.second.label
    assert check_equal(name, pair, bench(), backward=True) <= 1e-5


@pytest.mark.parametrize("name", [name for name in PARTS if name not in COMPILED])
def test_every_part_runs_in_bfloat16(name: str) -> None:
    mixed = bench("bf16-mixed")
    pair = PARTS[name].build(mixed)
    if PARTS[name].is_same:
        assert check_equal(name, pair, mixed, backward=True) <= 3e-2
    for writing in pair:
        Runner(writing, mixed, True)()


def test_feed_forwards_have_equally_many_weights() -> None:
    older, newer = PARTS["gelu-to-swiglu"].build(bench())
    counts = [sum(leaf.numel() for leaf in writing.leaves[1:]) for writing in (older, newer)]
    assert counts[0] == counts[1] == 3 * TINY["dim"] * TINY["hidden_dim"]


@pytest.mark.parametrize(
    ("second", "backward"),
    [(lambda x: x * x * 1.001, False), (lambda x: x * x.detach(), True)],
    ids=["outputs", "gradients"],
)
def test_writings_that_differ_are_not_timed(
    second: Callable[[torch.Tensor], torch.Tensor], backward: bool
) -> None:
    with pytest.raises(RunError, match="square and other do not compute the same"):
        check_equal("made up", pair_of(second), bench(), backward)


def test_gradients_do_not_count_where_no_backward_is_timed() -> None:
    pair = pair_of(lambda x: x * x.detach())
    assert check_equal("made up", pair, bench(), backward=False) == 0


# ---- times ---------------------------------------------------------------------------------------


def test_turns_alternate_and_their_ratios_bound_how_much_slower_the_second_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, called = 0.0, ""

    def taking(name: str, seconds: float) -> Writing:
        x = torch.ones(3, requires_grad=True)

        def run() -> torch.Tensor:
            nonlocal now, called
            # The machine slows down all the while.
            now, called = now + seconds * (1 + len(called)), called + name
            return x * x

        return Writing(name, run, (x,))

    pair = Pair(taking("a", 1), taking("b", 4))
    monkeypatch.setitem(PARTS, "made up", Part(False, lambda _: pair))
    monkeypatch.setattr("llama_lab.kernels.pair_timing.time.perf_counter", lambda: now)
    found = time_part(study(turns=10), "made up", "tiny", bench())
    assert called.endswith("abbaabbaabbaabbaabba")
    assert found.outcome == "slower"
    assert found.ratio == pytest.approx(1 / 4, rel=0.1)
    # Ten values: the sign test's interval is from the second to the last but one.
    assert (found.low, found.high) == (sorted(found.ratios)[1], sorted(found.ratios)[-2])
    assert found.deviation is None


def test_attention_by_hand_keeps_its_scores_and_the_fused_one_does_not() -> None:
    sizes = {"context_length": 64, "dim": 8, "n_heads": 4, "n_kv_heads": 4}
    attention = bench(**sizes)
    scores = TINY["batch_size"] * 4 * 64 * 64 * 4  # bytes
    first, second = (
        Runner(writing, attention, True).kept() for writing in PARTS["attention"].build(attention)
    )
    assert first is not None
    assert second is not None
    assert second < scores <= first


def test_a_forward_alone_keeps_nothing() -> None:
    assert Runner(PARTS["rmsnorm"].build(bench()).first, bench(), False).kept() is None


def test_what_cannot_be_timed_at_a_size_is_skipped_with_its_reason() -> None:
    ungrouped = bench(n_kv_heads=4)
    for name in ("grouped-queries", "multi-head-to-grouped"):
        with pytest.raises(Skipped):
            PARTS[name].build(ungrouped)
        found = time_part(study(), name, "tiny", ungrouped)
        assert found.outcome == "skipped"
        assert "n_kv_heads 4" in found.skipped


def test_threads_are_those_asked_for_and_afterwards_those_of_before() -> None:
    before = torch.get_num_threads()
    during: list[int] = []
    report = run_parts(study(), "", before + 1, lambda part: during.append(torch.get_num_threads()))
    assert during == [before + 1]
    assert report.device["threads"] == before + 1
    assert torch.get_num_threads() == before


# ---- file ----------------------------------------------------------------------------------------


def test_all_stands_for_every_part_and_a_list_is_timed_in_their_order() -> None:
    assert study(parts="all").parts == tuple(PARTS)
    assert study(parts=["swiglu", "rmsnorm"]).parts == ("rmsnorm", "swiglu")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"parts": ["rmsnrm"]}, "did you mean rmsnorm? there are " + ", ".join(PARTS)),
        ({"parts": ["zzz"]}, "no such part; there are " + ", ".join(PARTS)),
        ({"parts": []}, "give all, or a list of"),
        ({"turns": 5}, "give a whole number from 6"),
        ({"turns": True}, "give a whole number from 6"),
        ({"seconds": 0}, "give a number above 0"),
        ({"backward": "no"}, "give true or false"),
        ({"precision": "8"}, "precision"),
        ({"seeds": [0]}, "seeds"),
        ({"sizes": {}}, "batch_size, context_length, dim"),
        ({"sizes": {"a": {**TINY, "dims": 3}}}, "did you mean dim"),
        ({"sizes": {"a": {"dim": 3}}}, "sizes.a.batch_size"),
        ({"sizes": {"a": {**TINY, "dim": 0}}}, "sizes.a.dim"),
        ({"sizes": {"a": {**TINY, "hidden_dim": 33}}}, "give an even number"),
        ({"sizes": {"a": {**TINY, "n_kv_heads": 3}}}, "sizes.a"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_that_says_what_can(
    content: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError) as refusal:
        study(**content)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("path", sorted((SHIPPED / "studies").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_study_of_parts_is_one_and_says_what_to_expect(path: Path) -> None:
    found = read_part_study(path.stem, tuple(PARTS))
    assert (found is not None) == ("parts" in read_yaml(path))
    if found is not None:
        assert found.description
        assert found.expectation


# ---- command -------------------------------------------------------------------------------------


@pytest.fixture
def ablate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Callable[..., tuple[int, str, str]]:
    """``llama-lab ablate`` in a folder with a study of two parts; exit status, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    content = {**QUICK, "parts": ["attention", "layernorm-to-rmsnorm"], "description": "<b>Two"}
    Path("trial.yaml").write_text(yaml.safe_dump(content))

    def call(*argv: str) -> tuple[int, str, str]:
        ended = main(["ablate", "--config", "trial.yaml", *argv])
        return ended, *capsys.readouterr()

    return call


def test_the_command_prints_a_line_a_part_and_writes_the_report(
    ablate: Callable[..., tuple[int, str, str]],
) -> None:
    ended, out, _ = ablate("--threads", "1")
    assert ended == 0
    told = [line.split() for line in out.splitlines() if line.startswith("tiny")]
    assert [words[1] for words in told] == ["attention", "layernorm-to-rmsnorm"]
    assert all("times as fast" in " ".join(words) for words in told)

    folder = Path("logs/studies/trial")
    results = json.loads((folder / "results.json").read_text())
    first = results["parts"][0]
    assert first["part"] == "attention"
    assert len(first["ratios"]) == 6
    assert first["low"] == min(first["ratios"])  # six turns: the interval is all of them
    assert first["high"] == max(first["ratios"])
    assert results["threads"] == 1
    rows = list(csv.DictReader((folder / "results.csv").open()))
    assert [row["part"] for row in rows] == ["attention", "layernorm-to-rmsnorm"]
    assert float(rows[0]["ratio"]) == first["ratio"]

    markdown = (folder / "report.md").read_text()
    assert markdown.index("Plain against fused") < markdown.index("Older against newer")
    assert all(title in markdown for title in HEADER)
    assert "scores held" in markdown
    page = (folder / "report.html").read_text()
    assert "&lt;b&gt;Two" in page
    assert "<b>Two" not in page
    assert 'data-of="tiny, plain and fused"' in page


def test_a_report_is_written_again_from_its_numbers(
    ablate: Callable[..., tuple[int, str, str]],
) -> None:
    ablate()
    folder = Path("logs/studies/trial")
    before = {path.name: path.read_bytes() for path in folder.glob("re*")}
    for name in ("report.html", "report.md", "results.csv"):
        (folder / name).unlink()
    assert ablate("--report_only", "true")[0] == 0
    assert {path.name: path.read_bytes() for path in folder.glob("re*")} == before


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--seeds", "[1, 2]"], "--seeds [1, 2] would do nothing"),
        (["--jobs", "2"], "--jobs 2 would do nothing"),
        (["--trainer.max_steps", "5"], "--trainer.max_steps 5 would do nothing"),
        (["--report_only", "true"], "results.json is not there"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(
    ablate: Callable[..., tuple[int, str, str]], argv: list[str], words: str
) -> None:
    ended, _, error = ablate(*argv)
    assert ended == 2
    assert words in error
    assert not Path("logs/studies/trial/results.json").exists()


def test_a_part_that_there_is_not_ends_the_command_and_is_told_what_there_is(
    ablate: Callable[..., tuple[int, str, str]],
) -> None:
    Path("trial.yaml").write_text(yaml.safe_dump({**QUICK, "parts": ["atention"]}))
    ended, _, error = ablate()
    assert ended == 2
    assert "did you mean attention" in error
    assert all(name in error for name in PARTS)
    assert not Path("logs").exists()


def test_the_page_draws_a_row_for_each_part(
    ablate: Callable[..., tuple[int, str, str]], browser: Browser
) -> None:
    ablate()
    browser.errors.clear()
    browser.open(Path("logs/studies/trial/report.html").absolute())
    rows = "document.querySelectorAll('[data-chart=ratios] .errorbar').length"
    assert browser.run(rows) == 2
    assert browser.errors == []


def test_an_outcome_is_what_the_interval_says() -> None:
    about = PartResult(part="a", size="b", is_same=True)
    for low, high, outcome in ((1.1, 2.0, "faster"), (0.5, 0.9, "slower"), (0.9, 2, "undecided")):
        assert dataclasses.replace(about, low=low, high=high).outcome == outcome
    assert about.outcome == "skipped"
