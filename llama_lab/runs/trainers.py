"""Lightning's trainer, built as a run needs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Trainer

from llama_lab.errors import UserError
from llama_lab.parallel.watching import watched
from llama_lab.runs import automatic, machine, rules
from llama_lab.training.precision import resolve_precision


def build_trainer(
    build: Callable[..., Trainer],
    *,
    precision: object,
    timeout: int = machine.TIMEOUT,
    **settings: Any,
) -> Trainer:
    """Lightning's trainer, whose processes wait ``timeout`` seconds for each other; what it refuses
    is told in one line."""
    # Lightning appends what packages bring to the very list that it is given.
    own = list(settings["callbacks"])
    try:
        trainer = build(**settings)
    except (MisconfigurationException, ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"--trainer: {reason}") from error
    automatic.take_over(trainer)
    machine.set_timeout(trainer.strategy, timeout)
    watched(trainer)
    for name in automatic.leave_out_foreign_callbacks(trainer, own):
        print(f"callback {name}: an installed package brought it, left out", file=sys.stderr)
    if trainer.strategy.root_device.type == "cpu" and precision in rules.HALF_PRECISIONS:
        raise UserError(
            f"--trainer.precision {precision}: half precision needs a GPU (Lightning would take "
            "another without asking); set bf16-mixed or 32-true"
        )
    resolve_precision(trainer)
    return trainer
