"""Whether a run is still worth going on with: its loss and its weights are finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from llama_lab.errors import RunError

if TYPE_CHECKING:
    from llama_lab.training.module import LanguageModel


def check_finite(module: LanguageModel, step: int) -> None:
    """Stop a run whose loss or weights are not finite after optimiser step ``step``.

    Raises:
        RunError: It names the step and the last good checkpoint.
    """
    bad = module.meter.first_bad_step()
    if bad is not None:
        raise diverged(module, bad, "the training loss")
    norms = torch._foreach_norm([p.detach() for p in module.network.parameters()], torch.inf)
    if not bool(torch.isfinite(torch.stack(norms)).all()):
        raise diverged(module, step, "a weight")


def diverged(module: LanguageModel, step: int, what: str) -> RunError:
    """The message for a run that left the finite numbers."""
    saved = module.run.saved
    good = f"the last good checkpoint is {saved}" if saved else "no checkpoint was written before"
    return RunError(
        f"{what} is not finite at step {step}; {good}; lower --model.optimizer.lr, lengthen "
        "--model.schedule.warmup_steps, or set --trainer.gradient_clip_val 1.0"
    )
