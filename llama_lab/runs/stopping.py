"""Signals that a run answers between two optimiser steps, when it has saved."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from llama_lab.errors import Stopped
from llama_lab.signals import SIGNALS
from llama_lab.training.steps import logged_step


class StopSignals(Callback):
    """Holds the signal that asked the run to stop; the checkpoint callback acts on it.

    Under DDP the request is reduced over all processes, so that a signal to any of them stops all
    at the same step (Lightning hangs there, Lightning-AI/pytorch-lightning #20806). A second
    Ctrl-C ends at once.
    """

    def __init__(self) -> None:
        self.received = 0
        self.previous: dict[int, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the signals."""
        if threading.current_thread() is threading.main_thread():
            for signum in SIGNALS:
                self.previous[signum] = signal.signal(signum, self._receive)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT and self.received:
            raise Stopped(signum, "stopped at once by a second SIGINT; last.ckpt is as it was")
        self.received = signum

    def asked(self, trainer: Trainer, step: int | None) -> int:
        """The signal that any process received, or 0; every process must ask at the same time.

        Args:
            trainer: The trainer.
            step: The optimiser step that just ended, or None at a validation.
        """
        if trainer.world_size == 1:
            return self.received
        # The reduction makes an accelerator wait: there, ask once per log interval.
        waits = trainer.strategy.root_device.type != "cpu"
        if waits and step is not None and not logged_step(trainer, step):
            return 0
        flag = torch.tensor(self.received, device=trainer.strategy.root_device)
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        # A signal that came during the reduction stays in `received` for the next time: all
        # processes act on what was reduced, and on nothing else.
        return int(flag.item())

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give the signals back."""
        self._give_back()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Give the signals back."""
        self._give_back()

    def _give_back(self) -> None:
        for signum, handler in self.previous.items():
            signal.signal(signum, handler)
        self.previous = {}
