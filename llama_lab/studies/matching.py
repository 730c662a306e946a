"""Arms with as many parameters, FLOPs or seconds as the base."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from llama_lab.model.decoder import DecoderConfig
from llama_lab.studies.planned_arms import PlannedArm, Resolver
from llama_lab.studies.study import Match

HIDDEN_DIM = "model.decoder.feed_forward.hidden_dim"
WIDTH_STEP = 8
"""Widths of the feed-forward are matched in multiples of this."""


def match_none(
    resolver: Resolver, planned: PlannedArm, base: PlannedArm, times: Mapping[str, float]
) -> PlannedArm:
    """The arm as it is."""
    return planned


def match_parameters(
    resolver: Resolver, planned: PlannedArm, base: PlannedArm, times: Mapping[str, float]
) -> PlannedArm:
    """The feed-forward as wide as brings the parameters nearest to the base's."""
    return match_width(resolver, planned, base, "parameters", lambda arm: arm.parameters)


def match_flops(
    resolver: Resolver, planned: PlannedArm, base: PlannedArm, times: Mapping[str, float]
) -> PlannedArm:
    """The feed-forward as wide as brings a token's FLOPs nearest to the base's.

    The steps stay: so every arm still reads the same sequences.
    """
    return match_width(resolver, planned, base, "FLOPs a token", lambda arm: arm.flops_per_token)


def match_width(
    resolver: Resolver,
    planned: PlannedArm,
    base: PlannedArm,
    unit: str,
    count: Callable[[PlannedArm], int],
) -> PlannedArm:
    """Both counts are linear in the feed-forward's width, so two of them say which one fits."""
    target, now = count(base), count(planned)
    if now == target:
        return planned
    width = planned.decoder.feed_forward.width(planned.decoder.dim)
    other = dataclasses.replace(planned, decoder=with_width(planned.decoder, width + WIDTH_STEP))
    slope = (count(other) - now) / WIDTH_STEP
    wanted = max(1, round((width + (target - now) / slope) / WIDTH_STEP)) * WIDTH_STEP
    widths = {
        "model.decoder.feed_forward.multiple_of": None,
        "model.decoder.feed_forward.dim_multiplier": None,
        HIDDEN_DIM: wanted,
    }
    matched = resolver.plan(planned.arm, {**planned.extra, **widths})
    rest = count(matched) / target - 1
    words = (
        f"feed-forward {wanted} wide instead of {width}: {count(matched):,} {unit} against "
        f"{target:,} ({rest:+.2%})"
    )
    return dataclasses.replace(matched, matched=words)


def with_width(decoder: DecoderConfig, width: int) -> DecoderConfig:
    """The same decoder with a feed-forward of this hidden width."""
    feed_forward = dataclasses.replace(
        decoder.feed_forward, hidden_dim=width, multiple_of=None, dim_multiplier=None
    )
    return dataclasses.replace(decoder, feed_forward=feed_forward)


def match_time(
    resolver: Resolver, planned: PlannedArm, base: PlannedArm, times: Mapping[str, float]
) -> PlannedArm:
    """As many steps as take the base's time, by the timing at the study's first start."""
    here, there = times[planned.arm.name], times[base.arm.name]
    if not here or not there:  # one could not be timed, nor can it be trained: its runs will tell
        return planned
    steps = max(1, round(base.steps * there / here))
    if steps == planned.steps:
        return planned
    matched = resolver.plan(planned.arm, {**planned.extra, "trainer.max_steps": steps})
    rest = steps * here / (base.steps * there) - 1
    words = (
        f"{steps:,} steps of {1e3 * here:.1f} ms instead of {base.steps:,} of the base's "
        f"{1e3 * there:.1f} ms ({rest:+.2%} of its time)"
    )
    return dataclasses.replace(matched, matched=words)


MATCHES: dict[
    Match,
    Callable[[Resolver, PlannedArm, PlannedArm, Mapping[str, float]], PlannedArm],
] = {
    "none": match_none,
    "parameters": match_parameters,
    "flops": match_flops,
    "time": match_time,
}
