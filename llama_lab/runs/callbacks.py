"""Callbacks around the training steps: seeds, metrics and sample texts."""

from __future__ import annotations

import hashlib
import math
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from llama_lab.data.datamodule import TextDataModule
from llama_lab.data.loading import Batch
from llama_lab.generation.generate import sample_text
from llama_lab.generation.sampling import SamplingConfig
from llama_lab.inspect.accounting import flops_per_token
from llama_lab.inspect.ceilings import product_dtype, run_ceiling
from llama_lab.model.devices import answers_at_once
from llama_lab.runs.events import RunEvents
from llama_lab.training.compiling import Work, decide_compilation, not_compiled
from llama_lab.training.module import LanguageModel, language_model
from llama_lab.training.steps import finished_step, logged_step

SAMPLE_TOKENS = 200


def data_of(trainer: Trainer) -> TextDataModule:
    """The run's data module."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    assert isinstance(data, TextDataModule)
    return data


class BlockCompiler(Callback):
    """Compiles the blocks, or leaves them, before the first step and before a run has a folder."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """For training."""
        pl_module = language_model(pl_module)
        pl_module.train()
        self.decide(trainer, pl_module)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """For the scoring of a checkpoint; in the middle of a run, blocks run as they are."""
        if trainer.state.fn != "fit":
            self.decide(trainer, pl_module)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """For the scoring of a checkpoint."""
        self.decide(trainer, pl_module)

    def decide(self, trainer: Trainer, module: LightningModule) -> None:
        """Decide, once."""
        module = language_model(module)
        data = data_of(trainer)
        work = Work(
            device=trainer.strategy.root_device.type,
            steps=trainer.max_steps,
            microbatches=trainer.accumulate_grad_batches,
            rows=data.share.rows,
            length=data.context,
        )
        training = trainer.state.fn == "fit"
        loss = module.training_loss if training else module.summed_loss

        def score(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            with trainer.precision_plugin.forward_context():
                apart = torch.zeros_like(tokens) if data.config.document_mask else None
                return loss(tokens, targets, apart)

        if module.sharding is not None:
            module.compilation = not_compiled(module.compile_setting)
            return
        module.compilation = decide_compilation(
            module.compile_setting, module.network, work, training=training, score=score
        )


class StepSeeds(Callback):
    """Seeds torch before each microbatch from (seed, first sequence, rank).

    So dropout is a pure function of the place in the run: a resumed run draws the same masks, and
    no two processes share them.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Seed for this microbatch."""
        key = f"dropout:{self.seed}:{int(batch.sequences[0])}:{data_of(trainer).share.rank}"
        digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
        seed_draws(int.from_bytes(digest, "little") >> 1, pl_module.device.type)


def seed_draws(seed: int, device: str) -> None:
    """Seed torch's draws on the CPU and on ``device``, as ``torch.manual_seed`` does on each.

    That one seeds every kind of device, and where one is missing it keeps the call for later, with
    a printed stack: half a millisecond, or all that a small model's step may cost beside its model.
    """
    torch.default_generator.manual_seed(seed)
    if device != "cpu":
        torch.get_device_module(device).manual_seed(seed)


class StepMetrics(Callback):
    """Counts every step and, once per log interval, reads and logs the metrics.

    Between two reads nothing waits for the device. A loss that is not finite stops the run: at
    once on the CPU, at the next read elsewhere.

    Attributes:
        latest: What was logged last.
        flops_per_token: Of forward and backward, as ``describe`` counts them.
        ceiling: FLOPs per second of the fastest product of matrices at the run's precision, over
            all its devices, taken to be alike.
    """

    def __init__(self) -> None:
        self.mark = time.monotonic()
        self.steps = 0
        self.latest: dict[str, float] = {}
        self.flops_per_token, self.ceiling = 0, math.nan

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count and measure what speed is held against, and start the clock."""
        pl_module = language_model(pl_module)
        device = trainer.strategy.root_device
        context = data_of(trainer).context
        dtype = product_dtype(trainer.precision_plugin.forward_context, device)
        self.flops_per_token = flops_per_token(pl_module.network, context).training
        # Before the first step: there is memory yet for two large matrices.
        self.ceiling = trainer.world_size * run_ceiling(device, dtype)
        self.mark, self.steps = time.monotonic(), 0

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training speed does not count validation."""
        self.paused = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on counting."""
        self.mark += time.monotonic() - self.paused

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
    ) -> None:
        """Count the microbatch; at the end of a logged step, log."""
        pl_module = language_model(pl_module)
        if pl_module.sharding is None or pl_module.sharding.reads_first:
            pl_module.run.order.update(batch.sequences, batch.starts)
        if not finished_step(trainer, batch_idx):
            return
        step, data = trainer.global_step, data_of(trainer)
        pl_module.run.sequences = step * data.config.batch_size
        pl_module.run.compiled_steps += pl_module.compilation.compiled
        self.steps += 1
        reads_freely = trainer.world_size == 1 and answers_at_once(pl_module.device)
        if reads_freely and pl_module.meter.first_bad_step() is not None:
            pl_module.check_finite()
        if logged_step(trainer, step) or step == trainer.max_steps:
            self.report(trainer, pl_module, step, data)

    def report(
        self, trainer: Trainer, module: LanguageModel, step: int, data: TextDataModule
    ) -> None:
        """Read the device once and send the interval's metrics to the loggers."""
        mean, bad = module.meter.read_synced()
        if bad or not math.isfinite(mean):
            module.check_finite()
        now = time.monotonic()
        tokens = self.steps * data.config.batch_size * data.context
        rate = tokens / max(now - self.mark, 1e-9)
        self.latest = {
            "train_loss": mean,
            "lr": module.learning_rate,
            "grad_norm": float(module.grad_norm) if module.grad_norm is not None else math.nan,
            "tokens_per_second": rate,
            "flops_per_second": rate * self.flops_per_token,
            "mfu": rate * self.flops_per_token / self.ceiling,
        }
        self.mark, self.steps = now, 0
        module.meter.reset()
        for logger in trainer.loggers:
            logger.log_metrics(self.latest, step=step)


class ValidationRecord(Callback):
    """Adds to each validation how often the corpus was read, and a text that the model writes."""

    def __init__(self, sampling: SamplingConfig | None = None) -> None:
        self.sampling = sampling or SamplingConfig()
        self.text = ""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log passes and a sample; keep the losses for the closing remark on overfitting."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        pl_module = language_model(pl_module)
        assert pl_module.tokenizer is not None
        step, run = trainer.global_step, pl_module.run
        passes = data_of(trainer).passes(run.sequences)
        train = next((c.latest for c in trainer.callbacks if isinstance(c, StepMetrics)), {})  # type: ignore[attr-defined]
        run.validations.append(
            (step, train.get("train_loss", math.nan), pl_module.validation["val_loss"])
        )
        # Under a sharded strategy, each token would have all processes gather all weights.
        if not trainer.is_global_zero or pl_module.sharding is not None:
            return
        self.text = sample_text(
            pl_module.network,
            pl_module.tokenizer,
            prompt="",
            max_new_tokens=SAMPLE_TOKENS,
            sampling=self.sampling,
            seed=pl_module.seed,
        )
        for logger in trainer.loggers:
            logger.log_metrics({"passes": passes}, step=step)
            if isinstance(logger, RunEvents):
                # TensorBoard renders Markdown: an indented block keeps the text as it is.
                block = "\n".join(f"    {line}" for line in self.text.split("\n"))
                logger.experiment.add_text("sample", block, global_step=step)
