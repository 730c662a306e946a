"""Verdicts of a study: one, and a sentence, for each arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from llama_lab.studies.statistics import (
    ALPHA,
    MOST_SEEDS,
    POWER,
    Comparison,
    compare,
    decide,
    holm,
    look_levels,
    seeds_to_decide,
)

BASE = "the base"

Ending = Literal["diverged", "out of memory", "crashed"]


@dataclass(frozen=True)
class Runs:
    """The runs of one arm. A seed that is in neither has not ended."""

    values: Mapping[int, float]
    """The primary measure of each seed that finished."""

    lost: Mapping[int, Ending] = field(default_factory=dict)
    """How each run ended that has no value. Nothing is put in its place."""

    doubt: str = ""
    """Why these values are not what the measure means, if they are not: there is no verdict."""


@dataclass(frozen=True)
class Lost:
    """A run that ended without a result."""

    of: Literal["arm", "base"]
    seed: int
    ending: Ending


@dataclass(frozen=True)
class ArmConclusion:
    """One arm against the arm that it is compared with, called the base here."""

    name: str
    reference: str
    comparison: Comparison

    p_holm: float | None
    """The t-test's p-value, adjusted over the arms of the family."""

    verdict: str
    """``pays``, ``costs``, ``undecided``, ``no verdict``, or ``diverged in k of n``."""

    survivors_only: bool
    """Whether other runs of the arm or of its base diverged: the comparison is over those that went
    well, a biased sample."""

    more_seeds: int | None
    """If undecided: about how many more seeds would decide; None also beyond MOST_SEEDS."""

    lost: tuple[Lost, ...]
    """Runs of the arm and of the base that have no value."""

    unfinished: tuple[int, ...]
    """Seeds whose run has not ended, in the arm or in the base."""

    sentence: str
    """The verdict in words."""


@dataclass(frozen=True)
class ComparisonFamily:
    """All that a study concludes about its primary measure; ``dataclasses.asdict`` holds it."""

    seeds: tuple[int, ...]
    unit: str
    higher_is_better: bool

    alpha: float
    """The chance of any false verdict, over all arms and the looks of the plan."""

    plan: tuple[int, ...]
    """The numbers of seeds at which looks were declared before any result was seen."""

    looks: tuple[int, ...]
    """The numbers of seeds at which results were looked at, the present one last."""

    level: float
    """The share of ``alpha`` spent at this look: what adjusted p-values are held against."""

    exploratory: bool
    """The plan does not declare this look; verdicts are given as if it were the only one."""

    arms: tuple[ArmConclusion, ...]


def describe_family(
    base: Runs,
    arms: Mapping[str, Runs],
    seeds: Sequence[int],
    *,
    references: Mapping[str, str] | None = None,
    looks: Sequence[int] = (),
    plan: Sequence[int] = (),
    higher_is_better: bool = False,
    unit: str = "bits per byte",
) -> ComparisonFamily:
    """Draw a study's conclusions about its primary measure.

    An arm pays or costs where its t-test's p-value, adjusted by Holm's method over all arms, is
    below the level of this look. Every arm counts in the adjustment, those without a p-value too.
    The intervals are each arm's own, so one may leave out zero where the arm is undecided.

    Runs that diverge leave behind those that went well, a biased sample. So the verdict of an arm
    that lost runs in this way is ``diverged in k of n``, and the numbers of its other seeds are
    marked as survivors'. An arm that looks worse than a base that lost one gets no verdict; one
    that looks better has that bias against it, and its verdict stands. A crash or want of memory
    does not hang on the loss: such a run is named, and takes its seed out of the comparison.

    An arm with runs under way gets no verdict, and the others what they will keep: it counts as
    one that has no p-value.

    Args:
        base: The base's runs.
        arms: The runs of each arm, by name.
        seeds: The study's seeds up to now, which every arm is to run.
        references: Arms that are compared with another arm than the base, and with which.
        looks: Numbers of seeds at which results were looked at, the present one (``len(seeds)``)
            last; empty: this is the first look.
        plan: Numbers of seeds at which looks were declared before any result was seen; empty: the
            first look only.
        higher_is_better: Whether an arm pays by a positive difference.
        unit: What the measure counts, for the sentences.

    Raises:
        ValueError: Looks or plan do not grow, the last look is not at ``len(seeds)``, or a run has
            a seed that is not the study's, a value that is not finite, or both value and ending.
    """
    looks = tuple(looks) or (len(seeds),)
    plan = tuple(plan) or looks[:1]
    if looks[-1] != len(seeds) or any(b <= a for a, b in pairwise(looks)):
        raise ValueError(f"looks must grow up to the study's {len(seeds)} seeds, got {looks}")
    for name, runs in [("the base", base), *arms.items()]:
        strange = (set(runs.values) | set(runs.lost)) - set(seeds)
        if strange or set(runs.values) & set(runs.lost):
            raise ValueError(f"{name} has runs of strange seeds, or with both value and ending")
    against = dict.fromkeys(arms, (BASE, base))
    against |= {name: (other, arms[other]) for name, other in (references or {}).items()}
    look = _Look(
        against=against,
        seeds=tuple(seeds),
        plan=plan,
        levels=look_levels(plan),
        family_size=len(arms),
        higher_is_better=higher_is_better,
        unit=unit,
    )
    return ComparisonFamily(
        seeds=look.seeds,
        unit=unit,
        higher_is_better=higher_is_better,
        alpha=ALPHA,
        plan=plan,
        looks=looks,
        level=look.level,
        exploratory=look.exploratory,
        arms=look.conclude(arms),
    )


@dataclass(frozen=True)
class _Look:
    """The results at one number of seeds, being judged."""

    against: Mapping[str, tuple[str, Runs]]
    """The name and the runs that each arm is compared with."""

    seeds: tuple[int, ...]
    plan: tuple[int, ...]
    levels: tuple[float, ...]
    family_size: int
    higher_is_better: bool
    unit: str

    @property
    def exploratory(self) -> bool:
        return len(self.seeds) not in self.plan

    @property
    def level(self) -> float:
        return ALPHA if self.exploratory else self.levels[self.plan.index(len(self.seeds))]

    def conclude(self, arms: Mapping[str, Runs]) -> tuple[ArmConclusion, ...]:
        comparisons = [
            compare(self.against[name][1].values, runs.values, self.level)
            for name, runs in arms.items()
        ]
        ended = [not self.unfinished(name, runs) for name, runs in arms.items()]
        p = [
            c.p if c.p is not None and done and not diverged_seeds(runs) else np.nan
            for c, done, runs in zip(comparisons, ended, arms.values(), strict=True)
        ]
        return tuple(
            self.judge(name, runs, comparison, None if np.isnan(raw) else adjusted)
            for (name, runs), comparison, raw, adjusted in zip(
                arms.items(), comparisons, p, holm(p).tolist(), strict=True
            )
        )

    def unfinished(self, name: str, runs: Runs) -> tuple[int, ...]:
        ended = [{*each.values, *each.lost} for each in (runs, self.against[name][1])]
        return tuple(seed for seed in self.seeds if not all(seed in one for one in ended))

    def lost(self, of: Literal["arm", "base"], runs: Runs) -> tuple[Lost, ...]:
        return tuple(Lost(of, seed, runs.lost[seed]) for seed in self.seeds if seed in runs.lost)

    def judge(
        self, name: str, runs: Runs, comparison: Comparison, p_holm: float | None
    ) -> ArmConclusion:
        reference, base = self.against[name]
        lost = (*self.lost("arm", runs), *self.lost("base", base))
        unfinished = self.unfinished(name, runs)
        diverged = len(diverged_seeds(runs))
        doubt = runs.doubt or base.doubt or self.doubt(comparison, lost, unfinished)
        verdict = "no verdict" if doubt else self.verdict(comparison, p_holm)
        if diverged and not unfinished and not runs.doubt:
            verdict = f"diverged in {diverged} of {len(self.seeds)}"
            doubt = "its other seeds are those that went well" if comparison.seeds else None
        more = self.more_seeds(comparison) if verdict == "undecided" else None
        words = doubt or self.need(comparison, verdict, more)
        return ArmConclusion(
            name=name,
            reference=reference,
            comparison=comparison,
            p_holm=p_holm,
            verdict=verdict,
            survivors_only=any(run.ending == "diverged" for run in lost),
            more_seeds=more,
            lost=lost,
            unfinished=unfinished,
            sentence=self.sentence(verdict, words, comparison, p_holm, lost, reference),
        )

    def doubt(
        self, comparison: Comparison, lost: tuple[Lost, ...], unfinished: tuple[int, ...]
    ) -> str | None:
        """Why no test could give a verdict here, if there is a reason."""
        n = len(comparison.seeds)
        if unfinished:
            done = len(self.seeds) - len(unfinished)
            return f"{done} of {len(self.seeds)} seeds have ended in both arm and base"
        if not n:
            return "no seed has a result in both arm and base"
        if n == 1:
            return "a single seed does not show how much is chance"
        if comparison.p is None:
            return (
                f"the difference is the same in all {n} seeds, so they vary nothing that matters "
                "here and count as one"
            )
        base_diverged = any(run.of == "base" and run.ending == "diverged" for run in lost)
        if base_diverged and self.points_to(comparison) == "costs":
            return "runs of the base diverged, and those left are the ones that went well"
        return None

    def points_to(self, comparison: Comparison) -> Literal["pays", "costs"]:
        better = (comparison.difference or 0.0) > 0
        return "pays" if better == self.higher_is_better else "costs"

    def verdict(self, comparison: Comparison, p_holm: float | None) -> str:
        if comparison.difference is None or p_holm is None:
            return "no verdict"
        decided = bool(decide(comparison.difference, p_holm, self.level))
        return self.points_to(comparison) if decided else "undecided"

    def more_seeds(self, comparison: Comparison) -> int | None:
        """At the hardest of Holm's levels, of the plan's last look or else of a new study."""
        if comparison.difference is None or not comparison.sd:
            return None
        level = self.levels[-1] if len(self.seeds) < self.plan[-1] else ALPHA
        n = len(comparison.seeds)
        return seeds_to_decide(
            comparison.difference, comparison.sd, n, level / max(self.family_size, 1)
        )

    def need(self, comparison: Comparison, verdict: str, more: int | None) -> str | None:
        """What it would take to decide, in words."""
        n = len(comparison.seeds)
        if verdict != "undecided":
            return None
        if not comparison.sd:
            return f"arm and base have the same value in each of {n} seeds"
        if more is None:
            return (
                "beside the spread over seeds this is about zero, and to decide a difference so "
                f"small would take more than {MOST_SEEDS:,} more seeds"
            )
        return (
            f"were this the true difference, about {_seeds(more, ' more')} ({n + more} in all) "
            f"would decide it with a chance of {POWER:.0%}"
        )

    def sentence(
        self,
        verdict: str,
        words: str | None,
        comparison: Comparison,
        p_holm: float | None,
        lost: tuple[Lost, ...],
        reference: str,
    ) -> str:
        parts = [verdict.capitalize()]
        if comparison.difference is not None:
            parts[0] += f": {comparison.difference:+.4g} {self.unit} against {reference}"
            parts[0] += f" ({self.numbers(comparison, p_holm)})"
        parts += [words] if words else []
        if lost:
            runs = ", ".join(f"{run.of} {run.ending} at seed {run.seed}" for run in lost)
            parts.append(f"without a result: {runs}")
        if self.exploratory and verdict != "no verdict":
            parts.append(
                f"exploratory, as a look at {len(self.seeds)} seeds was not declared beforehand"
            )
        return "; ".join(parts) + "."

    def numbers(self, comparison: Comparison, p_holm: float | None) -> str:
        several = len(self.plan) > 1 and not self.exploratory
        parts = [_seeds(len(comparison.seeds))]
        if comparison.low is not None:
            kind = "repeated 95 % interval" if several else "95 % interval"
            parts.append(f"{kind} {comparison.low:+.4g} to {comparison.high:+.4g}")
        if p_holm is not None:
            parts.append(f"adjusted p = {p_holm:.2g}")
            if several:
                place = self.plan.index(len(self.seeds)) + 1
                parts.append(f"level {self.level:.2g} at look {place} of {len(self.plan)}")
        return ", ".join(parts)


def diverged_seeds(runs: Runs) -> list[int]:
    """The seeds whose run diverged."""
    return [seed for seed, ending in runs.lost.items() if ending == "diverged"]


def _seeds(count: int, more: str = "") -> str:
    return f"{count}{more} seed{'s' if count != 1 else ''}"
