"""The user's callbacks: refusals, the folder that they write into, and the end of a run by one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from llama_lab.errors import UserError
from llama_lab.training.module import language_model

# Callbacks that would break a promise, with the way to what they are for.
REFUSED = {
    "GradientAccumulationScheduler": "a step has a fixed batch; use "
    "--trainer.accumulate_grad_batches",
    "OnExceptionCheckpoint": "a run is saved when it is stopped; go on with --ckpt_path last",
    "Timer": "the budget is --trainer.max_steps",
    "LearningRateFinder": "it trains before the first step; see `llama-lab lr-range`",
    "BatchSizeFinder": "a run's batch is --data.batch_size; see `llama-lab describe`",
    "ModelPruning": "it renames the weights, and no checkpoint of the run could be read",
    **dict.fromkeys(
        ("WeightAveraging", "EMAWeightAveraging", "StochasticWeightAveraging"),
        "use --model.averaging.kind",
    ),
}
MONITORED = ("val_loss", "val_perplexity", "val_bits_per_byte", "val_targets")
OWN_FILES = ("best", "last")


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Hold a user's callbacks against what a run promises, before anything is read or written.

    Raises:
        UserError: One would break a promise, or watches what no run logs.
    """
    for callback in callbacks:
        flag = f"--trainer.callbacks {type(callback).__name__}"
        for base in type(callback).__mro__:
            if base.__name__ in REFUSED:
                raise UserError(f"{flag}: {REFUSED[base.__name__]}")
        monitor = getattr(callback, "monitor", None)
        if isinstance(monitor, str) and monitor not in MONITORED:
            raise UserError(
                f"{flag}: monitor {monitor} is not logged for callbacks; there are "
                f"{', '.join(MONITORED)}"
            )
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
            _check_names(callback, flag)


def _check_names(callback: ModelCheckpoint, flag: str) -> None:
    """Its files lie beside the run's own, and must not take their names."""
    if callback.save_last:
        raise UserError(
            f"{flag}: save_last {str(callback.save_last).lower()}: every run writes last.ckpt; "
            "leave it out, or name a folder with dirpath"
        )
    if callback.filename in OWN_FILES:
        raise UserError(
            f"{flag}: filename {callback.filename}: every run writes {callback.filename}.ckpt; "
            "take another name, or name a folder with dirpath"
        )


class InRunFolder:
    """The user's ModelCheckpoints that name no folder: they write into the run's.

    Lightning would take ``checkpoints/`` of the working folder, where the files of runs mix.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = [
            c for c in callbacks if isinstance(c, ModelCheckpoint) and c.dirpath is None
        ]

    def place(self, run: Path) -> None:
        """Let them write into a run's folder."""
        for callback in self.callbacks:
            callback.dirpath = str(run.absolute() / "checkpoints")


class EarlyEnds(Callback):
    """Remembers which of the user's callbacks ended a run before its budget, and why.

    Args:
        callbacks: The user's.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = callbacks
        self.stoppers = [c for c in callbacks if isinstance(c, EarlyStopping)]
        self.patience = [c.patience for c in self.stoppers]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin without a reason to stop, and with the patience that the settings say.

        A checkpoint brings both back as they were, whatever the settings are now.
        """
        for callback, patience in zip(self.stoppers, self.patience, strict=True):
            callback.patience = patience
            callback.stopping_reason = EarlyStoppingReason.NOT_STOPPED
            callback.stopping_reason_message = None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note who asked to stop, before the last checkpoint is written."""
        pl_module = language_model(pl_module)
        early = trainer.should_stop and trainer.global_step < trainer.max_steps
        if trainer.state.fn == "fit" and early and not trainer.sanity_checking:
            pl_module.run.ended_early = self.reason()

    def reason(self) -> dict[str, str]:
        """``by`` and ``why``, in words."""
        for callback in self.stoppers:
            if callback.stopping_reason is not EarlyStoppingReason.NOT_STOPPED:
                words = (callback.stopping_reason_message or "").removesuffix(
                    " Signaling Trainer to stop."
                )
                words = words.replace(" records.", " validations.").rstrip(".")
                return {"by": type(callback).__name__, "why": words}
        names = " or ".join(type(callback).__name__ for callback in self.callbacks)
        return {"by": names or "a callback", "why": "it set trainer.should_stop"}


def ended_early_line(ended: dict[str, str], step: int, max_steps: int) -> str:
    """Who ended a run before its budget, and why."""
    return f"{ended['by']} ended the run at step {step:,} of {max_steps:,}: {ended['why']}"
