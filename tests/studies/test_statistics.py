"""The statistics on cases worked by hand, and against scipy's own tests."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

pytest.importorskip("scipy", reason="scipy comes with the extra `lab`")
from scipy import stats

from llama_lab.studies.statistics import (
    ALPHA,
    EXACT_SEEDS,
    FEWEST_TURNS,
    MOST_SEEDS,
    SIGN_DRAWS,
    band,
    compare,
    decide,
    holm,
    look_levels,
    median_interval,
    paired_t,
    seeds_to_decide,
    sign_flip_p,
)

BASE = {0: 10.0, 1: 20.0, 2: 30.0, 3: 40.0, 4: 50.0}


def arm(*differences: float) -> dict[int, float]:
    return {seed: BASE[seed] + d for seed, d in enumerate(differences)}


def example(n: int, seed: int = 0) -> tuple[dict[int, float], dict[int, float]]:
    rng = np.random.default_rng(seed)
    shared = rng.normal(2.0, 0.05, n)
    base, other = (shared + rng.normal(0, 0.02, n) for _ in range(2))
    return dict(enumerate(base.tolist())), dict(enumerate(other.tolist()))


def test_the_paired_t_test_gives_what_is_worked_out_by_hand() -> None:
    # Differences -1 … -5: mean -3; squares about it 4 + 1 + 0 + 1 + 4 = 10, sd = √(10 / 4).
    # t = -3 / (√2.5 / √5) = -3√2. With 4 degrees of freedom the distribution is elementary:
    # F(t) = 1/2 + 3/8 · u · (1 - u² / 12), u = t / √(1 + t² / 4). Here t² = 18, u = √(18 / 5.5).
    u = math.sqrt(18 / 5.5)
    p = 2 * (1 - (0.5 + 3 / 8 * u * (1 - u**2 / 12)))
    # The tables' t for 95 % is 2.776445: half the interval is 2.776445 · √0.5 = 1.963243.
    c = compare(BASE, arm(-1, -2, -3, -4, -5))
    assert (c.base_mean, c.arm_mean, c.difference) == (30, 27, -3)
    assert c.sd == pytest.approx(math.sqrt(2.5))
    assert c.t == pytest.approx(-3 * math.sqrt(2))
    assert c.p == pytest.approx(p)
    assert p == pytest.approx(0.0132, abs=5e-5)
    assert (c.low, c.high) == pytest.approx((-4.963243, -1.036757), abs=2e-6)
    # All signs agree: 2 of 2^5 patterns lie as far out.
    assert (c.sign_flip_p, c.sign_flip_exact) == (1 / 16, True)


def test_what_pairing_bought_is_worked_out_by_hand() -> None:
    # Base 10 … 50: variance 250. The arm 9, 18, … 45 is 0.9 of it: correlation 1, variance
    # 202.5. Welch: error √(250 / 5 + 202.5 / 5) = √90.5, degrees of freedom
    # 90.5² / ((50² + 40.5²) / 4) = 7.9130.
    c = compare(BASE, arm(-1, -2, -3, -4, -5))
    assert c.correlation == pytest.approx(1)
    half = float(stats.t.ppf(0.975, 90.5**2 / ((50**2 + 40.5**2) / 4))) * math.sqrt(90.5)
    assert c.unpaired_half_width == pytest.approx(half)
    assert c.pairing_gain == pytest.approx(half / 1.963243, rel=1e-6)


@pytest.mark.parametrize("n", [2, 3, 5, 12])
@pytest.mark.parametrize("level", [0.05, 0.003])
def test_a_comparison_agrees_with_scipy(n: int, level: float) -> None:
    base, other = example(n, seed=n)
    a, b = np.array(list(other.values())), np.array(list(base.values()))
    c = compare(base, other, level)
    paired, welch = stats.ttest_rel(a, b), stats.ttest_ind(a, b, equal_var=False)
    assert (c.t, c.p) == pytest.approx((paired.statistic, paired.pvalue))
    assert (c.low, c.high) == pytest.approx(tuple(paired.confidence_interval(1 - level)))
    interval = welch.confidence_interval(1 - level)
    assert c.unpaired_half_width == pytest.approx((interval.high - interval.low) / 2)
    if n > 2:
        assert c.correlation == pytest.approx(stats.pearsonr(a, b).statistic)
    flips = stats.permutation_test(
        (a, b), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=2**n
    )
    assert c.sign_flip_p == pytest.approx(flips.pvalue)


def test_only_seeds_that_both_finished_pair() -> None:
    c = compare({0: 1.0, 1: 2.0, 2: 3.0, 3: 4.5}, {3: 5.0, 1: 2.5, 2: 3.2, 9: 100.0})
    assert c.seeds == (1, 2, 3)
    assert c.base_mean == pytest.approx((2 + 3 + 4.5) / 3)
    assert c.difference == pytest.approx(0.4)


def test_one_seed_has_a_difference_and_nothing_more_and_none_has_nothing() -> None:
    one = compare({3: 2.0}, {3: 1.5})
    assert (one.difference, one.sign_flip_p) == (-0.5, 1.0)
    none = compare({3: 2.0}, {4: 1.5})
    assert (none.seeds, none.difference, none.sign_flip_p) == ((), None, None)
    for c in (one, none):
        assert {c.sd, c.low, c.high, c.t, c.p, c.unpaired_half_width, c.correlation} == {None}


def test_equal_values_differ_by_nothing_with_p_one() -> None:
    c = compare(BASE, BASE)
    assert (c.difference, c.sd, c.low, c.high, c.p, c.sign_flip_p) == (0, 0, 0, 0, 1, 1)
    assert c.pairing_gain is None


def test_the_same_difference_in_every_seed_is_no_evidence_whatever_rounding_leaves() -> None:
    rng = np.random.default_rng(0)
    rounded = 0
    for n, exponent in itertools.product(range(2, 12), range(-9, 10)):
        base = rng.uniform(0, 10.0**exponent, n)
        other = base + 10.0**exponent / 7
        rounded += np.std(other - base) > 0
        c = compare(dict(enumerate(base)), dict(enumerate(other)))
        assert c.difference == pytest.approx(10.0**exponent / 7)
        assert (c.sd, c.t, c.p, c.low) == (0, None, None, None)
        assert c.sign_flip_p == 2 / 2**n
    assert rounded > 100


def test_a_spread_above_rounding_is_a_spread() -> None:
    c = compare(BASE, arm(*(1 + 1e-12 * seed for seed in range(5))))
    assert c.sd
    assert c.p is not None
    assert c.p < 1e-9


def test_arms_that_do_not_vary_have_no_correlation() -> None:
    assert compare(dict.fromkeys(range(4), 0.3), arm(1, 2, 3, 4)).correlation is None


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        compare(BASE, arm(1, 2, math.nan, 4, 5))


def test_holm_gives_the_textbook_adjustment() -> None:
    # In order 0.005 · 4, 0.01 · 3, 0.03 · 2, and 0.04 · 1 raised to the 0.06 before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == pytest.approx([1, 1])
    assert holm([]).shape == (0,)


def test_an_arm_without_a_p_value_counts_in_the_family() -> None:
    assert holm([0.01, np.nan, 0.02]) == pytest.approx([0.03, 1, 0.04])


def test_a_verdict_needs_a_p_value_below_the_level_and_has_the_sign_of_the_difference() -> None:
    assert decide([-1, 1, -1], [0.049, 0.01, 0.05]).tolist() == [-1, 1, 0]
    assert decide([-1, 1, -1], [0.049, 0.01, 0.05], 0.011).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        # Of |±1 ±2 ±4| only the two of one sign reach 7.
        ((1, 2, 4), 2 / 8),
        # Observed 2; with the first sign fixed the sums are 4, 2, 0, -2: three reach it.
        ((1, 2, -1), 6 / 8),
        ((1, 2, 3, 4, 5, 6), 2 / 64),
        # Observed 19 = 21 - 2 · 1: reached by flipping a set with sum ≤ 1: {}, {1}.
        ((-1, 2, 3, 4, 5, 6), 4 / 64),
        # Observed 17: sets with sum ≤ 2: {}, {1}, {2}.
        ((1, -2, 3, 4, 5, 6), 6 / 64),
        # 0.1 + 0.2 - 0.3 is not zero in floats, and is the smallest sum all the same.
        ((0.1, 0.2, -0.3), 1),
        ((0.1, 0.2, 0.3, -0.6), 1),
    ],
)
def test_sign_flips_are_counted_by_hand(differences: tuple[float, ...], p: float) -> None:
    assert sign_flip_p(differences) == (p, True)
    assert sign_flip_p([-d for d in differences]) == (p, True)


def test_below_six_seeds_sign_flips_cannot_reach_five_percent() -> None:
    assert [sign_flip_p([0.1] * n)[0] for n in range(1, 7)] == [
        1,
        1 / 2,
        1 / 4,
        1 / 8,
        1 / 16,
        1 / 32,
    ]


def test_drawn_sign_patterns_agree_with_all_of_them_and_say_that_they_are_drawn() -> None:
    d = np.random.default_rng(5).normal(0.4, 1, EXACT_SEEDS + 1)
    low, high = d[:11], d[11:]
    left, right = (
        np.array(list(itertools.product([-1, 1], repeat=len(half)))) @ half for half in (low, high)
    )
    exact = np.mean(np.abs(left[:, None] + right) >= abs(d.sum()) * (1 - 1e-12))
    p, counted = sign_flip_p(d)
    assert not counted
    assert p == pytest.approx(exact, abs=4 * math.sqrt(exact / SIGN_DRAWS))
    assert p == sign_flip_p(d)[0]


def test_the_looks_of_a_plan_spend_what_the_normal_tables_say() -> None:
    # Φ(-1.959964 / √0.2) = Φ(-4.38261), Φ(-3.09898), Φ(-2.53030), Φ(-2.19130): doubled, they are
    # 1.17e-5, 0.00194, 0.01140, 0.02843.
    levels = look_levels([2, 4, 6, 8, 10])
    assert np.cumsum(levels) == pytest.approx([1.17e-5, 0.00194, 0.01140, 0.02843, ALPHA], abs=5e-6)
    assert look_levels([5]) == (ALPHA,)


@pytest.mark.parametrize("plan", [(), (0, 5), (5, 5), (8, 5)])
def test_a_plan_must_grow(plan: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="growing"):
        look_levels(plan)


@pytest.mark.parametrize(("effect", "in_all"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_the_seeds_that_decide_are_those_of_the_power_tables(effect: float, in_all: int) -> None:
    # Cohen's small, medium and large effect in a paired t-test at 5 % and 80 %.
    assert seeds_to_decide(-effect, 1.0, 5, 0.05) == in_all - 5
    assert seeds_to_decide(effect / 100, 0.01, 5, 0.05) == in_all - 5


def test_the_seeds_that_decide_have_an_end() -> None:
    assert seeds_to_decide(0.08, 1.0, 5, 0.05 / 4) is None
    assert seeds_to_decide(0.0, 1.0, 5, 0.05) is None
    # Powers so near to 1 that the noncentral t underflows are enough all the same.
    for effect in np.geomspace(5, 1e6, 60):
        assert seeds_to_decide(effect, 1.0, 5, 0.05 / 20) == 1
    most = seeds_to_decide(0.107, 1.0, 2, 0.05 / 4)
    assert most is not None
    assert 0.95 * MOST_SEEDS < most < MOST_SEEDS
    enough, one_less = (
        stats.nct.sf(stats.t.ppf(1 - 0.05 / 8, n - 1), n - 1, 0.107 * math.sqrt(n))
        for n in (2 + most, 1 + most)
    )
    assert enough >= 0.8 > one_less


def test_studies_in_one_array_are_tested_as_each_by_itself() -> None:
    rng = np.random.default_rng(1)
    base, arms = rng.normal(size=(50, 1, 6)), rng.normal(size=(50, 3, 6))
    arms[7] = base[7]
    arms[8] = base[8] + 1
    together = paired_t(base, arms, 0.02)
    for study, which in itertools.product(range(50), range(3)):
        alone = compare(dict(enumerate(base[study, 0])), dict(enumerate(arms[study, which])), 0.02)
        half = None if alone.high is None else (alone.high - alone.low) / 2
        each = (alone.difference, alone.sd, alone.t, alone.p, half)
        for array, value in zip(together, each, strict=True):
            assert array[study, which] == pytest.approx(
                np.nan if value is None else value, nan_ok=True
            )
    adjusted = holm(together.p)
    assert all((adjusted[i] == holm(together.p[i])).all() for i in range(50))


def test_a_band_is_the_t_interval_at_each_step() -> None:
    # 1 and 3: mean 2, sd √2, error 1; t for one degree of freedom is tan(0.475 π) = 12.7062.
    of_two = band([[1.0, 5.0], [3.0, 5.0]])
    assert of_two.mean == (2, 5)
    assert of_two.low == pytest.approx((2 - math.tan(0.475 * math.pi), 5))
    assert of_two.high == pytest.approx((2 + math.tan(0.475 * math.pi), 5))


def test_one_curve_has_no_band() -> None:
    alone = band([[1.0, 2.0]])
    assert (alone.mean, alone.low, alone.high) == ((1, 2), None, None)


@pytest.mark.parametrize("values", [[], [[1.0, math.nan]], [1.0, 2.0]])
def test_a_band_of_no_finite_curves_is_refused(values: list) -> None:
    with pytest.raises(ValueError, match="finite curves"):
        band(values)


@pytest.mark.parametrize("n", [6, 9, 21, 40])
def test_the_interval_of_a_median_is_what_scipy_finds(n: int) -> None:
    values = np.random.default_rng(n).lognormal(size=n)
    low, high = median_interval(values) or (math.nan, math.nan)
    # What the sign test does not reject: within the interval, and nowhere outside of it.
    for place, is_kept in (
        (low * (1 - 1e-9), False), (low * (1 + 1e-9), True),
        (high * (1 - 1e-9), True), (high * (1 + 1e-9), False),
    ):  # fmt: skip
        p = stats.binomtest(int((values < place).sum()), n, 0.5).pvalue
        assert bool(p > ALPHA) is is_kept


def test_too_few_values_bound_no_median() -> None:
    values = np.arange(FEWEST_TURNS, dtype=float)
    assert median_interval(values) == (0, FEWEST_TURNS - 1)
    assert median_interval(values[1:]) is None
