"""A run's line in TensorBoard's HPARAMS table, and its charts under Custom Scalars."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from llama_lab.dotted_names import flatten
from llama_lab.errors import Stopped
from llama_lab.inspect.accounting import count_parameters
from llama_lab.runs import diagnostics
from llama_lab.runs.callbacks import data_of
from llama_lab.runs.events import BEST_LOSS, BEST_STEP, LOSSES, Charts, RunEvents
from llama_lab.runs.records import diagnostics_csv
from llama_lab.training.module import LanguageModel, language_model

GROUPS = ("model.", "data.")
SINGLE = (
    "name",
    "seed_everything",
    "trainer.max_steps",
    "trainer.accumulate_grad_batches",
    "trainer.gradient_clip_val",
    "trainer.precision",
)
LEFT_OUT = ("data.cache_dir", "data.num_workers")  # no number of a run depends on them

OFF: dict[str, float | str] = {
    "model.decoder.logit_softcap": 0.0,
    "model.decoder.attention.softcap": 0.0,
    "model.decoder.attention.window": 0.0,
    "model.fault": "none",
    "model.init_from": "none",
    "model.z_loss": 0.0,
    "trainer.gradient_clip_val": 0.0,
}
"""What stands for null where null switches something off: a blank does not count as a difference
between runs."""


class RunBoard(Callback):
    """Tells TensorBoard what a run is trained with, its best loss so far, and how it ended.

    Args:
        settings: The run's, as config.yaml has them.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.began = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write both, behind the cut that a resumed run makes in its records."""
        pl_module = language_model(pl_module)
        known = hyperparameters(self.settings, pl_module, data_of(trainer).context)
        for events in events_of(trainer):
            events.begin(known, self.layout(pl_module))
        self.began = True

    def layout(self, module: LanguageModel) -> dict[str, Charts]:
        """Both losses in one chart; with diagnostics, now or before, those of every layer too."""
        folder = module.run.folder
        measured = self.settings["diagnostics_every"] is not None
        if measured or (folder is not None and diagnostics_csv(folder).is_file()):
            return {"loss": LOSSES, "diagnostics": diagnostics.charts(module.decoder_config)}
        return {"loss": LOSSES}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the lowest loss so far, this one's included, before the checkpoints are written."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        pl_module = language_model(pl_module)
        run, step = pl_module.run, trainer.global_step
        best = (run.best_loss, run.best_step)
        if pl_module.validation["val_loss"] < run.best_loss:
            best = (pl_module.validation["val_loss"], step)
        for events in events_of(trainer):
            events.log_metrics({BEST_LOSS: best[0], BEST_STEP: best[1]}, step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The budget is spent, or a callback ended the run."""
        self.end(trainer, "finished")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """The run was stopped, or failed."""
        if self.began:
            stopped = isinstance(exception, Stopped | KeyboardInterrupt)
            self.end(trainer, "stopped" if stopped else "failed")

    def end(self, trainer: Trainer, state: str) -> None:
        """Write it, once."""
        for events in events_of(trainer):
            events.end(state)
        self.began = False


def events_of(trainer: Trainer) -> list[RunEvents]:
    """The run's events."""
    return [logger for logger in trainer.loggers if isinstance(logger, RunEvents)]


def hyperparameters(
    settings: Mapping[str, Any], module: LanguageModel, context: int
) -> dict[str, bool | float | str]:
    """The settings that a run's numbers depend on, by the names of their flags, and its parameters.

    Defaults that depend on other settings are resolved as far as the built network knows them.
    A setting that is null otherwise is left out.
    """
    config, first = module.decoder_config, diagnostics.blocks_of(module)[0]
    values = {
        **flatten(settings),
        **flatten({"model": {"decoder": dataclasses.asdict(config)}}),
        "model.decoder.attention.n_kv_heads": config.attention.kv_heads,
        "model.decoder.attention.head_dim": first.attention.head_dim,
        "model.decoder.feed_forward.hidden_dim": first.feed_forward.down.in_features,
        "data.context_length": context,
    }
    chosen = {
        name: OFF.get(name) if value is None else value
        for name, value in values.items()
        if (name.startswith(GROUPS) or name in SINGLE) and name not in LEFT_OUT
    }
    parameters = count_parameters(config).total
    return {
        **{name: plain(value) for name, value in chosen.items() if value is not None},
        "parameters": float(parameters),
    }


def plain(value: Any) -> bool | float | str:
    """A setting as TensorBoard can keep it: a list becomes its words, infinity as well."""
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
