"""What a range test reads from its losses."""

from __future__ import annotations

import math

import pytest

from llama_lab.errors import UserError
from llama_lab.training.rate_range import RangeTest, Walk


def walked(losses: list[float], test: RangeTest) -> Walk:
    walk = Walk()
    for step, loss in enumerate(losses):
        walk.add(test.rate(step), loss)
        if walk.left:
            break
    return walk


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
    walk = walked(noisy, test)
    assert walk.left
    assert len(walk.rates) < 201
    assert walk.steepest == pytest.approx(test.rate(100), rel=0.15)
    assert walk.lowest == pytest.approx(test.rate(145), rel=0.3)


def test_a_loss_that_is_no_number_ends_the_test_and_is_not_kept() -> None:
    walk = walked([3.0, 2.5, math.nan, 2.0], RangeTest())
    assert walk.left
    assert walk.losses == [3.0, 2.5]


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
