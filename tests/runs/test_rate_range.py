"""What a range test reads from its losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from statistics import pstdev

import pytest

pytest.importorskip("scipy", reason="a curve's noise needs scipy")

from llama_lab.errors import UserError
from llama_lab.reports.range_report import findings, sentences
from llama_lab.runs.rate_range import RangeTest, RangeTrial, averaged


def trial_of(losses: list[float], test: RangeTest) -> RangeTrial:
    trial = RangeTrial()
    for step, loss in enumerate(losses):
        trial.add(test.rate(step), loss)
        if trial.left:
            break
    return trial


def test_rates_grow_by_one_factor_from_the_first_to_the_last() -> None:
    test = RangeTest(lr_min=1e-4, lr_max=1.0, steps=41)
    assert [test.rate(s) for s in (0, 10, 20, 40)] == pytest.approx([1e-4, 1e-3, 1e-2, 1.0])


def test_the_steepest_fall_and_the_lowest_loss_are_found_where_they_are() -> None:
    test = RangeTest(lr_min=1e-4, lr_max=1.0, steps=201)
    # A fall around step 100, the lowest loss at step 150, 4 nats more at the end.
    losses = [
        3 - math.tanh((step - 100) / 10) + max(0, step - 150) ** 2 / 600 for step in range(201)
    ]
    noisy = [loss + 0.02 * (-1) ** step for step, loss in enumerate(losses)]
    trial = trial_of(noisy, test)
    assert trial.left
    assert len(trial.rates) < 201
    assert trial.steepest == pytest.approx(test.rate(100), rel=0.15)
    assert trial.lowest == pytest.approx(test.rate(145), rel=0.3)


def noisy(curve: Callable[[float], float], steps: int, seed: int) -> RangeTrial:
    """A trial along a curve over the share of the steps, with normal noise of 0.05 nats."""
    test, draws = RangeTest(steps=steps), Random(seed)
    return trial_of([curve(i / steps) + draws.gauss(0, 0.05) for i in range(steps)], test)


@pytest.mark.parametrize("steps", [20, 50, 200])
def test_on_a_flat_curve_no_rate_is_read_and_on_one_that_falls_it_is(steps: int) -> None:
    # Once in a thousand at most.
    assert sum(noisy(lambda x: 4.2, steps, seed).falls for seed in range(60)) == 0
    assert not any(noisy(lambda x: 4.2 + x, steps, seed).falls for seed in range(15))
    assert all(
        noisy(lambda x: 4.2 - min(1, max(0, 2 * x - 0.5)), steps, seed).falls for seed in range(15)
    )


def test_the_way_out_of_a_flat_curve_is_said() -> None:
    flat, rising = (noisy(curve, 100, 0) for curve in (lambda x: 4.2, lambda x: 4.2 + 5 * x))
    assert not flat.falls
    assert not flat.rises
    assert rising.rises
    for trial, way in (flat, "raise --lr_max"), (rising, "lower --lr_min"):
        found = findings(averaged([trial]))
        assert way in sentences(trial, found)[1]
        assert found["steepest_lr"] is found["lowest_lr"] is found["lowest_loss"] is None


def test_several_trainings_steady_the_lowest_loss_where_there_are_few_steps() -> None:
    assert [RangeTest(steps=s).trainings for s in (20, 50, 100, 200)] == [5, 2, 1, 1]
    assert RangeTest(steps=20, repeats=1).trainings == 1

    def valley(x: float) -> float:
        return 4.2 + 2 * (x - 0.6) ** 2

    def spread(trainings: int) -> float:
        found = [
            averaged([noisy(valley, 20, 100 * i + j) for j in range(trainings)]).lowest
            for i in range(40)
        ]
        return pstdev(map(math.log, found))

    assert spread(5) < 0.75 * spread(1)


def test_the_mean_of_trainings_ends_where_the_first_of_them_ended() -> None:
    long, short = RangeTrial(), RangeTrial()
    for loss in (4.0, 3.0, 2.0):
        long.add(0.1, loss)
    for loss in (2.0, 1.0, math.nan):
        short.add(0.1, loss)
    mean = averaged([long, short])
    assert mean.losses == [3.0, 2.0]
    assert mean.left


def test_a_loss_that_is_no_number_ends_the_test_and_is_not_kept() -> None:
    trial = trial_of([3.0, 2.5, math.nan, 2.0], RangeTest())
    assert trial.left
    assert trial.losses == [3.0, 2.5]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lr_min": 0.0}, "--lr_min 0.0"),
        ({"lr_min": 0.1, "lr_max": 0.01}, "the first below the second"),
        ({"steps": 5}, "--steps 5: must be 20 or more"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        RangeTest(**settings)  # type: ignore[arg-type]
