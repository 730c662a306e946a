"""The verdicts, their words, and how often they are wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import pytest

pytest.importorskip("scipy", reason="scipy comes with the extra `lab`")
from scipy import stats

from llama_lab.reports.blocks import kind_of
from llama_lab.studies.conclusions import (
    ArmConclusion,
    ComparisonFamily,
    Ending,
    Runs,
    describe_family,
)
from llama_lab.studies.statistics import (
    ALPHA,
    Array,
    decide,
    holm,
    look_levels,
    paired_t,
    seeds_to_decide,
)

STUDIES = 20_000
NOISE = np.random.default_rng(3).normal(0, 0.01, 8)
BASE = Runs({seed: 2.0 + seed / 10 for seed in range(5)})


def runs(difference: float, n: int = 5, **lost: Ending) -> Runs:
    """An arm that differs from BASE by so much and some noise; ``s3="crashed"`` loses seed 3."""
    gone = {int(seed[1:]): ending for seed, ending in lost.items()}
    values = {s: 2.0 + s / 10 + difference + NOISE[s] for s in range(n) if s not in gone}
    return Runs(values, gone)


def one(arm: Runs, base: Runs = BASE, n: int = 5, **settings: object) -> ArmConclusion:
    return describe_family(base, {"arm": arm}, range(n), **settings).arms[0]  # type: ignore[arg-type]


def without(base: Runs, seed: int, ending: Ending) -> Runs:
    return Runs({s: v for s, v in base.values.items() if s != seed}, {seed: ending})


def test_the_verdict_follows_the_direction_of_the_measure() -> None:
    assert one(runs(-0.2)).verdict == "pays"
    assert one(runs(+0.2)).verdict == "costs"
    assert one(runs(-0.2), higher_is_better=True).verdict == "costs"
    assert one(runs(+0.2), higher_is_better=True).verdict == "pays"
    assert one(runs(-0.001)).verdict == "undecided"


def test_a_verdict_is_adjusted_over_all_arms_of_the_family() -> None:
    alone = one(runs(-0.025))
    assert alone.p_holm == alone.comparison.p
    assert alone.verdict == "pays"
    others = {f"other {i}": runs(0.0) for i in range(4)}
    among = describe_family(BASE, {"arm": runs(-0.025), **others}, range(5)).arms[0]
    assert among.p_holm == pytest.approx(5 * alone.p_holm)
    assert among.verdict == "undecided"
    # Arms that yield no p-value were hypotheses too.
    lost = {f"other {i}": Runs({}, dict.fromkeys(range(5), "crashed")) for i in range(4)}
    beside = describe_family(BASE, {"arm": runs(-0.025), **lost}, range(5)).arms[0]
    assert beside.p_holm == among.p_holm


def test_an_undecided_arm_says_how_many_more_seeds_would_decide_it() -> None:
    few = one(runs(-0.008))
    assert few.more_seeds
    assert f"about {few.more_seeds} more seeds ({5 + few.more_seeds} in all)" in few.sentence
    none = one(runs(-float(np.mean(NOISE[:5])) + 1e-5))
    assert (none.verdict, none.more_seeds) == ("undecided", None)
    assert "about zero" in none.sentence
    assert "more than 1,000 more seeds" in none.sentence
    family = {"arm": runs(-0.008), "other": runs(0.0)}
    harder = describe_family(BASE, family, range(5)).arms[0].more_seeds
    assert harder is not None
    assert harder > few.more_seeds
    assert one(runs(-0.2)).more_seeds is None


def test_one_seed_gives_no_verdict_and_says_so() -> None:
    alone = one(runs(-0.2, n=1), Runs({0: 2.0}), n=1)
    assert (alone.verdict, alone.p_holm, alone.more_seeds) == ("no verdict", None, None)
    assert alone.comparison.difference is not None
    assert "single seed" in alone.sentence


def test_equal_arms_are_undecided_and_a_difference_without_spread_gives_no_verdict() -> None:
    same = one(BASE)
    assert (same.verdict, same.p_holm, same.more_seeds) == ("undecided", 1, None)
    assert "same value in each of 5 seeds" in same.sentence
    shifted = one(Runs({seed: value - 0.1 for seed, value in BASE.values.items()}))
    assert (shifted.verdict, shifted.p_holm) == ("no verdict", None)
    assert "same in all 5 seeds" in shifted.sentence


@pytest.mark.parametrize("difference", [-0.2, -0.008, 0.008, 0.2])
def test_the_verdict_of_an_arm_that_lost_runs_by_divergence_is_that(difference: float) -> None:
    arm = one(runs(difference, s3="diverged"))
    assert (arm.verdict, arm.p_holm, arm.more_seeds) == ("diverged in 1 of 5", None, None)
    assert arm.survivors_only
    assert arm.comparison.seeds == (0, 1, 2, 4)
    assert arm.sentence.startswith("Diverged in 1 of 5: ")
    assert "its other seeds are those that went well" in arm.sentence
    assert "arm diverged at seed 3" in arm.sentence
    assert kind_of(arm.verdict) == "diverged"


def test_an_arm_of_which_all_runs_crashed_or_diverged_in_some_seeds_says_in_how_many() -> None:
    arm = one(runs(-0.2, s1="crashed", s3="diverged", s4="diverged"))
    assert arm.verdict == "diverged in 2 of 5"
    assert not one(runs(-0.2, s1="crashed")).survivors_only


def test_beside_a_base_that_lost_runs_by_divergence_an_arm_may_pay_but_not_cost() -> None:
    base = without(BASE, 2, "diverged")
    assert one(runs(-0.2), base).verdict == "pays"
    assert one(runs(-0.2), base).survivors_only
    worse = one(runs(+0.2), base)
    assert worse.verdict == "no verdict"
    assert "runs of the base diverged" in worse.sentence
    # The other way about, where a higher value is the better one.
    assert one(runs(-0.2), base, higher_is_better=True).verdict == "no verdict"


@pytest.mark.parametrize("ending", ["crashed", "out of memory"])
def test_other_lost_runs_take_their_seed_out_and_are_named(ending: Ending) -> None:
    arm = one(runs(-0.2, s3=ending), without(BASE, 1, ending))
    assert (arm.verdict, arm.comparison.seeds) == ("pays", (0, 2, 4))
    assert [(run.of, run.seed, run.ending) for run in arm.lost] == [
        ("arm", 3, ending),
        ("base", 1, ending),
    ]
    assert f"arm {ending} at seed 3, base {ending} at seed 1" in arm.sentence


def test_an_arm_without_any_result_is_reported() -> None:
    arm = one(Runs({}, dict.fromkeys(range(5), "diverged")))
    assert (arm.verdict, arm.comparison.difference) == ("diverged in 5 of 5", None)
    crashed = one(Runs({}, dict.fromkeys(range(5), "crashed")))
    assert (crashed.verdict, crashed.comparison.difference) == ("no verdict", None)
    assert "no seed has a result" in crashed.sentence


def test_while_runs_are_under_way_their_arm_has_no_verdict_and_others_what_they_keep() -> None:
    arms = {"done": runs(-0.2), "close": runs(-0.017), "half": runs(-0.2, n=3)}
    done, close, half = describe_family(BASE, arms, range(5)).arms
    assert half.unfinished == (3, 4)
    assert (half.verdict, half.p_holm) == ("no verdict", None)
    assert "3 of 5 seeds" in half.sentence
    assert done.verdict == "pays"
    assert done.p_holm == pytest.approx(3 * done.comparison.p)
    later = describe_family(BASE, {**arms, "half": runs(-0.2)}, range(5)).arms
    assert later[0].p_holm <= done.p_holm
    assert later[1].p_holm <= close.p_holm


def look(n: int, plan: Sequence[int] = (), looks: Sequence[int] = ()) -> ComparisonFamily:
    base = Runs({seed: 2.0 + seed / 10 for seed in range(n)})
    return describe_family(base, {"arm": runs(-0.2, n)}, range(n), plan=plan, looks=looks)


def test_a_declared_look_spends_its_share_of_the_error_on_verdict_and_interval() -> None:
    plan = (3, 5, 8)
    families = [look(n, plan) for n in plan]
    assert tuple(f.level for f in families) == look_levels(plan)
    assert not any(f.exploratory for f in families)
    for family in families:
        arm = family.arms[0]
        assert arm.comparison.level == family.level
        assert (arm.verdict == "pays") == (arm.p_holm < family.level)
    assert families[0].arms[0].p_holm < ALPHA  # At the full level it would pay.
    assert families[0].arms[0].verdict == "undecided"
    assert "level 0.012 at look 2 of 3" in families[1].arms[0].sentence
    assert "repeated 95 % interval" in families[1].arms[0].sentence


def test_seeds_to_come_are_counted_at_the_level_of_the_last_look() -> None:
    plan = (3, 5, 8)
    arm = one(runs(-0.004), plan=plan)
    mean, sd = arm.comparison.difference, arm.comparison.sd
    assert mean
    assert sd
    assert arm.more_seeds == seeds_to_decide(mean, sd, 5, look_levels(plan)[-1])
    # Beyond the plan there is a new study, with all of the error to spend.
    last = one(runs(-0.004), plan=(3, 5))
    assert last.more_seeds == seeds_to_decide(mean, sd, 5, ALPHA)
    assert last.more_seeds < arm.more_seeds


def test_seeds_added_without_a_plan_make_the_verdict_exploratory() -> None:
    first = look(5)
    assert (first.plan, first.looks, first.level) == ((5,), (5,), ALPHA)
    assert not first.exploratory
    assert "exploratory" not in first.arms[0].sentence
    for added in (look(8, looks=(5, 8)), look(8, plan=(5,)), look(4, plan=(3, 5, 8))):
        assert added.exploratory
        assert added.level == ALPHA
        assert "exploratory" in added.arms[0].sentence


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"looks": (3,)}, "looks must grow up to the study's 5 seeds"),
        ({"looks": (7, 5)}, "looks must grow up to the study's 5 seeds"),
        ({"plan": (8, 5)}, "growing numbers"),
    ],
)
def test_looks_that_do_not_fit_the_study_are_refused(settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        one(runs(-0.2), **settings)


@pytest.mark.parametrize("strange", [Runs({9: 1.0}), Runs({0: 1.0}, {0: "crashed"})])
def test_runs_that_do_not_fit_the_study_are_refused(strange: Runs) -> None:
    with pytest.raises(ValueError, match="arm has runs"):
        one(strange)


def test_a_family_is_plain_json_in_every_case() -> None:
    arms = {
        "same": BASE,
        "shifted": Runs({seed: value + 1 for seed, value in BASE.values.items()}),
        "lost": Runs({}, dict.fromkeys(range(5), "diverged")),
        "half": runs(0.1, n=1),
        "arm": runs(-0.1, s2="crashed"),
    }
    for plan in ((), (3, 5), (5, 10_000)):
        family = describe_family(BASE, arms, range(5), plan=plan)
        saved = json.loads(json.dumps(asdict(family), allow_nan=False))
        assert [arm["name"] for arm in saved["arms"]] == list(arms)
        assert saved["arms"][4]["lost"] == [{"of": "arm", "seed": 2, "ending": "crashed"}]


# What follows draws whole studies. `paired_t`, `holm`, `decide` and `look_levels` are the ones that
# `describe_family` calls; that it puts them together as here is held on 2,000 studies.


def draw(
    rng: np.random.Generator, studies: int, m: int, n: int, noise: str = "normal"
) -> tuple[Array, Array]:
    """Base [studies, 1, n] and arms [studies, m, n] without any effect.

    A seed shifts all arms alike, three times as far as an arm's own noise; the base is shared.
    """
    shape = {"base": (studies, 1, n), "arms": (studies, m, n)}
    seed = rng.normal(2.0, 0.03, shape["base"])
    base = seed + rng.normal(0, 0.01, shape["base"])
    if noise == "normal":
        own = rng.normal(0, 0.01, shape["arms"])
    elif noise == "heavy tails":
        own = 0.01 * rng.standard_t(4, shape["arms"])
    else:
        own = 0.01 * (rng.exponential(1, shape["arms"]) - 1)
    return base, seed + own


def at_most(rate: float, trials: int) -> float:
    """A count that is exceeded with probability 0.001 where the rate is the true one."""
    return float(stats.binom.ppf(0.999, trials, rate))


def at_least(rate: float, trials: int) -> float:
    return float(stats.binom.ppf(0.001, trials, rate))


def found(base: Array, arms: Array, level: float = ALPHA) -> Array:
    """The sign of each verdict [studies, m]."""
    test = paired_t(base, arms, level)
    return decide(test.mean, holm(test.p), level)


def covered(base: Array, arms: Array, level: float = ALPHA, true: float = 0.0) -> Array:
    """Whether each interval [studies, m] holds the true difference."""
    test = paired_t(base, arms, level)
    return np.abs(test.mean - true) <= test.half_width


@pytest.mark.parametrize(("m", "n"), [(1, 2), (1, 5), (4, 3), (4, 5), (9, 10)])
def test_at_most_five_percent_of_studies_without_effects_have_a_verdict(m: int, n: int) -> None:
    base, arms = draw(np.random.default_rng(10 * m + n), STUDIES, m, n)
    wrong = int(found(base, arms).any(-1).sum())
    assert wrong <= at_most(ALPHA, STUDIES)
    # A test that never decides would pass the line above: one arm uses its five percent up, and
    # more arms most of it.
    assert wrong >= at_least(ALPHA if m == 1 else ALPHA / 2, STUDIES)
    one_by_one = int((paired_t(base, arms).p < ALPHA).any(-1).sum())
    assert m == 1 or one_by_one > at_most(ALPHA, STUDIES)


def test_arms_with_an_effect_do_not_make_the_others_verdicts_wrong_more_often() -> None:
    base, arms = draw(np.random.default_rng(1), STUDIES, 4, 5)
    arms[:, :2] -= 0.05
    verdicts = found(base, arms)
    assert (verdicts[:, 0] == -1).mean() > 0.9
    assert int(verdicts[:, 2:].any(-1).sum()) <= at_most(ALPHA, STUDIES)


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_intervals_cover_the_true_difference_in_95_percent_of_studies(n: int) -> None:
    base, arms = draw(np.random.default_rng(n), STUDIES, 1, n)
    hits = int(covered(base, arms + 0.02, true=0.02).sum())
    assert at_least(1 - ALPHA, STUDIES) <= hits <= at_most(1 - ALPHA, STUDIES)


PLANS = [(2, 3, 4, 5), (3, 5, 8), (5, 10), (5, 6, 7, 8, 9, 10)]


@pytest.mark.parametrize("plan", PLANS)
def test_looks_leave_at_most_five_percent_of_studies_with_a_false_verdict(
    plan: tuple[int, ...],
) -> None:
    base, arms = draw(np.random.default_rng(sum(plan)), STUDIES, 3, plan[-1])
    at_looks = [
        found(base[..., :n], arms[..., :n], level).any(-1)
        for n, level in zip(plan, look_levels(plan), strict=True)
    ]
    # A study that stops at its first verdict has one if any look has.
    wrong = int(np.any(at_looks, axis=0).sum())
    assert ALPHA / 2 * STUDIES < wrong <= at_most(ALPHA, STUDIES)
    unspent = [found(base[..., :n], arms[..., :n]).any(-1) for n in plan]
    assert int(np.any(unspent, axis=0).sum()) > at_most(ALPHA, STUDIES)


@pytest.mark.parametrize("effect", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("plan", PLANS)
def test_intervals_cover_at_all_looks_at_once_and_at_the_first_verdict(
    plan: tuple[int, ...], effect: float
) -> None:
    base, arms = draw(np.random.default_rng(sum(plan)), STUDIES, 2, plan[-1])
    arms += effect
    at_every = np.ones(STUDIES, dtype=bool)
    at_stop = np.ones(STUDIES, dtype=bool)
    going = np.ones(STUDIES, dtype=bool)
    for n, level in zip(plan, look_levels(plan), strict=True):
        now = base[..., :n], arms[..., :n]
        hit = covered(*now, level, effect)[:, 0]
        assert at_least(1 - level, STUDIES) <= hit.sum() <= at_most(1 - level, STUDIES)
        at_every &= hit
        at_stop = np.where(going, hit, at_stop)
        going &= ~found(*now, level).any(-1)
    assert at_every.sum() >= at_least(1 - ALPHA, STUDIES)
    assert at_stop.sum() >= at_least(1 - ALPHA, STUDIES)


@pytest.mark.parametrize("plan", [(5,), (3, 5)])
def test_the_conclusions_of_a_study_are_those_of_the_simulated_ones(plan: tuple[int, ...]) -> None:
    studies, m = 1000, 3
    base, arms = draw(np.random.default_rng(len(plan)), studies, m, plan[-1])
    arms[::4, 0] -= 0.03
    for n, level in zip(plan, look_levels(plan), strict=True):
        now = base[..., :n], arms[..., :n]
        words = np.array(["undecided", "costs", "pays"])[found(*now, level)]
        hits = covered(*now, level)
        for i in range(studies):
            family = describe_family(
                Runs(dict(enumerate(base[i, 0, :n].tolist()))),
                {str(j): Runs(dict(enumerate(arms[i, j, :n].tolist()))) for j in range(m)},
                range(n),
                plan=plan,
            )
            assert [arm.verdict for arm in family.arms] == words[i].tolist()
            intervals = [(arm.comparison.low, arm.comparison.high) for arm in family.arms]
            assert [low <= 0 <= high for low, high in intervals] == hits[i].tolist()
    assert {"undecided", "pays"} <= set(words.ravel().tolist())


@pytest.mark.parametrize("noise", ["heavy tails", "skewed"])
def test_noise_that_is_not_normal_is_shown(
    noise: str, record_property: pytest.RecordProperty
) -> None:
    """The t-test assumes normal differences; here is by how much five percent are missed."""
    base, arms = draw(np.random.default_rng(0), STUDIES, 4, 5, noise)
    rate = float(found(base, arms).any(-1).mean())
    coverage = float(covered(base, arms).mean())
    print(f"{noise}: {rate:.2%} of studies with a false verdict, {coverage:.2%} coverage")
    record_property("false verdicts", rate)
    record_property("coverage", coverage)
    assert 0 < rate < 2 * ALPHA
