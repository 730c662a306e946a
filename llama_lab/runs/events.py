"""TensorBoard's events of a run: the names of its curves, and the files."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from llama_lab.files import write_atomically

TAGS = {
    "train_loss": "loss/train",
    "val_loss": "loss/val",
    "val_perplexity": "loss/val_perplexity",
    "val_bits_per_byte": "loss/val_bits_per_byte",
    "val_targets": "loss/val_targets",
    "lr": "optimizer/lr",
    "grad_norm": "optimizer/grad_norm",
    "tokens_per_second": "speed/tokens_per_second",
    "flops_per_second": "speed/flops_per_second",
    "mfu": "speed/mfu",
    "passes": "data/passes",
    "epoch": "data/epoch",
}
"""From a metric's name in metrics.csv to its tag; what stands before the slash is its group."""

BEST_LOSS, BEST_STEP = "loss/val_best", "loss/val_best_step"
"""The lowest validation loss so far and its step: curves, whose last points the table of runs shows
(and the last of ``loss/train`` and ``loss/val`` beside them)."""

INITIAL_GRADIENT_NORM = "per_layer/initial_gradient_norm"
"""The tag whose horizontal axis is the layer, counted from 1, where the others' is the step."""

Charts = Mapping[str, tuple[str, list[str]]]
"""Charts of several curves, by title: ``Multiline``, and regular expressions for the tags."""

LOSSES: Charts = {"training and validation": ("Multiline", ["^loss/(train|val)$"])}

LAYOUT = "custom_scalars__config__"
SESSION_START, SESSION_END = "_hparams_/session_start_info", "_hparams_/session_end_info"
# TensorBoard reads the first of each that it meets (of layouts the last): each is written once.
WRITTEN_ONCE = {LAYOUT, SESSION_START, SESSION_END}

Hyperparameters = Mapping[str, bool | float | str]


def tag_of(metric: str) -> str:
    """A metric's tag: from :data:`TAGS`, or in a group of its own making, or in ``other``.

    ``lr-…`` is what Lightning's LearningRateMonitor logs.
    """
    if metric in TAGS:
        return TAGS[metric]
    if metric.startswith("lr-"):
        return f"optimizer/{metric}"
    return metric if "/" in metric else f"other/{metric}"


class RunEvents(TensorBoardLogger):
    """TensorBoard events in the run's own folder, and no other file beside them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(save_dir=folder, name="", version="", default_hp_metric=False)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Add a point to each metric's curve."""
        super().log_metrics({tag_of(name): value for name, value in metrics.items()}, step)

    @rank_zero_only
    def save(self) -> None:
        """Flush; the settings are in config.yaml."""
        self.experiment.flush()

    @rank_zero_only
    def begin(self, hyperparameters: Hyperparameters, layout: Mapping[str, Charts]) -> None:
        """Write what the run is trained with, and the charts under Custom Scalars, by category.

        No experiment is described beside it: TensorBoard takes the first one that it finds in a
        folder of runs for all of them. Without one it reads the hyperparameters of every run, and
        shows first those that differ.
        """
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo

        start = SessionStartInfo()
        for name, value in hyperparameters.items():
            if isinstance(value, bool):
                start.hparams[name].bool_value = value
            elif isinstance(value, str):
                start.hparams[name].string_value = value
            else:
                start.hparams[name].number_value = value
        self._write(SESSION_START, HParamsPluginData(session_start_info=start))
        self.experiment.add_custom_scalars(layout)
        self.save()

    @rank_zero_only
    def end(self, state: str) -> None:
        """Write how the run ended, by the receipt's word for it.

        A run that was stopped can go on, so its end is as unknown as that of one that goes on.
        """
        from tensorboard.plugins.hparams import api_pb2
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

        statuses = {"finished": api_pb2.STATUS_SUCCESS, "failed": api_pb2.STATUS_FAILURE}
        status = statuses.get(state, api_pb2.STATUS_UNKNOWN)
        self._write(SESSION_END, HParamsPluginData(session_end_info=SessionEndInfo(status=status)))
        self.save()

    def _write(self, tag: str, data: Any) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams.metadata import NULL_TENSOR, create_summary_metadata

        summary = Summary()
        metadata = create_summary_metadata(data)
        summary.value.add(tag=tag, metadata=metadata, tensor=NULL_TENSOR)
        self.experiment._get_file_writer().add_summary(summary)

    @rank_zero_only
    def cut(self, step: int) -> None:
        """Drop the events after ``step`` from every file of the folder, each atomically, and those
        that are written anew when a run goes on."""
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        for path in sorted(Path(self.log_dir).glob("events.out.tfevents.*")):
            kept = []
            with contextlib.suppress(Exception):  # the last record of a killed run may be torn
                for raw in RawEventFileLoader(str(path)).Load():
                    event = Event.FromString(raw)
                    tags = {value.tag for value in event.summary.value}
                    stays = event.step <= step or INITIAL_GRADIENT_NORM in tags
                    if stays and not tags & WRITTEN_ONCE:
                        kept.append(raw)
            if len(kept) <= 1:  # nothing but the file's version
                path.unlink()
                continue
            data = io.BytesIO()
            writer = RecordWriter(data)
            for raw in kept:
                writer.write(raw)
            write_atomically(path, data.getvalue())
