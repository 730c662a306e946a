"""A learning-rate range test: a short training whose rate grows from step to step.

Source: Smith 2017, arXiv:1506.01186, section 3.3; with a rate that grows geometrically.

A curve is read only where its loss falls by more than its own noise: on a flat one, the steepest
place is the noise's. Each batch moves a loss anew, so that the noise is seen in the differences of
neighbours, whose mean square is twice its variance (von Neumann 1941).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser

from llama_lab.errors import UserError
from llama_lab.runs.callbacks import StepSeeds
from llama_lab.runs.command_line import LabCLI
from llama_lab.training.module import language_model
from llama_lab.training.steps import finished_step

SMOOTHING = 0.9
"""How much of its running mean each loss keeps."""
GONE = 1.5
"""Times the lowest running mean, behind which nothing more is to be seen."""

ENOUGH_STEPS = 100
"""In all trainings together, where their number is not given."""
CHANCE = 0.001
"""Probability with which a flat curve may pass for one that falls."""


@dataclass(frozen=True, kw_only=True)
class RangeTest:
    """The learning rates to try."""

    lr_min: float = 1e-5
    """Learning rate of the first step."""

    lr_max: float = 1.0
    """Learning rate of the last step; the test ends earlier if the loss diverges."""

    steps: int = 200
    """Number of optimiser steps from lr_min to lr_max; the rate grows by the same factor at each
    step."""

    repeats: int | None = None
    """Number of trainings whose losses are averaged, each with its own seed; null means as many as
    give 100 steps in total."""

    def __post_init__(self) -> None:
        if not 0 < self.lr_min < self.lr_max < math.inf:
            raise UserError(
                f"--lr_min {self.lr_min} and --lr_max {self.lr_max}: must be above 0, and the "
                "first below the second"
            )
        if self.steps < 20:
            raise UserError(f"--steps {self.steps}: must be 20 or more, to see a slope")
        if self.repeats is not None and self.repeats < 1:
            raise UserError(f"--repeats {self.repeats}: must be 1 or more, or null")

    @property
    def trainings(self) -> int:
        """How many there are: few steps put the lowest loss where chance does."""
        return self.repeats or math.ceil(ENOUGH_STEPS / self.steps)

    def rate(self, step: int) -> float:
        """Learning rate of a step, 0 for the first."""
        return self.lr_min * (self.lr_max / self.lr_min) ** (step / (self.steps - 1))


@dataclass(kw_only=True)
class RangeTrial:
    """What the test saw: a rate and a training loss (nats per token) for each step."""

    rates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    running: float = 0.0
    """Running mean of the losses: what is known while the test runs."""
    lowest_running: float = math.inf
    left: bool = False
    """Whether the loss has left for good: it is not finite, or far above where it was."""
    each: tuple[RangeTrial, ...] = ()
    """The trials that this one is the mean of, if any."""

    def add(self, rate: float, loss: float) -> None:
        """Take a step's loss."""
        if not math.isfinite(loss):
            self.left = True
            return
        self.rates.append(rate)
        self.losses.append(loss)
        self.running = SMOOTHING * (self.running or loss) + (1 - SMOOTHING) * loss
        self.lowest_running = min(self.lowest_running, self.running)
        self.left = self.running > GONE * self.lowest_running

    @cached_property
    def smoothed(self) -> list[float]:
        """Mean of the losses around each step, as many before as behind it; none is later for it,
        as in a running mean, where the loss falls."""
        n, most = len(self.losses), self.span
        return [
            fmean(self.losses[i - reach : i + reach + 1])
            for i in range(n)
            for reach in (min(most, i, n - 1 - i),)
        ]

    @property
    def span(self) -> int:
        """Steps on each side over which the losses are smoothed and their slope is taken."""
        return max(1, len(self.losses) // 20)

    @property
    def whole(self) -> range:
        """The steps with as many losses on each side as the mean takes."""
        return range(self.span, len(self.losses) - self.span)

    @property
    def _moves(self) -> list[float]:
        """From each loss to the next one, before the loss leaves."""
        end = max(self._lowest_step, 5 * self.span) + 1 if self.left else None
        return [b - a for a, b in pairwise(self.losses[:end])]

    @property
    def noise(self) -> float:
        """Standard deviation of a loss about the curve."""
        return math.sqrt(fmean(move**2 for move in self._moves) / 2) if self._moves else 0.0

    @property
    def fall(self) -> float:
        """From the first mean to the lowest one that shares no loss with it."""
        later = self.whole[2 * self.span + 1 :]
        smoothed = self.smoothed
        return smoothed[self.span] - min(smoothed[i] for i in later) if later else 0.0

    @property
    def fall_by_chance(self) -> float:
        """What noise alone makes of it, but for :data:`CHANCE`: one bound for all places together
        (Bonferroni), by Student's t, as the noise is an estimate: from n differences of neighbours
        it has about 2/3 n degrees of freedom."""
        from scipy import stats  # an extra, as the pages are

        places = max(1, len(self.whole) - 2 * self.span - 1)
        width = 2 * self.span + 1
        errors = stats.t.isf(CHANCE / places, df=max(1, len(self._moves) * 2 / 3))
        return float(errors) * self.noise * math.sqrt(2 / width)

    @property
    def falls(self) -> bool:
        """Whether the loss falls by more than noise: without it no rate is to be read."""
        return self.fall > self.fall_by_chance

    @property
    def rises(self) -> bool:
        """Whether the loss only leaves: the first rate is above all that the training bears."""
        return not self.falls and (
            self.left or self.losses[-1] - self.losses[0] > self.fall_by_chance
        )

    @property
    def lowest(self) -> float:
        """The rate at which the smoothed loss was lowest."""
        return self.rates[self._lowest_step]

    @property
    def _lowest_step(self) -> int:
        return min(self.whole, key=lambda i: self.smoothed[i], default=0)

    @property
    def steepest(self) -> float:
        """The rate, before that, at which the smoothed loss fell fastest per factor of the rate."""
        losses, span = self.smoothed, self.span
        falls = {losses[i - span] - losses[i + span]: i for i in range(span, self._lowest_step + 1)}
        return self.rates[falls[max(falls)]] if falls else self.lowest


def averaged(trials: Sequence[RangeTrial]) -> RangeTrial:
    """The mean of several trials, as far as all of them went."""
    length = min(len(trial.losses) for trial in trials)
    return RangeTrial(
        rates=trials[0].rates[:length],
        losses=[fmean(trial.losses[i] for trial in trials) for i in range(length)],
        left=any(trial.left for trial in trials),
        each=tuple(trials),
    )


class GrowingRate(Callback):
    """Sets the rate of every step, all groups in proportion, and ends where the loss has left."""

    def __init__(self, test: RangeTest, peak: float) -> None:
        self.test, self.peak, self.trial = test, peak, RangeTrial()

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """The rate of this step."""
        factor = self.test.rate(trainer.global_step) / self.peak
        peaks = trainer.lr_scheduler_configs[0].scheduler.base_lrs
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * factor

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Its loss, which the weights of before it gave."""
        pl_module = language_model(pl_module)
        if not finished_step(trainer, batch_idx):
            return
        loss, _ = pl_module.meter.read_synced()
        pl_module.meter.reset()
        self.trial.add(self.test.rate(trainer.global_step - 1), loss)
        trainer.should_stop = self.trial.left


class RangeCLI(LabCLI):
    """``fit``'s command line, for a training that leaves nothing behind."""

    def __init__(self, args: list[str], test: RangeTest, repeat: int = 0) -> None:
        self.test, self.repeat = test, repeat
        steps = f"{test.steps}"
        own = [f"--trainer.max_steps={steps}", f"--trainer.val_check_interval={steps}"]
        super().__init__("fit", [*args, *own])

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse; each repeat has the next seed."""
        super().parse_arguments(parser, args)
        self.config["seed_everything"] += self.repeat

    def run_callbacks(self) -> list[Any]:
        """Seeds as in a run, and the rate."""
        self.growing = GrowingRate(self.test, self.model.optimizer_config.lr)
        return [StepSeeds(int(self.config["seed_everything"])), self.growing]

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Without validation."""
        return super().instantiate_trainer(limit_val_batches=0, **kwargs)

    def trial(self) -> RangeTrial:
        """Carry the test out."""
        self._run(self.trainer.fit)
        return self.growing.trial


def train_all(args: list[str], test: RangeTest) -> tuple[list[RangeTrial], bool]:
    """The trials of all trainings, and whether this process is the one that reports.

    Args:
        args: Of ``fit``.
        test: The rates, and how many trainings.
    """
    trials, is_first = [], True
    for repeat in range(test.trainings):
        cli = RangeCLI(args, test, repeat)
        trials.append(cli.trial())
        is_first = cli.trainer.is_global_zero
    return trials, is_first
