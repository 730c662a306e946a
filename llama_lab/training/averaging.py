"""Averages of a run's weights, which are validated and saved instead of the last weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor
from torch.optim.swa_utils import get_swa_multi_avg_fn

from llama_lab.model.settings import refuse_idle, require
from llama_lab.training.processes import require_whole_weights

AveragingKind = Literal["none", "ema", "tail"]
DECAY = 0.999
TAIL_STARTS_AT = 0.75


@dataclass(frozen=True, kw_only=True)
class AveragingConfig:
    """The average of the weights that a run validates and saves; training itself continues from the
    last weights.
    """

    kind: AveragingKind = "none"
    """none, ema (exponential moving average: Polyak & Juditsky 1992) or tail (the mean of all
    weights from start_step on: Izmailov et al. 2018, arXiv:1803.05407). An average needs the memory
    of the weights a second time."""

    decay: float | None = None
    """Fraction of the average that a step keeps in the long run, for ema; null means 0.999. Step t
    keeps min(decay, (1 + t)/(10 + t)), as TensorFlow's ExponentialMovingAverage with num_updates
    does: with the decay alone, the first weights would stay in the average for about 1/(1 - decay)
    steps. Refused with the other kinds."""

    start_step: int | None = None
    """First optimiser step whose weights are averaged; until then the weights themselves are
    validated and saved. Null means the first step for ema, and the first step of the run's last
    quarter for tail (Izmailov et al. begin at 75 % of the budget). Refused with none."""

    def __post_init__(self) -> None:
        flag = "model.averaging"
        because = f"averaging.kind {self.kind} has no such choice"
        if self.kind != "ema":
            refuse_idle(f"{flag}.decay", self.decay, because=because)
        if self.kind == "none":
            refuse_idle(f"{flag}.start_step", self.start_step, because=because)
        require(
            0 < self.rate < 1, f"--{flag}.decay {self.decay}: must be in (0, 1); 0.999 is usual"
        )
        require(
            self.start_step is None or self.start_step >= 1,
            f"--{flag}.start_step {self.start_step}: must be 1 (the first step) or more",
        )

    @property
    def rate(self) -> float:
        """``decay``, with the default resolved."""
        return DECAY if self.decay is None else self.decay

    def first_step(self, max_steps: int) -> int:
        """``start_step``, with the default resolved for a run of ``max_steps``."""
        if self.start_step is not None:
            return self.start_step
        return 1 if self.kind == "ema" else 1 + int(TAIL_STARTS_AT * max_steps)


def ema_decay(decay: float, step: int) -> float:
    """How much of an exponential average its ``step``-th update keeps, 1 for the first after the
    weights that it began with."""
    return min(decay, (1 + step) / (10 + step))


def averaged_steps(config: AveragingConfig, max_steps: int) -> int:
    """Over about how many steps the average reaches at the end of a run of ``max_steps``.

    For ema the time constant 1/(1 - decay) of the decay then in force.
    """
    there = max_steps - config.first_step(max_steps) + 1
    if config.kind == "tail":
        return there
    return min(there, round(1 / (1 - ema_decay(config.rate, there - 1))))


class AveragedWeights(WeightAveraging):
    """Keeps the average; puts it in the model's place while the model is looked at.

    Lightning's own callback puts it there for the validation loss alone: here the text that is
    sampled after a validation comes from the average as well. And its average, before it starts, is
    the weights that the run began with; here it is those of the moment. And it is made before the
    module has been moved to its device, so that each step would copy all weights to the CPU.
    """

    def __init__(self, config: AveragingConfig) -> None:
        average = self._towards if config.kind == "ema" else get_swa_multi_avg_fn()
        super().__init__(use_buffers=False, multi_avg_fn=average)
        self.config, self.updates = config, 0

    @torch.no_grad()
    def _towards(self, average: list[Tensor], weights: list[Tensor], n_averaged: Any) -> None:
        """Move an exponential average by one step."""
        kept = ema_decay(self.config.rate, self.updates)
        torch._foreach_lerp_(average, weights, 1 - kept)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Make room for the average, on the device that trains."""
        kind = f"--model.averaging.kind {self.config.kind}"
        require_whole_weights(trainer.strategy, kind, "--model.averaging.kind none")
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take up the weights of a finished step."""
        first = self.config.first_step(trainer.max_steps)
        # Counted by the run's own clock: a resumed run goes on with it, and no device is asked.
        self.updates = trainer.global_step - first
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if trainer.global_step < first:
            assert self._average_model is not None
            # An average of none: the next weights replace it.
            self._average_model.n_averaged.zero_()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the average in place: what follows looks at it still."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the model its own weights back."""
        if self._average_model is not None:
            self._swap_models(pl_module)
