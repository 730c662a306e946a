"""The statistics of paired comparisons: plain numbers in, numbers out.

Shapes: n seeds, m arms of one family. ``paired_t``, ``holm`` and ``decide`` take any leading axes,
so that thousands of simulated studies pass through the very functions that judge a real one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

ALPHA = 0.05
"""The chance of any false verdict in a study that is left, over all arms and looks."""

POWER = 0.8
"""The chance of a verdict at which a number of seeds counts as enough."""

MOST_SEEDS = 1000
"""Beyond so many more seeds no number is named."""

EXACT_SEEDS = 20
"""Up to so many seeds all sign patterns are counted; beyond, so many are drawn:"""
SIGN_DRAWS = 100_000

FEWEST_TURNS = 6
"""Below so many values, not even from the least to the greatest is a 95 % interval of a median."""

# Values that are equal but for rounding differ by an eps of the larger one, their spread by less
# than three: a spread below four is none.
ROUNDING = 4 * np.finfo(np.float64).eps

Array = NDArray[Any]


class PairedT(NamedTuple):
    """The paired t-test of each study, in arrays; what a study does not allow is NaN."""

    mean: Array
    sd: Array
    t: Array
    p: Array
    half_width: Array


def paired_t(base: ArrayLike, arm: ArrayLike, level: float = ALPHA) -> PairedT:
    """Student's paired t-test, two-sided, of arm - base over the last axis, n ≥ 2 seeds.

    t = mean / (sd / √n) with n − 1 degrees of freedom; the interval mean ± ``half_width`` covers
    with probability 1 − ``level``. Differences without spread are outside of the test's model:
    where all are zero, p = 1 and the interval is the point; where all are the same other number, t
    would be infinite and p zero whatever n is, though seeds that vary nothing count as one seed.
    There t, p and ``half_width`` are NaN.
    """
    base, arm = np.asarray(base, dtype=np.float64), np.asarray(arm, dtype=np.float64)
    difference = arm - base
    none = ROUNDING * np.maximum(np.abs(base).max(-1), np.abs(arm).max(-1))
    mean, sd = difference.mean(-1), difference.std(-1, ddof=1)
    constant = sd <= none
    same = constant & (np.abs(mean) <= none)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns of constant differences, treated here
        test = stats.ttest_rel(arm, base, axis=-1)
        interval = test.confidence_interval(1 - level)
    t, p, half_width = (
        np.where(same, zero, np.where(constant, np.nan, value))
        for zero, value in (
            (0.0, test.statistic),
            (1.0, test.pvalue),
            (0.0, (interval.high - interval.low) / 2),
        )
    )
    return PairedT(mean, np.where(constant, 0.0, sd), t, p, half_width)


def _two_sided(df: float, level: float) -> float:
    """The |t| that is exceeded with probability ``level``."""
    return -float(special.stdtrit(df, level / 2))


def holm(p: ArrayLike) -> Array:
    """Holm's step-down adjustment of p-values over the last axis, the m arms of a family.

    The i-th smallest becomes the largest of (m − j + 1) p_(j) over j ≤ i, at most 1. Rejecting
    where it is below a level keeps the chance of any false rejection below it, however the tests
    depend on each other. An arm without a p-value (NaN) counts in m, as one that has p = 1.

    S. Holm 1979, A simple sequentially rejective multiple test procedure, Scand. J. Statist. 6:65.
    """
    p = np.asarray(p, dtype=np.float64)
    p = np.where(np.isnan(p), 1.0, p)
    order = p.argsort(-1)
    factors = np.arange(p.shape[-1], 0, -1)
    stepped = np.maximum.accumulate(np.take_along_axis(p, order, -1) * factors, -1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.minimum(stepped, 1.0), -1)
    return adjusted


def decide(mean: ArrayLike, p_holm: ArrayLike, level: float = ALPHA) -> Array:
    """The sign of each difference that is significant (adjusted p below ``level``); 0 elsewhere."""
    return np.where(np.asarray(p_holm) < level, np.sign(mean), 0.0).astype(int)


def look_levels(plan: Sequence[int]) -> tuple[float, ...]:
    """The level at each look of a plan, given as growing numbers of seeds; they add up to ALPHA.

    What is spent by n of N planned seeds is 2 − 2 Φ(z / √(n / N)), z = Φ⁻¹(1 − ALPHA / 2), the
    O'Brien-Fleming type of K. Lan and D. DeMets 1983, Discrete sequential boundaries for clinical
    trials, Biometrika 70:659: little at first, where few seeds decide little. Each look's share is
    used as its level as it stands (Bonferroni over looks) instead of solving for the joint law of
    the looks' statistics, which is known for large n alone. So the error holds for t-tests of two
    seeds too, with Holm's procedure over any arms, and for every rule of when to stop at one of
    the looks. The intervals 1 − level hold at all looks at once: repeated confidence intervals
    (C. Jennison and B. Turnbull 1989, J. R. Statist. Soc. B 51:305).

    Raises:
        ValueError: The plan is empty or does not grow, or begins below one seed.
    """
    if not plan or plan[0] < 1 or any(b <= a for a, b in pairwise(plan)):
        raise ValueError(f"looks must be growing numbers of seeds, got {tuple(plan)}")
    z = special.ndtri(ALPHA / 2)
    spent = [2 * float(special.ndtr(z / math.sqrt(n / plan[-1]))) for n in plan[:-1]]
    return tuple(now - before for before, now in pairwise([0.0, *spent, ALPHA]))


def sign_flip_p(differences: ArrayLike) -> tuple[float, bool]:
    """The two-sided sign-flip p-value of the mean of n differences, and whether it is exact.

    If an arm changes nothing each difference is as likely as its negative: p is the share of the
    2^n sign patterns with a mean at least as far from zero as the one observed, itself among them,
    so at least 2 / 2^n. Above EXACT_SEEDS the patterns are drawn (always the same draws), and
    p = (1 + hits) / (1 + draws).

    R. A. Fisher 1935, The design of experiments, §21; for drawn patterns B. Phipson and G. Smyth
    2010, Stat. Appl. Genet. Mol. Biol. 9:39.
    """
    d = np.asarray(differences, dtype=np.float64)
    # Sums that tie in exact arithmetic must tie here.
    observed = abs(d.sum()) - len(d) * ROUNDING * np.abs(d).sum()
    if len(d) <= EXACT_SEEDS:
        sums = d[:1]  # A pattern and its opposite lie equally far out: the first sign may be fixed.
        for value in d[1:]:
            sums = np.concatenate([sums + value, sums - value])
        return float(np.mean(np.abs(sums) >= observed)), True
    draws = np.random.default_rng(0)
    sums = np.zeros(SIGN_DRAWS)
    for value in d:
        sums += np.where(draws.random(SIGN_DRAWS) < 0.5, value, -value)
    hits = int(np.sum(np.abs(sums) >= observed))
    return (1 + hits) / (1 + SIGN_DRAWS), False


def seeds_to_decide(mean: float, sd: float, n: int, level: float) -> int | None:
    """How many seeds beyond ``n`` bring a paired t-test at ``level`` to a power of POWER.

    The true difference and spread are taken to be those observed, as in ``mean / sd``; the power is
    that of the noncentral t-distribution, in the observed direction. None: more than MOST_SEEDS.
    """

    def enough(total: int) -> bool:
        noncentrality = abs(mean) / sd * math.sqrt(total)
        missed = special.nctdtr(total - 1, noncentrality, _two_sided(total - 1, level))
        return not missed > 1 - POWER  # NaN is what nctdtr makes of a chance too small to hold.

    if not enough(n + MOST_SEEDS):
        return None
    few, many = 0, MOST_SEEDS  # Power grows with seeds: halve the distance.
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(n + middle) else (middle, many)
    return many


@dataclass(frozen=True)
class Comparison:
    """An arm against the base over the n seeds that both finished; None where n does not allow it.

    All but ``sign_flip_p`` and ``correlation`` follow from normally distributed differences.
    """

    seeds: tuple[int, ...]
    """The seeds that pair."""

    base_mean: float | None
    arm_mean: float | None

    difference: float | None
    """Mean of arm - base."""

    sd: float | None
    """Standard deviation of the differences, n - 1 in the denominator."""

    level: float
    """The interval covers with probability 1 - ``level``."""

    low: float | None
    high: float | None
    """The t-interval of the difference."""

    t: float | None
    p: float | None
    """Two-sided and unadjusted; None also where the difference is the same in every seed."""

    sign_flip_p: float | None
    sign_flip_exact: bool
    """Whether all sign patterns were counted or some drawn."""

    correlation: float | None
    """Pearson's, of the two arms over seeds; None below three seeds."""

    unpaired_half_width: float | None
    """Half the interval's width had the same values not been paired (Welch)."""

    pairing_gain: float | None
    """How many times wider the interval would be unpaired; below 1 pairing cost more than it
    bought: it has about half the degrees of freedom.
    """


def compare(
    base: Mapping[int, float], arm: Mapping[int, float], level: float = ALPHA
) -> Comparison:
    """Compare an arm with the base, both given as {seed: value}.

    Raises:
        ValueError: A value is not finite. A run that diverged has no value: nothing stands for it.
    """
    seeds = tuple(seed for seed in base if seed in arm)
    a = np.array([arm[seed] for seed in seeds], dtype=np.float64)
    b = np.array([base[seed] for seed in seeds], dtype=np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError(f"values must be finite, got {dict(base)} and {dict(arm)}")
    several = len(seeds) >= 2
    mean = float((a - b).mean()) if seeds else None
    test = paired_t(b, a, level) if several else None
    flipped, exact = sign_flip_p(a - b) if seeds else (None, True)
    half_width = _number(test.half_width) if test else None
    unpaired = _welch_half_width(a, b, level) if several else None
    return Comparison(
        seeds=seeds,
        base_mean=float(b.mean()) if seeds else None,
        arm_mean=float(a.mean()) if seeds else None,
        difference=mean,
        sd=_number(test.sd) if test else None,
        level=level,
        low=mean - half_width if mean is not None and half_width is not None else None,
        high=mean + half_width if mean is not None and half_width is not None else None,
        t=_number(test.t) if test else None,
        p=_number(test.p) if test else None,
        sign_flip_p=flipped,
        sign_flip_exact=exact,
        correlation=_correlation(a, b) if len(seeds) >= 3 else None,
        unpaired_half_width=unpaired,
        pairing_gain=unpaired / half_width if unpaired and half_width else None,
    )


def _number(value: Array) -> float | None:
    return float(value) if np.isfinite(value) else None


def _varies(values: Array) -> bool:
    return bool(values.std(ddof=1) > ROUNDING * np.abs(values).max())


def _correlation(a: Array, b: Array) -> float | None:
    return float(np.corrcoef(a, b)[0, 1]) if _varies(a) and _varies(b) else None


def _welch_half_width(a: Array, b: Array, level: float) -> float | None:
    """Half the Welch interval's width (B. Welch 1947, Biometrika 34:28) of n values in each arm."""
    if not (_varies(a) or _varies(b)):
        return None
    interval = stats.ttest_ind(a, b, equal_var=False).confidence_interval(1 - level)
    return _number((interval.high - interval.low) / 2)


@dataclass(frozen=True)
class Band:
    """A curve's mean over seeds, and its 95 % t-interval at each step by itself."""

    mean: tuple[float, ...]

    low: tuple[float, ...] | None
    high: tuple[float, ...] | None
    """None for one seed: a single curve has no band."""


def band(values: ArrayLike) -> Band:
    """Mean and t-interval over seeds by step, of ``values`` [n seeds, steps].

    Raises:
        ValueError: There is no seed, or a value is not finite, or the curves differ in length.
    """
    curves = np.asarray(values, dtype=np.float64)
    if curves.ndim != 2 or not len(curves) or not np.isfinite(curves).all():
        raise ValueError("a band needs finite curves of one length, one per seed")
    mean = tuple(curves.mean(0).tolist())
    if len(curves) == 1:
        return Band(mean, None, None)
    error = curves.std(0, ddof=1) / math.sqrt(len(curves))
    half_width = _two_sided(len(curves) - 1, ALPHA) * error
    return Band(
        mean,
        tuple((curves.mean(0) - half_width).tolist()),
        tuple((curves.mean(0) + half_width).tolist()),
    )


def median_interval(values: ArrayLike, level: float = ALPHA) -> tuple[float, float] | None:
    """An interval of the median of what ``values`` [n] are drawn from, whatever its distribution.

    From the k-th least to the k-th greatest value, for the greatest k at which it covers with
    probability 1 - 2 P(Bin(n, 1/2) < k) ≥ 1 - ``level`` (the sign test's interval). None where no
    k does.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n = len(ordered)
    covers = [2 * special.bdtr(k - 1, n, 0.5) <= level for k in range(1, n // 2 + 1)]
    k = sum(covers)
    return (float(ordered[k - 1]), float(ordered[n - k])) if k else None
