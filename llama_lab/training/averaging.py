"""Averages of a run's weights: what is validated and saved in the place of the last ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from llama_lab.model.settings import refuse_idle, require
from llama_lab.training.processes import require_whole_weights

AveragingKind = Literal["none", "ema", "tail"]
DECAY = 0.999


@dataclass(frozen=True, kw_only=True)
class AveragingConfig:
    """Which average of its weights a run validates and saves; training goes on from the last."""

    kind: AveragingKind = "none"
    """none, ema (exponential moving average; Polyak & Juditsky 1992 gave the reason) or tail (the
    mean of all from start_step on: Izmailov et al. 2018, arXiv:1803.05407). An average takes the
    memory of the weights once more."""

    decay: float | None = None
    """How much of the average each step keeps, for ema; null means 0.999. Refused with others."""

    start_step: int | None = None
    """Optimiser step whose weights are the first in the average; until then the weights stand for
    themselves. Null means 1, the first. Refused with none."""

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
            self.first_step >= 1,
            f"--{flag}.start_step {self.start_step}: must be 1 (the first step) or more",
        )

    @property
    def rate(self) -> float:
        """``decay``, with the default resolved."""
        return DECAY if self.decay is None else self.decay

    @property
    def first_step(self) -> int:
        """``start_step``, with the default resolved."""
        return 1 if self.start_step is None else self.start_step


AVERAGES: dict[AveragingKind, Callable[[AveragingConfig], Callable[..., None]]] = {
    "ema": lambda config: get_ema_multi_avg_fn(config.rate),
    "tail": lambda config: get_swa_multi_avg_fn(),
}


class AveragedWeights(WeightAveraging):
    """Keeps the average; puts it in the model's place while the model is looked at.

    Lightning's own callback puts it there for the validation loss alone: here the text that is
    sampled after a validation comes from the average as well. And its average, before it starts, is
    the weights that the run began with; here it is those of the moment. And it is made before the
    module has been moved to its device, so that each step would copy all weights to the CPU.
    """

    def __init__(self, config: AveragingConfig) -> None:
        super().__init__(use_buffers=False, multi_avg_fn=AVERAGES[config.kind](config))
        self.config, self.first_step = config, config.first_step

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
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if trainer.global_step < self.first_step:
            assert self._average_model is not None
            # An average of none: the next weights replace it.
            self._average_model.n_averaged.zero_()

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the average in place: what follows looks at it still."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the model its own weights back."""
        if self._average_model is not None:
            self._swap_models(pl_module)
