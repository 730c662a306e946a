"""Arms as ``fit`` resolves them: what is fair, what is matched, what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from llama_lab.errors import UserError
from llama_lab.inspect.accounting import count_parameters, flops_per_token, on_meta
from llama_lab.studies.plan import plan_study
from llama_lab.studies.planned_arms import PlannedArm, Resolver, differences
from llama_lab.studies.study import parse_study
from tests.runs.conftest import TEXT

TINY: dict[str, Any] = {
    "model.decoder.dim": 16,
    "model.decoder.n_layers": 2,
    "model.decoder.context_length": 16,
    "data.corpus": "text.txt",
    "data.batch_size": 4,
    "trainer.max_steps": 12,
    "trainer.val_check_interval": 6,
    "trainer.accelerator": "cpu",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path


def planned(times: dict[str, float] | None = None, **content: Any) -> dict[str, PlannedArm]:
    study = parse_study("trial", {"base": "llama.yaml", "seeds": 2, "settings": TINY, **content})
    resolver = Resolver(study, Path("logs").absolute())
    arms = plan_study(resolver, lambda arms: times or {})
    return {arm.arm.name: arm for arm in arms}


def test_an_arm_has_the_vocabulary_of_its_text_and_what_its_changes_say() -> None:
    arms = planned(arms={"wide": {"model.decoder.dim": 32}})
    base, wide = arms["base"], arms["wide"]
    assert base.decoder.vocab_size == len(set(TEXT))
    assert (base.decoder.dim, wide.decoder.dim) == (16, 32)
    assert (wide.steps, wide.batch_size, wide.context) == (12, 4, 16)
    assert base.parameters == count_parameters(base.decoder).total
    assert differences(wide, base) == {"model.decoder.dim": [16, 32]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data.batch_size": 8}, "differ: [batch]"),
        ({"data.tokenizer": "bpe", "data.vocab_size": 300}, "differ: [tokenizer]"),
        ({"data.context_length": 8}, "differ: [context]"),
        ({"model.decoder.context_length": 8}, "differ: [context]"),
        ({"trainer.max_steps": 13}, "give all arms the same"),
        ({"trainer.val_check_interval": 3}, "give all arms the same"),
        ({"data.val_fraction": 0.2}, "give all arms the same"),
        ({"data.begin_of_text": False}, "give all arms the same"),
        ({"seed_everything": 3}, "which the study decides"),
        ({"name": "x"}, "which the study decides"),
        ({"data.corpus": "-"}, "--data.corpus -: a pipe is read once"),
        ({"model.decoder.norm.kind": "rmsnorn"}, "arm other: "),
        ({"model.decoder.norm.bias": True}, "would do nothing"),
    ],
)
def test_an_arm_that_would_do_other_work_is_refused_before_anything_runs(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError) as refusal:
        planned(arms={"other": change})
    assert "arm other" in str(refusal.value)
    assert words in str(refusal.value)


def test_generation_is_not_timed_behind_more_than_a_model_sees() -> None:
    words = r"decode: 12 \+ 5 tokens are more than arm base's model.decoder.context_length 16"
    with pytest.raises(UserError, match=words):
        planned(arms={"other": {}}, decode={"context": 12, "tokens": 5})
    assert planned(arms={"other": {}}, decode={"context": 12, "tokens": 4})


def test_what_differs_on_purpose_is_let_pass() -> None:
    arms = planned(
        differ=["batch", "context", "tokenizer"],
        arms={
            "other": {
                "data.batch_size": 8,
                "data.context_length": 8,
                "data.tokenizer": "bpe",
                "data.vocab_size": 300,
            }
        },
    )
    assert arms["other"].decoder.vocab_size == 300
    assert (arms["other"].batch_size, arms["other"].context) == (8, 8)


def test_leave_to_differ_that_no_arm_takes_is_refused() -> None:
    other = {"data.batch_size": 8}
    with pytest.raises(UserError, match="differ: context does nothing"):
        planned(differ=["batch", "context"], arms={"other": other})


@pytest.mark.parametrize("match", ["parameters", "flops"])
def test_the_feed_forward_is_as_wide_as_brings_an_arm_nearest_to_the_base(match: str) -> None:
    arms = planned(
        settings={**TINY, "model.decoder.dim": 32},
        match=match,
        arms={"mqa": {"model.decoder.attention.n_kv_heads": 1}},
    )
    base, mqa = arms["base"], arms["mqa"]

    def count(arm: PlannedArm) -> int:
        if match == "parameters":
            return count_parameters(arm.decoder).total
        return flops_per_token(on_meta(arm.decoder), arm.context).training

    width = mqa.decoder.feed_forward.width(mqa.decoder.dim)
    assert width != base.decoder.feed_forward.width(base.decoder.dim)
    distances = {}
    for other in range(8, 257, 8):
        feed_forward = dataclasses.replace(
            mqa.decoder.feed_forward, hidden_dim=other, multiple_of=None, dim_multiplier=None
        )
        arm = dataclasses.replace(
            mqa, decoder=dataclasses.replace(mqa.decoder, feed_forward=feed_forward)
        )
        distances[other] = abs(count(arm) - count(base))
    assert distances[width] == min(distances.values())
    assert f"{count(mqa):,}" in mqa.matched
    assert f"{count(mqa) / count(base) - 1:+.2%}" in mqa.matched


def test_time_is_matched_by_steps() -> None:
    arms = planned(
        {"base": 0.02, "slow": 0.03},
        match="time",
        arms={"slow": {"model.decoder.position.kind": "alibi"}},
    )
    assert (arms["base"].steps, arms["slow"].steps) == (12, 8)
    assert "8 steps of 30.0 ms instead of 12" in arms["slow"].matched


def test_an_arm_that_could_not_be_timed_keeps_its_steps() -> None:
    arms = planned({"base": 0.02, "huge": 0.0}, match="time", arms={"huge": {}})
    assert (arms["huge"].steps, arms["huge"].matched) == (12, "")


def test_an_arm_as_a_whole_config_is_that_config_under_the_study_settings() -> None:
    arms = planned(base="transformer-2017.yaml", arms={"modern": {"config": "llama.yaml"}})
    assert arms["base"].decoder.norm.placement == "post"
    assert arms["modern"].decoder.norm.placement == "pre"
    assert arms["modern"].decoder.dim == 16


def test_an_arm_s_list_that_leaves_out_what_its_config_lists_is_told_of(folder: Path) -> None:
    (folder / "stopping.yaml").write_text(
        "trainer: {callbacks: {class_path: EarlyStopping, init_args: {monitor: val_loss}}}"
    )
    arms = {"watched": {"trainer.callbacks": "LearningRateMonitor"}}
    content = {"base": "stopping.yaml", "seeds": 2, "settings": TINY, "arms": arms}
    resolver = Resolver(parse_study("trial", content), Path("logs").absolute())
    plan_study(resolver, lambda arms: {})
    assert list(resolver.left_out) == [
        "arm watched: --trainer.callbacks LearningRateMonitor: EarlyStopping from stopping.yaml "
        "is left out"
    ]
