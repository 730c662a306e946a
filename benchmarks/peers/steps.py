"""One training step, the same for every model, and turns of it that are timed side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .models import BUILDERS, KINDS, Shape, compiled

PRECISIONS: dict[str, torch.dtype | None] = {"float32": None, "bf16": torch.bfloat16}
LEARNING_RATE, WEIGHT_DECAY, BETAS, CLIP = 1e-3, 0.1, (0.9, 0.95), 1.0


@dataclass(frozen=True)
class Way:
    """How a model runs."""

    precision: str
    kind: str

    def __str__(self) -> str:
        return f"{self.precision} {self.kind}"


WAYS = [Way(precision, kind) for precision in PRECISIONS for kind in KINDS]


Batch = tuple[Tensor, Tensor]
"""Tokens and targets, ``[B, T]`` each."""


class Training:
    """A model and its optimiser, a step at a time: forward, loss, backward, clip, AdamW.

    bf16 is torch's autocast over float32 weights.

    Args:
        name: Of the model.
        shape: Of a step.
        way: How it runs.
        device: Where.
        parts: Microbatches that a step is taken in.
        compiling: Makes the model that runs of the plain one; :func:`compiled` by default.
    """

    def __init__(
        self,
        name: str,
        shape: Shape,
        way: Way,
        device: str = "cpu",
        *,
        parts: int = 1,
        compiling: Callable[[nn.Module], nn.Module] | None = None,
    ) -> None:
        torch.manual_seed(0)
        with torch.device(device):
            self.plain: nn.Module = BUILDERS[name](shape)
        self.plain.to(device)
        self.model = compiling(self.plain) if compiling else compiled(self.plain, way.kind)
        self.dtype, self.device, self.parts = PRECISIONS[way.precision], device, parts
        self.parameters = list(self.plain.parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in self.parameters if p.ndim >= 2]},
                {"params": [p for p in self.parameters if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            betas=BETAS,
            fused=True,
        )

    def step(self, batch: Batch) -> Tensor:
        """Train on a batch; its loss."""
        self.optimizer.zero_grad(set_to_none=True)
        for part in zip(*(half.chunk(self.parts) for half in batch), strict=True):
            with torch.autocast(self.device, self.dtype, enabled=self.dtype is not None):
                loss = self.model(*part)
            (loss / self.parts).backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, CLIP, foreach=True)
        self.optimizer.step()
        return loss.detach()


def clock(device: str) -> Callable[[], float]:
    """Seconds: of this process where one CPU thread works, which others hardly disturb."""
    if device == "cuda":

        def synchronised() -> float:
            torch.cuda.synchronize()
            return time.perf_counter()

        return synchronised
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def turn(training: Training, batches: Sequence[Batch]) -> float:
    """Seconds a step."""
    now = clock(training.device)
    began = now()
    for batch in batches:
        training.step(batch)
    return (now() - began) / len(batches)


def take_turns(
    trainings: Mapping[str, Training], batches: Sequence[Batch], turns: int
) -> dict[str, list[float]]:
    """Seconds a step of each, turn by turn; who begins changes."""
    names = list(trainings)
    times: dict[str, list[float]] = {name: [] for name in names}
    for i in range(turns):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            times[name].append(turn(trainings[name], batches))
    return times


@dataclass(frozen=True)
class Ratio:
    """One candidate's time over another's, turn by turn."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, times: Sequence[float], others: Sequence[float]) -> Ratio:
        """From turns that were taken side by side."""
        ratios = [a / b for a, b in zip(times, others, strict=True)]
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"
