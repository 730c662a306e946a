"""The learning rate at each optimiser step, as a fraction of its peak."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from llama_lab.model.settings import refuse_idle, require

ScheduleKind = Literal["cosine", "linear", "wsd", "constant"]

MIN_LR_RATIO = 0.1
DECAY_FRACTION = 0.2


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The schedule of the learning rate, in optimiser steps."""

    kind: ScheduleKind = "cosine"
    """The learning rate after the warmup: cosine (half a cosine down to min_lr_ratio), linear (a
    straight line down to it), wsd (warmup, stable, decay: the peak, then a straight line down over
    the last decay_fraction of the run) or constant (the peak until the end)."""

    warmup_steps: int = 100
    """Number of optimiser steps over which the learning rate rises linearly to its peak."""

    min_lr_ratio: float | None = None
    """Learning rate at the end of the run, as a fraction of the peak; null means 0.1. Refused with
    constant."""

    decay_fraction: float | None = None
    """Fraction of the run's steps over which wsd decays; null means 0.2. Refused with the other
    kinds."""

    def __post_init__(self) -> None:
        flag = "model.schedule"
        require(
            self.warmup_steps >= 0,
            f"--{flag}.warmup_steps {self.warmup_steps}: must be 0 (no warmup) or more",
        )
        if self.kind == "constant":
            because = "schedule.kind constant stays at the peak"
            refuse_idle(f"{flag}.min_lr_ratio", self.min_lr_ratio, because=because)
        if self.kind != "wsd":
            because = f"schedule.kind {self.kind} decays from the end of the warmup, or not at all"
            refuse_idle(f"{flag}.decay_fraction", self.decay_fraction, because=because)
        require(
            0 <= self.floor <= 1,
            f"--{flag}.min_lr_ratio {self.min_lr_ratio}: must be in [0, 1]; 0.1 is usual",
        )
        require(
            0 < self.decay_share <= 1,
            f"--{flag}.decay_fraction {self.decay_fraction}: must be in (0, 1]; 0.2 is usual",
        )

    @property
    def floor(self) -> float:
        """``min_lr_ratio``, with the default resolved."""
        return MIN_LR_RATIO if self.min_lr_ratio is None else self.min_lr_ratio

    @property
    def decay_share(self) -> float:
        """``decay_fraction``, with the default resolved."""
        return DECAY_FRACTION if self.decay_fraction is None else self.decay_fraction


Shape = Callable[[float], float]
"""From the progress of the decay, 0 to 1, to what is left of it, 1 to 0."""


def cosine(progress: float) -> float:
    """Half a cosine (SGDR, Loshchilov & Hutter 2017, arXiv:1608.03983)."""
    return 0.5 * (1 + math.cos(math.pi * progress))


def linear(progress: float) -> float:
    """A straight line (as in Devlin et al. 2019, arXiv:1810.04805)."""
    return 1 - progress


def constant(progress: float) -> float:
    """No decay at all."""
    return 1.0


# wsd is a line that begins late (Hu et al. 2024, arXiv:2404.06395; the line, Hägele et al. 2024,
# arXiv:2405.18392).
SCHEDULES: dict[ScheduleKind, Shape] = {
    "cosine": cosine,
    "linear": linear,
    "wsd": linear,
    "constant": constant,
}


def lr_factor(config: ScheduleConfig, max_steps: int) -> Callable[[int], float]:
    """The learning rate of optimiser step ``s`` (0 for the first), as a fraction of the peak.

    Warmup gives ``(s + 1) / warmup_steps``; then the schedule's shape falls from 1 to
    ``min_lr_ratio``, which the step after the last would reach. A warmup longer than the run is
    cut off by its end, and one that reaches into wsd's decay shortens that.
    """
    shape, warmup = SCHEDULES[config.kind], config.warmup_steps
    stable = max_steps - round(config.decay_share * max_steps) if config.kind == "wsd" else 0
    begin = max(warmup, stable)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        progress = max(0, step - begin) / max(1, max_steps - begin)
        return config.floor + (1 - config.floor) * shape(min(progress, 1.0))

    return factor
