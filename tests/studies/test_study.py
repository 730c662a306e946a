"""What a study's file says, and what is refused in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llama_lab.configs import SHIPPED, read_yaml
from llama_lab.dotted_names import unflatten
from llama_lab.errors import UserError
from llama_lab.studies.study import Study, flat, parse_study, read_study

CHANGES = {
    "rope": {"model.decoder.position.kind": "rope"},
    "pre": {"model": {"decoder": {"norm": {"placement": "pre"}}}},
    "gqa": {"model.decoder.attention.n_kv_heads": 2},
}
ROPE, PRE, GQA = (
    {"model.decoder.position.kind": "rope"},
    {"model.decoder.norm.placement": "pre"},
    {"model.decoder.attention.n_kv_heads": 2},
)
# Those that train; test_parts.py has those that time parts.
TRAINED = [p for p in sorted((SHIPPED / "studies").glob("*.yaml")) if "parts" not in read_yaml(p)]


def study(**content: Any) -> Study:
    return parse_study("trial", {"base": "llama.yaml", "seeds": [0, 1], **content})


def arms(**content: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    return {arm.name: (arm.reference, arm.changes) for arm in study(**content).arms}


def test_add_one_is_the_base_plus_each_change() -> None:
    assert arms(add_one=CHANGES) == {
        "base": ("base", {}),
        "plus-rope": ("base", ROPE),
        "plus-pre": ("base", PRE),
        "plus-gqa": ("base", GQA),
    }


def test_leave_one_out_is_the_target_minus_each_and_held_against_the_target() -> None:
    assert arms(leave_one_out=CHANGES) == {
        "base": ("base", {}),
        "all": ("base", {**ROPE, **PRE, **GQA}),
        "all-minus-rope": ("all", {**PRE, **GQA}),
        "all-minus-pre": ("all", {**ROPE, **GQA}),
        "all-minus-gqa": ("all", {**ROPE, **PRE}),
    }


def test_factorial_is_every_combination() -> None:
    found = arms(factorial=CHANGES)
    assert len(found) == 8
    assert found["rope-and-gqa"] == ("base", {**ROPE, **GQA})
    assert found["rope-and-pre-and-gqa"][1] == {**ROPE, **PRE, **GQA}


def test_an_arm_can_be_a_whole_config_with_a_reference_and_a_seed_offset_of_its_own() -> None:
    found = study(
        arms={
            "modern": {"config": "llama.yaml"},
            "again": {"reference": "modern", "seed_offset": 7, "data.batch_size": 4},
        }
    ).arms
    assert (found[1].config, found[1].changes) == ("llama.yaml", {})
    assert (found[2].reference, found[2].seed_offset) == ("modern", 7)
    assert found[2].changes == {"data.batch_size": 4}


def test_a_number_of_seeds_stands_for_that_many() -> None:
    assert study(seeds=3, add_one=CHANGES).seeds == (0, 1, 2)


def test_trials_are_every_combination_of_values_on_seeds_that_the_result_does_not_use() -> None:
    found = study(
        add_one=CHANGES, tune={"model.optimizer": {"lr": [0.1, 0.2]}, "data.batch_size": [4, 8]}
    )
    assert found.trials() == [
        {"model.optimizer.lr": lr, "data.batch_size": size} for lr in (0.1, 0.2) for size in (4, 8)
    ]
    assert not set(found.tune_seeds) & set(found.seeds)
    assert found.tune_seeds


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "a study compares"),
        ({"arms": {"a": {}}, "seed": 3}, "did you mean seeds"),
        ({"arms": {"a": {}}, "seeds": [1, 1]}, "twice"),
        ({"arms": {"a": {}}, "seeds": []}, "at least one"),
        ({"arms": {"a": {}}, "seeds": "many"}, "whole numbers"),
        ({"arms": {"a": {}}, "measure": "accuracy"}, "val_bits_per_byte, val_loss"),
        ({"arms": {"a": {}}, "match": "memory"}, "none, parameters, flops, time"),
        ({"arms": {"a": {"reference": "b"}}}, "no such arm"),
        ({"arms": {"../a": {}}}, "cannot name a folder"),
        ({"arms": {"a": 3}}, "give settings"),
        ({"add_one": {}}, "give `name: settings`"),
        ({"arms": {"a": {}}, "tune": {"lr": [1.0]}}, "two values or more"),
        ({"arms": {"a": {}}, "tune": {"lr": [1, 2]}, "tune_seeds": [1]}, "must not be chosen"),
        ({"arms": {"a": {}}, "looks": [5, 3]}, "rising order"),
        ({"arms": {"a": {}}, "differ": ["corpus"]}, "tokenizer, context, batch"),
        ({"arms": {"a": {}}, "differ": ["context"], "measure": "val_loss"}, "bits per byte"),
        ({"arms": {"a": {}}, "decode": {"contxt": 3}}, "did you mean context"),
        ({"arms": {"a": {}}, "base": 3}, "name a config"),
        ({"arms": ["a"]}, "give `name: value` lines"),
        ({"arms": {"a": {}}, "scores": 3}, "give `name: value` lines"),
        ({"arms": {"a": {}}, "decode": {"context": "long"}}, "whole numbers above 0"),
        ({"arms": {"a": {}}, "probe": "no"}, "true or false"),
        ({"arms": {"a": {}}, "tune_seeds": [7]}, "would do nothing"),
        ({"arms": {"plus-rope": {}}, "add_one": CHANGES}, "two arms have this name"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_that_says_what_can(
    content: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError) as refusal:
        study(**content)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_settings_are_the_same_nested_and_dotted() -> None:
    tree = {"model": {"decoder": {"dim": 8, "norm": {"kind": "dyt"}}}, "data": {"batch_size": 2}}
    dotted = {"model.decoder.dim": 8, "model.decoder.norm.kind": "dyt", "data.batch_size": 2}
    assert flat(tree, "") == flat(dotted, "") == dotted
    assert unflatten(dotted) == tree


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(
        "base: llama.yaml\nseeds: 2\nsettings: {trainer: {max_steps: 5}}\narms: {a: {}}\n"
    )
    found, _ = read_study(str(path), {"trainer.max_steps": 9}, [4])
    assert (found.name, found.settings, found.seeds) == ("own", {"trainer.max_steps": 9}, (4,))


@pytest.mark.parametrize("path", TRAINED, ids=lambda p: p.stem)
def test_every_shipped_study_is_one_and_says_what_to_expect(path: Path) -> None:
    found, _ = read_study(path.stem)
    assert found.description
    assert found.expectation
    assert len(found.seeds) >= 5 or path.stem == "own-text"


def read(tmp_path: Path, text: str) -> Study:
    (tmp_path / "trial.yaml").write_text(text)
    return read_study(str(tmp_path / "trial.yaml"))[0]


def test_arms_are_called_what_is_written(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "base: llama.yaml\nseeds: [1.0e+1, 3]\n"
        "arms: {on: {data.corpus: no}, yes: {}, 010: {}, 1e3: {}}",
    )
    assert [arm.name for arm in found.arms] == ["base", "on", "yes", "010", "1e3"]
    assert found.arms[1].changes == {"data.corpus": "no"}
    assert found.seeds == (10, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("arms: {a: {}, b: {}, a: {}}", "a stands twice, in lines 3 and 3"),
        ("arms: {a: {}}\nseeds: 2", "seeds stands twice, in lines 2 and 4"),
        (
            "arms: {a: {model: {fault: x}, model.fault: y}}",
            "arms.a: model.fault stands twice, once with its group",
        ),
    ],
)
def test_what_stands_twice_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read(tmp_path, f"base: llama.yaml\nseeds: 3\n{text}")
