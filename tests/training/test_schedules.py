"""The learning rate of each step."""

from __future__ import annotations

import math

import pytest

from llama_lab.model.settings import SettingError
from llama_lab.training.schedules import SCHEDULES, ScheduleConfig, ScheduleKind, lr_factor


def test_warmup_then_cosine_then_the_floor() -> None:
    factor = lr_factor(ScheduleConfig(warmup_steps=10, min_lr_ratio=0.2), 110)
    assert factor(0) == pytest.approx(0.1)
    assert factor(9) == 1
    assert factor(10) == 1
    assert factor(60) == pytest.approx(0.6)
    assert factor(35) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)
    assert factor(110) == pytest.approx(0.2)
    assert factor(500) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        # Of 110 steps, 10 of warmup; at steps 4, 10, 35, 60, 85 and 110.
        ("cosine", {}, [0.5, 1, 0.1 + 0.9 * (0.5 + math.sqrt(0.125)), 0.55, None, 0.1]),
        ("linear", {"min_lr_ratio": 0.0}, [0.5, 1, 0.75, 0.5, 0.25, 0]),
        ("linear", {}, [0.5, 1, 0.775, 0.55, 0.325, 0.1]),
        # The last 22 steps decay: from step 88 on.
        ("wsd", {}, [0.5, 1, 1, 1, 1, 0.1]),
        # The last 55: from step 55 on.
        ("wsd", {"decay_fraction": 0.5, "min_lr_ratio": 0.0}, [0.5, 1, 1, 50 / 55, 25 / 55, 0]),
        ("wsd", {"decay_fraction": 1.0, "min_lr_ratio": 0.0}, [0.5, 1, 0.75, 0.5, 0.25, 0]),
        ("constant", {}, [0.5, 1, 1, 1, 1, 1]),
    ],
)
def test_a_schedule_is_what_its_name_says(
    kind: ScheduleKind, settings: dict[str, float], expected: list[float | None]
) -> None:
    factor = lr_factor(ScheduleConfig(kind=kind, warmup_steps=10, **settings), 110)
    found = [factor(step) for step in (4, 10, 35, 60, 85, 110)]
    for here, there in zip(found, expected, strict=True):
        assert there is None or here == pytest.approx(there)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_warmup_longer_than_the_run_is_cut_off(kind: ScheduleKind) -> None:
    factor = lr_factor(ScheduleConfig(kind=kind, warmup_steps=100), 40)
    assert [factor(s) for s in (0, 39)] == pytest.approx([0.01, 0.4])
    assert lr_factor(ScheduleConfig(kind=kind, warmup_steps=0), 1)(0) == pytest.approx(1)


def test_a_warmup_into_the_decay_shortens_that() -> None:
    config = ScheduleConfig(kind="wsd", warmup_steps=90, min_lr_ratio=0.0)
    factor = lr_factor(config, 100)
    assert [factor(s) for s in (89, 90, 95, 100)] == pytest.approx([1, 1, 0.5, 0])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "constant", "min_lr_ratio": 0.1}, "schedule.min_lr_ratio"),
        ({"kind": "cosine", "decay_fraction": 0.1}, "schedule.decay_fraction"),
        ({"kind": "wsd", "decay_fraction": 0.0}, "decay_fraction 0.0: must be in"),
        ({"kind": "linear", "min_lr_ratio": 1.5}, "min_lr_ratio 1.5: must be in"),
    ],
)
def test_a_setting_that_does_nothing_or_cannot_be_is_refused(
    settings: dict[str, object], words: str
) -> None:
    with pytest.raises(SettingError, match=words):
        ScheduleConfig(**settings)  # type: ignore[arg-type]


def test_kinds_and_table_agree() -> None:
    assert set(SCHEDULES) == set(ScheduleKind.__args__)  # type: ignore[attr-defined]
