"""Checks that a run can go on: its loss and its weights are finite."""

from __future__ import annotations

import torch
from torch import nn

from llama_lab.errors import Diverged
from llama_lab.parallel.tensors import all_finite
from llama_lab.training.state import LossMeter, RunState


def check_finite(
    network: nn.Module,
    meter: LossMeter,
    run: RunState,
    step: int,
    *,
    grad_norm: torch.Tensor | None = None,
    clips: bool = False,
) -> None:
    """Stop a run whose loss or weights are not finite after optimiser step ``step``.

    Args:
        network: Whose weights are looked at.
        meter: Its losses.
        run: The run.
        step: Finished optimiser steps.
        grad_norm: Norm of the last gradients that was read.
        clips: Whether gradients are clipped.

    Raises:
        Diverged: It names the step and the last good checkpoint.
    """
    bad = meter.first_bad_step()
    if bad is not None:
        raise diverged("the training loss", run, bad, clips=clips)
    if not all_finite(network.parameters()):
        if grad_norm is not None and not bool(torch.isfinite(grad_norm)):
            what = "the training loss is finite, but a gradient"
            raise diverged(what, run, step, advice=GRADIENT_ADVICE)
        raise diverged("a weight", run, step, clips=clips)


# No clipping helps: a norm that is not finite makes every clipped gradient so.
GRADIENT_ADVICE = (
    "lower --model.optimizer.lr, or go on from that checkpoint with --trainer.precision 32-true; "
    "--trainer.detect_anomaly true names the operation that it came from"
)


def diverged(
    what: str, run: RunState, step: int, *, clips: bool = False, advice: str | None = None
) -> Diverged:
    """The message for a run that left the finite numbers."""
    good = (
        f"the last good checkpoint is {run.saved}"
        if run.saved
        else "no checkpoint was written before"
    )
    if advice is None:
        advice = "lower --model.optimizer.lr" + (
            " or lengthen --model.schedule.warmup_steps"
            if clips
            else ", lengthen --model.schedule.warmup_steps, or set --trainer.gradient_clip_val 1.0"
        )
    return Diverged(f"{what} is not finite at step {step}; {good}; {advice}")
