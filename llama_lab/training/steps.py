"""Counting in optimiser steps; Lightning counts microbatches."""

from __future__ import annotations

from lightning.pytorch import Trainer


def finished_step(trainer: Trainer, batch_idx: int) -> bool:
    """Whether the microbatch that just ended completed an optimiser step."""
    return (batch_idx + 1) % trainer.accumulate_grad_batches == 0


def logged_step(trainer: Trainer, step: int) -> bool:
    """Whether optimiser step ``step`` ends a log interval."""
    return step % trainer.log_every_n_steps == 0  # type: ignore[attr-defined]


def validation_due(trainer: Trainer, step: int) -> bool:
    """Whether Lightning validates after optimiser step ``step``, or the run ends with it."""
    assert trainer.val_check_batch is not None
    interval = int(trainer.val_check_batch) // trainer.accumulate_grad_batches
    return step % interval == 0 or step == trainer.max_steps or trainer.should_stop
