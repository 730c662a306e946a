"""A run that leaves the finite numbers says where, and gives advice that is not followed yet."""

from __future__ import annotations

import math
from typing import Any

import pytest
from lightning.pytorch import Callback, LightningModule, Trainer

from tests.runs.conftest import Lab, flags


class NotANumber(Callback):
    """Makes one gradient NaN, as an overflow within a backward pass does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.global_step + 1 == self.step:
            gradient: Any = next(pl_module.parameters()).grad
            gradient.view(-1)[0] = math.nan


@pytest.mark.parametrize("clip", [1.0, None])
def test_advice_for_a_gradient_that_is_not_finite_under_a_finite_loss_is_not_to_clip(
    lab: Lab, clip: float | None
) -> None:
    # At a step that saves: the weights are looked at before they are written.
    broken = f"{{class_path: {__name__}.NotANumber, init_args: {{step: 4}}}}"
    settings = {"trainer__gradient_clip_val": clip, "checkpoint_every": 4}
    outcome = lab("fit", *flags(**settings, trainer__callbacks=broken))
    assert outcome.code == 1
    assert "the training loss is finite, but a gradient is not finite at step 4" in outcome.err
    assert "gradient_clip_val" not in outcome.err
    assert "--trainer.precision 32-true" in outcome.err
    assert "--trainer.detect_anomaly true" in outcome.err
    assert math.isfinite(float(lab.metrics()[-1]["train_loss"]))


def test_advice_for_a_loss_that_is_not_finite_leaves_out_the_clipping_that_is_on(lab: Lab) -> None:
    settings = {"model__optimizer__lr": 1e30, "model__schedule__warmup_steps": 1}
    clipped, free = (
        lab("fit", *flags(**settings, trainer__gradient_clip_val=clip)) for clip in (1.0, None)
    )
    assert clipped.code == free.code == 1
    assert "--model.optimizer.lr" in clipped.err
    assert "gradient_clip_val" not in clipped.err
    assert "--trainer.gradient_clip_val 1.0" in free.err
