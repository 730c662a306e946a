"""State of a run: it is saved in checkpoints and ends in the receipt."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from llama_lab.data.batches import OrderDigest
from llama_lab.inspect.accounting import part_of
from llama_lab.model.devices import holds_float64
from llama_lab.parallel.tensors import whole


@dataclass
class RunState:
    """Counters of one run, over all its resumes.

    Attributes:
        folder: ``logs/<name>/<run>``; None until the run has one.
        saved: The checkpoint written, or resumed from, last.
        sequences: Sequences consumed by finished optimiser steps, over all devices.
        order: Digest of (sequence, window) pairs that this process consumed since it started.
        order_before: The same, of all processes, up to the checkpoint this one resumed from.
        seconds_before: Wall time up to that checkpoint.
        compiled_steps: Finished optimiser steps whose blocks ran compiled.
        best_loss: Lowest validation loss, nats per token.
        initial_weights: SHA-256 of each part's weights before the first step.
        weights_fault: The mistake that the weights of ``model.init_from`` were trained with.
        validations: (step, train loss, validation loss) of each validation, in order.
        ended_early: Which callback ended the run before its budget (``by``), and ``why``.
        branched_from: The checkpoint of another run that this one goes on from, with its step.
    """

    folder: Path | None = None
    saved: Path | None = None
    sequences: int = 0
    order: OrderDigest = field(default_factory=OrderDigest)
    order_before: OrderDigest = field(default_factory=OrderDigest)
    seconds_before: float = 0.0
    started: float = field(default_factory=time.monotonic)
    compiled_steps: int = 0
    best_loss: float = math.inf
    best_step: int = 0
    initial_weights: dict[str, str] = field(default_factory=dict)
    weights_fault: str | None = None
    store_digest: str = ""
    validations: list[tuple[int, float, float]] = field(default_factory=list)
    ended_early: dict[str, str] | None = None
    branched_from: dict[str, Any] | None = None

    @property
    def seconds(self) -> float:
        """Wall time of the run, over all its resumes."""
        return self.seconds_before + time.monotonic() - self.started

    def total_order(self) -> OrderDigest:
        """The order digest over all processes; every process must ask at the same time."""
        lanes: list[Any] = [self.order.lanes]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            lanes = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(lanes, self.order.lanes)
        total = OrderDigest(*self.order_before.lanes)
        for pair in lanes:
            total.merge(OrderDigest(*pair))
        return total

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint; every process must ask at the same time."""
        return {
            "sequences": self.sequences,
            "order": list(self.total_order().lanes),
            "seconds": self.seconds,
            "compiled_steps": self.compiled_steps,
            "best_loss": self.best_loss,
            "best_step": self.best_step,
            "initial_weights": dict(self.initial_weights),
            "store_digest": self.store_digest,
            "validations": [list(row) for row in self.validations],
            "ended_early": self.ended_early,
            "branched_from": self.branched_from,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint's :meth:`state`."""
        self.sequences = state["sequences"]
        self.order = OrderDigest()
        self.order_before = OrderDigest(*state["order"])
        self.seconds_before = state["seconds"]
        self.started = time.monotonic()
        self.compiled_steps = state.get("compiled_steps", 0)  # files of before have none
        self.best_loss, self.best_step = state["best_loss"], state["best_step"]
        self.initial_weights = dict(state["initial_weights"])
        self.store_digest = state["store_digest"]
        self.branched_from = state.get("branched_from")
        self.validations = [(int(s), float(a), float(b)) for s, a, b in state["validations"]]


def hash_parts(module: nn.Module) -> dict[str, str]:
    """SHA-256 over the logical tensors of each part: name, shape and float32 bytes, by name.

    Divided tensors are gathered: every process must ask at the same time.
    """
    hashes: dict[str, Any] = {}
    for name, tensor in sorted(module.named_parameters()):
        digest = hashes.setdefault(part_of(name), hashlib.sha256())
        digest.update(f"{name} {list(tensor.shape)} ".encode())
        digest.update(whole(tensor.detach()).cpu().float().contiguous().numpy().tobytes())
    return {part: digest.hexdigest() for part, digest in hashes.items()}


class LossMeter:
    """Training loss between two reads, kept on the device: no step waits for it.

    It is summed in float64. Where the device has no such numbers, losses are kept as they are until
    they are read, and summed on the CPU. The first step whose loss was not finite is remembered.
    """

    LONGEST_WAIT = 256
    """Losses that are kept at most: one step in so many does wait there."""

    def __init__(self) -> None:
        self.total: torch.Tensor | None = None
        self.count = 0
        self.unsummed: list[torch.Tensor] = []
        self.bad_step: torch.Tensor | None = None
        self._restored = 0.0

    def add(self, loss: torch.Tensor, step: int) -> None:
        """Count one microbatch's mean loss, of the optimiser step ``step`` (1 for the first)."""
        if self.total is None or self.bad_step is None:
            summed_on = loss.device if holds_float64(loss.device) else torch.device("cpu")
            self.total = torch.tensor(self._restored, dtype=torch.float64, device=summed_on)
            self.bad_step = torch.full((), -1, dtype=torch.int64, device=loss.device)
        loss = loss.detach()
        if self.total.device == loss.device:
            self.total += loss
        else:
            self.unsummed.append(loss)
            if len(self.unsummed) == self.LONGEST_WAIT:
                self._sum_up()
        self.count += 1
        self.bad_step = torch.where(
            (self.bad_step < 0) & ~torch.isfinite(loss), step, self.bad_step
        )

    def _sum_up(self) -> None:
        if self.total is not None and self.unsummed:
            for loss in torch.stack(self.unsummed).tolist():
                self.total += loss
            self.unsummed = []

    def first_bad_step(self) -> int | None:
        """The first step with a non-finite loss; synchronises."""
        step = -1 if self.bad_step is None else int(self.bad_step.item())
        return None if step < 0 else step

    def read_synced(self) -> tuple[float, bool]:
        """Mean loss over the interval and all processes, and whether one was not finite.

        Every process must ask at the same time; synchronises.
        """
        total, count = self.state()
        mean = total / count if count else math.nan
        return mean, not math.isfinite(total)

    def state(self) -> list[float]:
        """Sum, averaged over processes, and number of the losses since the last read.

        Every process must ask at the same time; synchronises.
        """
        if self.total is None:
            return [self._restored, float(self.count)]
        self._sum_up()
        total = self.total.clone()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(total)
            total /= torch.distributed.get_world_size()
        return [float(total.item()), float(self.count)]

    def restore(self, state: Sequence[float]) -> None:
        """Continue an interval from a checkpoint's :meth:`state`."""
        self._restored, self.count = state[0], int(state[1])

    def reset(self) -> None:
        """Begin the next interval."""
        if self.total is not None:
            self.total.zero_()
        self.unsummed, self.count = [], 0
