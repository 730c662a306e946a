"""Checkpoint callbacks: when a file is written, and how it reaches the disk whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from llama_lab.errors import Stopped
from llama_lab.files import write_atomically
from llama_lab.parallel.sharded_checkpoints import load_whole, remove_shards
from llama_lab.runs.receipts import Receipt
from llama_lab.runs.stopping import StopSignals
from llama_lab.signals import stopped_by
from llama_lab.training.module import language_model
from llama_lab.training.steps import finished_step, validation_due


class AtomicCheckpointIO(CheckpointIO):
    """Files that are whole or absent.

    (Lightning writes to the system's temporary folder and moves: a kill during a move across file
    systems leaves half a file, Lightning-AI/pytorch-lightning #19970.)
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write beside the target, force to disk, rename; make the folder if there is none."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(path), lambda file: torch.save(checkpoint, file))
        remove_shards(Path(path))

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read with weights only, on the CPU; a sharded one is put together."""
        return load_whole(path)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete the file."""
        Path(path).unlink(missing_ok=True)
        remove_shards(Path(path))


class RunCheckpoints(Checkpoint):
    """``last.ckpt`` every so many steps and at the end, ``best.ckpt`` by validation loss, and
    ``step_N.ckpt``, which stays, every so many steps.

    A file of step ``k`` is written after the validation that is due at ``k``: Lightning skips a
    validation that falls on the very step of the checkpoint it resumes from. Every check that the
    run is sound comes before the file: what is on disk is always a good place to go back to.
    """

    def __init__(
        self, every: int, signals: StopSignals, receipt: Receipt, keep_every: int | None = None
    ) -> None:
        self.every, self.signals, self.receipt = every, signals, receipt
        self.keep_every = keep_every

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the first weights; see to it that the run ends with a validation, however the budget
        divides."""
        if trainer.global_step == 0:
            self._keep(trainer, pl_module)
        self._end_with_validation(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write ``last.ckpt`` where it is due, or the run was told to stop; a validation first."""
        if not finished_step(trainer, batch_idx):
            return
        self._end_with_validation(trainer)
        step = trainer.global_step
        if validation_due(trainer, step):
            return
        signum = self.signals.asked(trainer, step)
        self._keep(trainer, pl_module)
        if signum or step % self.every == 0:
            self.save(trainer, pl_module, "last")
        if signum:
            raise stopped(signum, pl_module, step)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write ``best.ckpt`` if the loss is the lowest yet, then ``last.ckpt`` where due."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        pl_module = language_model(pl_module)
        step, run, loss = trainer.global_step, pl_module.run, pl_module.validation["val_loss"]
        if loss < run.best_loss:
            run.best_loss, run.best_step = loss, step
            self.save(trainer, pl_module, "best")
        self._keep(trainer, pl_module)
        ends = trainer.should_stop
        signum = 0 if ends else self.signals.asked(trainer, None)
        if ends or signum or step % self.every == 0:
            self.save(trainer, pl_module, "last")
        if signum:
            raise stopped(signum, pl_module, step)

    def _keep(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write ``step_N.ckpt`` where it is due."""
        if self.keep_every is not None and trainer.global_step % self.keep_every == 0:
            self.save(trainer, pl_module, f"step_{trainer.global_step}")

    def save(self, trainer: Trainer, pl_module: LightningModule, name: str) -> None:
        """Write a checkpoint, once the run is found sound and its records are on disk."""
        pl_module = language_model(pl_module)
        pl_module.check_finite()
        for logger in trainer.loggers:
            logger.save()
        folder = pl_module.run.folder
        assert folder is not None
        path = folder / "checkpoints" / f"{name}.ckpt"
        trainer.save_checkpoint(path)
        pl_module.run.saved = path
        self.receipt.write(trainer, pl_module, "running")

    @staticmethod
    def _end_with_validation(trainer: Trainer) -> None:
        # Asking to stop makes Lightning validate after this very step. The budget ends it anyway.
        if trainer.global_step >= trainer.max_steps > 0:
            trainer.should_stop = True


def stopped(signum: int, module: LightningModule, step: int) -> Stopped:
    """How a run ends that a signal asked to stop."""
    module = language_model(module)
    return stopped_by(
        signum,
        f" at step {step:,}; everything is saved; go on with "
        f"`llama-lab fit --ckpt_path {module.run.folder}/checkpoints/last.ckpt`",
    )
