"""Measurements inside a run's layers, at the steps that ``--diagnostics_every`` asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from llama_lab.data.loading import Batch
from llama_lab.inspect.activity import LayerActivity, has_relu, observe
from llama_lab.model.block import Block
from llama_lab.model.decoder import DecoderConfig
from llama_lab.runs.events import INITIAL_GRADIENT_NORM, Charts, RunEvents
from llama_lab.runs.records import MetricsCsv, append_rows, diagnostics_csv
from llama_lab.training.module import LanguageModel, language_model
from llama_lab.training.processes import require_whole_weights
from llama_lab.training.steps import finished_step

QUANTITIES = (
    "gradient_norm",
    "attention_gradient_norm",
    "feed_forward_gradient_norm",
    "activation_rms",
    "attention_entropy",
    "dead_units",
    "update_ratio",
)
OBSERVED_TOKENS = 8192

Reading = dict[str, Tensor]
"""One layer's quantities, as far as it has them: float32 scalars on the device."""


class Diagnostics(Callback):
    """Measures every layer at the first step and at every so many, and changes nothing.

    The gradient is that of the whole step: accumulated, averaged over processes, before clipping.
    Activations, attention and dead units are those of the weights that it was taken at, in one more
    forward of the first sequences of the step's last microbatch, up to :data:`OBSERVED_TOKENS`
    tokens (one sequence at least), without dropout. Update ratio is ‖Δw‖ / ‖w‖ over a layer's
    weights, where Δw is what the step changed: rate, clipping and weight decay are in it. The first
    process measures and logs.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.tokens: Tensor | None = None
        self.documents: Tensor | None = None
        self.readings: list[Reading] = []
        self.weights: list[list[Tensor]] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse to measure where a process holds but a part of each weight."""
        require_whole_weights(
            trainer.strategy, f"--diagnostics_every {self.every}", "--diagnostics_every null"
        )

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Keep what will be read, where the microbatch completes a step that is measured."""
        step = trainer.global_step + 1
        due = step == 1 or step % self.every == 0
        if due and trainer.is_global_zero and finished_step(trainer, batch_idx):
            n_sequences = max(1, OBSERVED_TOKENS // batch.inputs.size(1))
            self.tokens = batch.inputs[:n_sequences]
            self.documents = None if batch.documents is None else batch.documents[:n_sequences]

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Read gradients and activities, and keep the weights as they are before the step."""
        if self.tokens is None:
            return
        pl_module = language_model(pl_module)
        with trainer.precision_plugin.forward_context():
            activities = observe(pl_module.network, self.tokens, self.documents)
        blocks = blocks_of(pl_module)
        self.readings = [
            {**gradient_norms(block), **present(activity)}
            for block, activity in zip(blocks, activities, strict=True)
        ]
        self.weights = [copies(block.parameters()) for block in blocks]

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Compare the weights with those before the step, and log."""
        if self.tokens is None:
            return
        pl_module = language_model(pl_module)
        blocks = zip(self.readings, blocks_of(pl_module), self.weights, strict=True)
        for reading, block, before in blocks:
            reading["update_ratio"] = update_ratio(before, block.parameters())
        log(trainer, pl_module, trainer.global_step, numbers(self.readings))
        self.tokens, self.readings, self.weights = None, [], []


def blocks_of(module: LanguageModel) -> list[Block]:
    """The layers, first to last."""
    return [block for block in module.network.blocks if isinstance(block, Block)]


def present(activity: LayerActivity) -> Reading:
    """What a layer of this kind has."""
    return {name: value for name, value in activity._asdict().items() if value is not None}


def copies(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The values as they are now."""
    return [parameter.detach().clone() for parameter in parameters]


def gradient_norms(block: Block) -> Reading:
    """Norm of the loss's gradient for a layer's weights: for all, and for those of each sublayer.

    The layer's norms belong to neither sublayer.
    """
    return {
        "gradient_norm": gradient_norm(block),
        "attention_gradient_norm": gradient_norm(block.attention),
        "feed_forward_gradient_norm": gradient_norm(block.feed_forward),
    }


def gradient_norm(module: nn.Module) -> Tensor:
    """√(Σ g²) over the gradients that the module's parameters have, a float32 scalar."""
    gradients = [p.grad.float() for p in module.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


@torch.no_grad()
def update_ratio(before: Sequence[Tensor], after: Iterable[Tensor]) -> Tensor:
    """‖after - before‖ / ‖before‖ over all the tensors together, a float32 scalar."""
    changes = [new.float() - old.float() for old, new in zip(before, after, strict=True)]
    norm = torch.nn.utils.get_total_norm([old.float() for old in before])
    return torch.nn.utils.get_total_norm(changes) / norm


def numbers(readings: Sequence[Reading]) -> list[dict[str, float]]:
    """The readings as numbers, by quantity; waits for the device once."""
    names = [name for name in QUANTITIES if name in readings[0]]
    table = torch.stack([torch.stack([r[name] for r in readings]) for name in names])
    return [dict(zip(names, column, strict=True)) for column in table.t().tolist()]


def tag(quantity: str, layer: int | str) -> str:
    """The name of a layer's quantity in TensorBoard; layers count from 1.

    TensorBoard sorts groups by the alphabet: the losses come before the layers.
    """
    number = layer if isinstance(layer, str) else f"{layer:02d}"
    return f"per_layer/{quantity}/layer_{number}"


def log(trainer: Trainer, module: LanguageModel, step: int, layers: list[dict[str, float]]) -> None:
    """Send one step's numbers to ``diagnostics.csv`` and to every logger but ``metrics.csv``."""
    numbered = list(enumerate(layers, start=1))
    if module.run.folder is not None:
        rows = [{"step": step, "layer": layer, **values} for layer, values in numbered]
        append_rows(diagnostics_csv(module.run.folder), ("step", "layer", *QUANTITIES), rows)
    scalars = {tag(name, layer): v for layer, values in numbered for name, v in values.items()}
    for logger in trainer.loggers:
        if not isinstance(logger, MetricsCsv):
            logger.log_metrics(scalars, step=step)
        if isinstance(logger, RunEvents) and step == 1:
            draw_by_depth(logger, [values["gradient_norm"] for values in layers])


def draw_by_depth(events: RunEvents, norms: list[float]) -> None:
    """The gradient norm at initialisation as a curve over the layers.

    Where the placement of norms makes the last layers' gradients the largest, a long warmup is
    needed (Xiong et al. 2020, arXiv:2002.04745).
    """
    for layer, norm in enumerate(norms, start=1):
        events.experiment.add_scalar(INITIAL_GRADIENT_NORM, norm, global_step=layer)


def charts(config: DecoderConfig) -> Charts:
    """All layers of a quantity in one chart, for each that a decoder's layers have."""
    names = [name for name in QUANTITIES if name != "dead_units" or has_relu(config)]
    return {name.replace("_", " "): ("Multiline", [f"^{tag(name, '[0-9]+')}$"]) for name in names}
