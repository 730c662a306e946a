"""The loss over a whole text, summed over batches and processes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torchmetrics import Metric

from llama_lab.model.devices import holds_float64


class TokenLoss(Metric):
    """Loss over a whole text: sums, divided once, whatever the batch size or the processes.

    The loss is summed in float64: on the device that scores, or where that has no such numbers, on
    the CPU. A batch of a validation then waits for its device, and no step of the training does.
    """

    full_state_update = False
    loss: torch.Tensor
    targets: torch.Tensor
    bytes: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("loss", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("targets", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("bytes", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, loss: torch.Tensor, targets: torch.Tensor, n_bytes: torch.Tensor) -> None:
        """Add a batch: summed loss in nats, number of targets, UTF-8 bytes of the targets."""
        # To the device of the sums first: the other one may have no float64 to convert to.
        self.loss += loss.to(self.loss.device).to(self.loss.dtype)
        self.targets += targets.to(self.targets)
        self.bytes += n_bytes.to(self.bytes)

    def _apply(self, fn: Callable[..., Any], exclude_state: Any = "") -> nn.Module:
        """Move with the model, to the CPU where its device cannot hold the sums, and keep types:
        a model in bfloat16 is scored as exactly."""
        target = fn(torch.empty(0, device=self.device)).device
        device = target if holds_float64(target) else torch.device("cpu")
        return super()._apply(lambda state: state.to(device), exclude_state)

    def compute(self) -> dict[str, float]:
        """loss (nats per token), perplexity, bits_per_byte, targets."""
        total, targets, n_bytes = self.loss.item(), self.targets.item(), self.bytes.item()
        loss = total / targets if targets else math.nan
        return {
            "loss": loss,
            "perplexity": math.exp(loss) if loss < 700 else math.inf,
            "bits_per_byte": total / math.log(2) / n_bytes if n_bytes else math.nan,
            "targets": targets,
        }
