"""Training steps of ``fit`` itself, timed: its own Trainer, callbacks, loggers and data."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.profilers import Profiler

from llama_lab.bench.limits import PHASES, Phase
from llama_lab.errors import UserError
from llama_lab.inspect.peak_memory import PeakMemory
from llama_lab.model.devices import answers_at_once, device_function, synchronise
from llama_lab.runs.command_line import LabCLI
from llama_lab.runs.receipts import Receipt
from llama_lab.runs.run_progress import RunProgress
from llama_lab.runs.stopping import StopSignals
from llama_lab.training.steps import finished_step

WARM_UP = 3
SECONDS = 6.0
"""That the timed steps take, about; a step that takes longer is timed all the same."""
PROFILE_SECONDS = 2.0
SLOW_STEP = 10.0
"""Seconds from which on the first step is the only one."""
MOST_STEPS = 500
NEVER = 10**9

# The loop announces what it does under `[owner]class.action`.
PHASE_OF: dict[str, Phase] = {
    "train_dataloader_next": "data",
    "batch_to_device": "data",
    "training_step": "forward",
    "backward": "backward",
    "optimizer_step": "optimizer",
}


class PhaseClock(Profiler):
    """Seconds in each phase; a phase within another one counts for itself alone.

    ``optimizer_step`` surrounds forward and backward: what remains of it is clipping, the update
    and the clearing of gradients. What is in no phase is ``other``. So all phases sum to the time
    since :meth:`restart`.

    Attributes:
        waits: Whether a border of a phase waits for the device, which otherwise lags behind.
    """

    def __init__(self) -> None:
        super().__init__()
        self.device, self.waits = torch.device("cpu"), False
        self.restart()

    def restart(self) -> None:
        """Count from now on, in no phase."""
        self.seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self.within: list[Phase] = []
        self.mark = time.perf_counter()

    def start(self, action_name: str) -> None:
        """Enter a phase."""
        if phase := PHASE_OF.get(action_name.rpartition(".")[2]):
            self.turn_over()
            self.within.append(phase)

    def stop(self, action_name: str) -> None:
        """Leave it."""
        if action_name.rpartition(".")[2] in PHASE_OF:
            self.turn_over()
            self.within.pop()

    def turn_over(self) -> None:
        """Give the time since the last border to the phase that it was spent in."""
        if self.waits:
            synchronise(self.device)
        now = time.perf_counter()
        self.seconds[self.within[-1] if self.within else "other"] += now - self.mark
        self.mark = now


class Turn(NamedTuple):
    """Consecutive optimiser steps."""

    seconds: list[float]
    """Of each, in which the device computed it."""
    phases: dict[Phase, float]
    """Seconds in each phase, of all."""


class Measured(Exception):
    """There is nothing more to time: how a run of the bench ends."""


class StepWatch(Callback):
    """Times steps once the first ones have warmed up, and then ends the run.

    Attributes:
        timed: Steps in which nothing waits for the device that would not in ``fit``.
        profiled: Those whose phases count; on the CPU, where no border waits, the same.
        peak_bytes: The run's, up to its last step.
    """

    def __init__(self, clock: PhaseClock) -> None:
        self.clock = clock
        self.timed = self.profiled = Turn([], {})
        self.memory = PeakMemory()
        self.peak_bytes: int | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin with the first step."""
        self.device = self.clock.device = trainer.strategy.root_device
        self.course = self.run(trainer)
        next(self.course)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Go on, a step at a time."""
        if not finished_step(trainer, batch_idx):
            return
        if next(self.course, "over") == "over":
            self.peak_bytes = self.memory.read(self.device)
            raise Measured

    def run(self, trainer: Trainer) -> Generator[None, None, None]:
        """All that is timed, one after the other; goes on at each step's end."""
        turn = yield from self.steps(1)
        if turn.seconds[0] < SLOW_STEP:
            for _ in range(min(WARM_UP, left(trainer)) - 1):
                turn = yield from self.steps(1)
        self.timed = self.profiled = turn
        lags, step = not answers_at_once(self.device), turn.seconds[0]
        if step >= SLOW_STEP:
            return
        if n := how_many(trainer, step, SECONDS):
            self.timed = self.profiled = yield from self.steps(n, waits=False)
        if lags and (n := how_many(trainer, step, PROFILE_SECONDS)):
            self.profiled = yield from self.steps(n)

    def steps(self, n: int, *, waits: bool = True) -> Generator[None, None, Turn]:
        """Time ``n`` steps; ``waits``: at every border of a phase, on a device that lags."""
        synchronise(self.device)
        self.clock.waits = waits and not answers_at_once(self.device)
        self.clock.restart()
        moments = [moment(self.device)]
        for _ in range(n):
            yield
            moments.append(moment(self.device))
        synchronise(self.device)
        self.clock.turn_over()
        return Turn([apart(a, b) for a, b in pairwise(moments)], self.clock.seconds)


def moment(device: torch.device) -> Any:
    """Now, as the device has it: an event, which nothing waits for, where there are such."""
    make_event = None if answers_at_once(device) else device_function(device, "Event")
    if make_event is None:
        synchronise(device)
        return time.perf_counter()
    event = make_event(enable_timing=True)
    event.record()
    return event


def apart(a: Any, b: Any) -> float:
    """Seconds between two moments, both past."""
    return b - a if isinstance(a, float) else a.elapsed_time(b) / 1e3


def left(trainer: Trainer) -> int:
    """Steps of the run's budget; the validation at its end is not reached."""
    return trainer.max_steps - trainer.global_step


def how_many(trainer: Trainer, step: float, seconds: float) -> int:
    """Steps for so many seconds: whole log intervals where one fits, for one step of each logs."""
    n = min(max(1, int(seconds / step)), MOST_STEPS, left(trainer))
    interval = trainer.log_every_n_steps  # type: ignore[attr-defined]
    return n - n % interval if interval <= n else n


class BenchCLI(LabCLI):
    """The command line of ``fit``, whose run is timed and then ended; it leaves nothing.

    Args:
        arguments: Of ``fit``.
        folder: For what a run writes while it goes on.

    Raises:
        UserError: ``fit`` would refuse them, or the bench has to.
    """

    def __init__(self, arguments: list[str], folder: Path) -> None:
        # One device, unless a config says otherwise. At the end what would be no training step.
        first = ["--config={trainer: {devices: 1}}"]
        last = [f"--{name}={NEVER}" for name in ("trainer.val_check_interval", "checkpoint_every")]
        super().__init__("fit", [*first, *arguments, *last, "--trainer.logger=null"], folder)

    def _checkpoint(self, explicit: dict[str, Any], name: str | None) -> None:
        if explicit.get("ckpt_path") is not None:
            raise UserError(
                f"ckpt_path {explicit['ckpt_path']}: the bench goes on with no run; leave it out "
                "of the config (model.init_from takes weights)"
            )

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """With the clock in the place of a profiler."""
        self.clock = PhaseClock()
        self.watch = StepWatch(self.clock)
        trainer = super().instantiate_trainer(profiler=self.clock, **kwargs)
        if trainer.world_size > 1:
            raise UserError(
                f"--trainer.devices: the bench times one process, not {trainer.world_size}; set "
                "--trainer.devices 1, and --data.batch_size to one device's share"
            )
        return trainer

    def run_callbacks(self) -> list[Any]:
        """Those of a run, but for what it prints and proves."""
        left_out = (RunProgress, Receipt, StopSignals)
        return [c for c in super().run_callbacks() if not isinstance(c, left_out)] + [self.watch]

    def time_steps(self) -> None:
        """Train until the watch has seen enough."""
        with contextlib.suppress(Measured):
            self.trainer.fit(self.model, datamodule=self.datamodule)
