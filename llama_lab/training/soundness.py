"""Whether a run is still worth going on with: its loss and its weights are finite."""

from __future__ import annotations

import torch
from torch import nn

from llama_lab.errors import Diverged
from llama_lab.training.state import LossMeter, RunState


def check_finite(network: nn.Module, meter: LossMeter, run: RunState, step: int) -> None:
    """Stop a run whose loss or weights are not finite after optimiser step ``step``.

    Raises:
        Diverged: It names the step and the last good checkpoint.
    """
    bad = meter.first_bad_step()
    if bad is not None:
        raise diverged("the training loss", run, bad)
    norms = torch._foreach_norm([p.detach() for p in network.parameters()], torch.inf)
    if not bool(torch.isfinite(torch.stack(norms)).all()):
        raise diverged("a weight", run, step)


def diverged(what: str, run: RunState, step: int) -> Diverged:
    """The message for a run that left the finite numbers."""
    good = (
        f"the last good checkpoint is {run.saved}"
        if run.saved
        else "no checkpoint was written before"
    )
    return Diverged(
        f"{what} is not finite at step {step}; {good}; lower --model.optimizer.lr, lengthen "
        "--model.schedule.warmup_steps, or set --trainer.gradient_clip_val 1.0"
    )
