"""The LightningModule: a decoder, its loss, its optimiser, and what is validated how."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler

from llama_lab import checkpoints
from llama_lab.data.batches import IGNORE
from llama_lab.data.datamodule import TextDataModule
from llama_lab.data.loading import Batch
from llama_lab.data.tokenizers.kinds import Tokenizer, tokenizer_from_state
from llama_lab.errors import UserError
from llama_lab.inspect.faults import FaultKind, check_fault, plant_fault
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from llama_lab.model.settings import require
from llama_lab.parallel.sharding import free_gathered
from llama_lab.parallel.strategy import ShardedStrategy, sharding_of
from llama_lab.parallel.tensors import clip_by_norm, local, put, total_norm
from llama_lab.training.averaging import AveragingConfig
from llama_lab.training.compiling import Compilation, CompileSetting
from llama_lab.training.optimizers import OptimizerConfig, build_optimizer
from llama_lab.training.recomputing import CheckpointActivations, recompute
from llama_lab.training.schedules import ScheduleConfig, lr_factor
from llama_lab.training.soundness import check_finite, diverged
from llama_lab.training.state import LossMeter, RunState, hash_parts
from llama_lab.training.steps import logged_step
from llama_lab.training.token_loss import TokenLoss


class LanguageModel(LightningModule):
    """A decoder-only language model that is trained on next-token prediction."""

    def __init__(
        self,
        decoder: DecoderConfig = DecoderConfig(),  # noqa: B008 (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(),  # noqa: B008
        schedule: ScheduleConfig = ScheduleConfig(),  # noqa: B008
        averaging: AveragingConfig = AveragingConfig(),  # noqa: B008
        z_loss: float | None = None,
        compile: CompileSetting = "auto",
        checkpoint_activations: CheckpointActivations = "none",
        init_from: str | None = None,
        seed: int = 0,
        fault: FaultKind | None = None,
    ) -> None:
        """
        Args:
            decoder: The network.
            optimizer: How gradients become weights.
            schedule: The learning rate over the run.
            averaging: Which average of the weights is validated and saved.
            z_loss: Weight of the squared log of the softmax's denominator in what training
                minimises, such as 0.0001 (PaLM, Chowdhery et al. 2022); null leaves it out. Logged
                losses are the cross-entropy alone.
            compile: Whether the network is compiled: true (block by block), whole (in one piece:
                faster, and several times as long to start), false, or auto, which is true for
                training on a CPU or on CUDA where the steps of the run save more time than the
                start takes.
                No weight is named otherwise, and any checkpoint goes on with any value.
            checkpoint_activations: What is computed a second time in the backward instead of being
                kept in memory: none, block (each whole layer: the least memory, and a step up to a
                third longer) or attention (each layer's attention alone). The results are the same,
                and any checkpoint goes on with any value.
            init_from: Checkpoint whose weights a new run starts from, with a fresh optimiser and
                schedule; null starts from random weights.
            seed: Seed of the initial weights and of dropout.
            fault: A well-known mistake to plant in the network, for teaching: rope_queries_only
                (keys are not turned), mixed_rope_pairing (keys use the other pairing),
                no_final_norm, kv_tiled (key/value heads are tiled instead of repeated),
                no_causal_mask or unscaled_scores (no 1/sqrt of head_dim). Null plants none. A
                checkpoint keeps the fault with its weights.
        """
        super().__init__()
        # Checkpoints hold plain dicts: dataclass objects fail torch's weights-only loading.
        self.decoder_config = _rebuild(DecoderConfig.from_dict, decoder)
        self.optimizer_config = _rebuild(lambda d: OptimizerConfig(**d), optimizer)
        self.schedule_config = _rebuild(lambda d: ScheduleConfig(**d), schedule)
        self.averaging_config = _rebuild(lambda d: AveragingConfig(**d), averaging)
        check_fault(self.decoder_config, fault)
        require(
            z_loss is None or 0 < z_loss < math.inf,
            f"--model.z_loss {z_loss}: must be above 0, such as 0.0001; null leaves it out",
        )
        self.z_loss = z_loss or 0.0
        self.init_from, self.seed, self.fault = init_from, seed, fault
        self.compile_setting, self.compilation = compile, Compilation()
        self.checkpoint_activations = checkpoint_activations
        self.decoder: Decoder | None = None
        self.tokenizer: Tokenizer | None = None
        self.token_loss = TokenLoss()
        self.run = RunState()
        self.meter = LossMeter()
        self.config: dict[str, Any] = {}
        self.folder: dict[str, Any] | None = None
        self.validation: dict[str, float] = {}
        self.grad_norm: torch.Tensor | None = None
        self.learning_rate = 0.0
        self.piece_bytes: torch.Tensor | None = None

    # ---- construction ------------------------------------------------------------------------

    def setup(self, stage: str) -> None:
        """Refuse to train on longer sequences than the model is declared for, and to divide what
        cannot be divided."""
        if self.sharding is not None:
            self.sharding.check(self.decoder_config, str(self.trainer.precision))
        data, limit = self._datamodule, self.decoder_config.context_length
        require(
            self.fault != "no_causal_mask" or data is None or not data.config.document_mask,
            "--model.fault no_causal_mask lifts the mask that --data.document_mask true sets: set "
            "one of them to null or false",
        )
        if stage == "fit" and data is not None and data.context > limit:
            raise UserError(
                f"--data.context_length {data.context} is longer than "
                f"--model.decoder.context_length {limit}: raise the latter, or set "
                "--data.context_length null"
            )

    def configure_model(self) -> None:
        """Build the decoder once the data module knows the vocabulary; draw or load its weights."""
        if self.decoder is not None:
            return
        if self._datamodule is not None:
            self.tokenizer = self._datamodule.tokenizer
            self.decoder_config = self.with_vocabulary(self.tokenizer.vocab_size)
            self.run.store_digest = self._datamodule.tokens.digest
        if self.sharding is None:
            self.decoder = Decoder(self.decoder_config)
        else:
            precision = str(self.trainer.precision)
            self.decoder = self.sharding.decoder(self.decoder_config, precision)
            self.token_loss.process_group = self.sharding.data_group
        initialise(self.decoder, self.seed, put)
        recompute(self.decoder, self.checkpoint_activations)
        if self.init_from is not None:
            self.load_weights(self.init_from)
        plant_fault(self.decoder, self.fault)
        self.run.initial_weights = hash_parts(self.decoder)

    def with_vocabulary(self, known: int) -> DecoderConfig:
        """The decoder's config for a tokenizer of ``known`` ids.

        Raises:
            UserError: The config names a smaller vocabulary.
        """
        size = self.decoder_config.vocab_size
        if size is not None and size < known:
            raise UserError(
                f"--model.decoder.vocab_size {size} is smaller than the tokenizer's {known}; "
                "set --model.decoder.vocab_size null"
            )
        return dataclasses.replace(self.decoder_config, vocab_size=size or known)

    def load_weights(self, path: str) -> None:
        """Take a checkpoint's weights; every tensor must be there and fit.

        Raises:
            UserError: The checkpoint's decoder differs in a tensor's name or shape.
        """
        assert self.decoder is not None
        record = checkpoints.read_record(path)
        checkpoints.check_weights(
            self.decoder.state_dict(),
            record,
            flag="--model.init_from",
            remedy="give the checkpoint's own settings",
        )
        for name, tensor in self.decoder.state_dict().items():
            put(tensor, record.weights[name])
        self.run.weights_fault, self.folder = record.fault, record.folder

    @property
    def _datamodule(self) -> TextDataModule | None:
        trainer = getattr(self, "_trainer", None)
        return getattr(trainer, "datamodule", None)

    @property
    def sharding(self) -> ShardedStrategy | None:
        """The trainer's strategy, where it divides the weights between processes."""
        return sharding_of(getattr(self, "_trainer", None))

    @property
    def network(self) -> Decoder:
        """The decoder, built."""
        if self.decoder is None:
            raise RuntimeError("LanguageModel.configure_model has not run")
        return self.decoder

    def check_finite(self) -> None:
        """Stop a run whose loss or weights are not finite."""
        check_finite(
            self.network,
            self.meter,
            self.run,
            self.trainer.global_step,
            grad_norm=self.grad_norm,
            clips=self.clips,
        )

    @property
    def clips(self) -> bool:
        """Whether the trainer clips gradients."""
        return bool(self.trainer.gradient_clip_val)

    # ---- training ----------------------------------------------------------------------------

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        """Mean next-token loss of one microbatch, nats per token."""
        loss = self.training_loss(batch.inputs, batch.targets, batch.documents)
        self.meter.add(loss, self.trainer.global_step + 1)
        return loss

    def training_loss(
        self, tokens: torch.Tensor, targets: torch.Tensor, documents: torch.Tensor | None = None
    ) -> torch.Tensor:
        """What training minimises, mean over the targets [B, T], nats per token."""
        return self.network.score(
            tokens, targets, reduction="mean", z_loss=self.z_loss, documents=documents
        )

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The optimiser, and a schedule that counts optimiser steps."""
        optimizer = build_optimizer(self.network, self.optimizer_config)
        factor = lr_factor(self.schedule_config, self.trainer.max_steps)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step", "frequency": 1},
        }

    def on_train_start(self) -> None:
        """Restate the learning rate: a resumed run may have another budget."""
        for schedule in self.trainer.lr_scheduler_configs:
            scheduler = schedule.scheduler
            assert isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR)
            rates = zip(
                scheduler.optimizer.param_groups,
                scheduler.base_lrs,
                scheduler.lr_lambdas,
                strict=True,
            )
            for group, peak, factor in rates:
                group["lr"] = peak * factor(scheduler.last_epoch)

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip as the trainer says, and keep the norm before clipping and the rate in force."""
        self.learning_rate = optimizer.param_groups[0]["lr"]
        parameters = [p for p in self.parameters() if p.grad is not None]
        if gradient_clip_val and gradient_clip_algorithm in (None, "norm"):
            self.grad_norm = clip_by_norm(parameters, gradient_clip_val)
            return
        step = self.trainer.global_step + 1
        if logged_step(self.trainer, step) or step == self.trainer.max_steps:
            self.grad_norm = total_norm(p.grad for p in parameters if p.grad is not None)
        if gradient_clip_val:
            for p in parameters:
                if p.grad is not None:
                    local(p.grad).clamp_(-gradient_clip_val, gradient_clip_val)

    # ---- validation --------------------------------------------------------------------------

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Add a batch's summed loss to the text's."""
        loss = self.summed_loss(batch.inputs, batch.targets, batch.documents)
        scored = batch.targets[batch.targets != IGNORE]
        n_bytes = self._piece_bytes(scored.device)[scored].sum()
        self.token_loss.update(loss, torch.tensor(scored.numel()), n_bytes)

    def summed_loss(
        self, tokens: torch.Tensor, targets: torch.Tensor, documents: torch.Tensor | None = None
    ) -> torch.Tensor:
        """What is validated, summed over the targets [B, T], nats."""
        return self.network.score(tokens, targets, reduction="sum", documents=documents)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """The same for ``test``."""
        self.validation_step(batch, batch_idx)

    def _piece_bytes(self, device: torch.device) -> torch.Tensor:
        """UTF-8 bytes of each id [V], on ``device``."""
        assert self.tokenizer is not None
        if self.piece_bytes is None or self.piece_bytes.device != device:
            lengths = [len(piece) for piece in self.tokenizer.pieces]
            self.piece_bytes = torch.tensor(lengths, dtype=torch.int64, device=device)
        return self.piece_bytes

    def on_validation_epoch_end(self) -> None:
        """Reduce over processes and log."""
        self._finish("val")

    def on_test_epoch_end(self) -> None:
        """Reduce over processes and log."""
        self._finish("test")

    def _finish(self, prefix: str) -> None:
        values = {f"{prefix}_{name}": v for name, v in self.token_loss.compute().items()}
        self.token_loss.reset()
        free_gathered(self.network)
        self.validation = values
        fits = self.trainer.state.fn == "fit"
        if fits and not math.isfinite(values["val_loss"]):
            raise diverged(
                "the validation loss", self.run, self.trainer.global_step, clips=self.clips
            )
        # For callbacks that watch a metric and for what `Trainer.validate` returns. A run's own
        # records get all digits.
        rounded = {k: torch.tensor(v, dtype=torch.float32) for k, v in values.items()}
        self.log_dict(rounded, logger=not fits)
        if fits and not self.trainer.sanity_checking:
            for logger in self.trainer.loggers:
                logger.log_metrics(values, step=self.trainer.global_step)

    # ---- checkpoints -------------------------------------------------------------------------

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Make the file whole in itself."""
        assert self.tokenizer is not None
        checkpoint[checkpoints.KEY] = checkpoints.own_part(
            decoder=dataclasses.asdict(self.decoder_config),
            tokenizer=self.tokenizer.state(),
            config=self.config,
            progress={**self.run.state(), "meter": self.meter.state()},
            fault=self.fault,
            folder=self.folder,
        )
        checkpoint["hyper_parameters"] = {
            "decoder": dataclasses.asdict(self.decoder_config),
            "optimizer": dataclasses.asdict(self.optimizer_config),
            "schedule": dataclasses.asdict(self.schedule_config),
            "averaging": dataclasses.asdict(self.averaging_config),
            "z_loss": self.z_loss or None,
            "seed": self.seed,
            "fault": self.fault,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up the run's counters; restate Lightning's, which count microbatches."""
        own = checkpoint[checkpoints.KEY]
        self.tokenizer, self.folder = tokenizer_from_state(own["tokenizer"]), own.get("folder")
        if getattr(self, "_trainer", None) is None or self.trainer.state.fn != "fit":
            return
        self.run.load(own["progress"])
        self.meter.restore(own["progress"]["meter"])
        microbatches = checkpoint["global_step"] * self.trainer.accumulate_grad_batches
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        for counts in (progress["total"], progress["current"]):
            # `completed` is one behind where the file was written at a batch's end.
            behind = counts["ready"] - counts["completed"]
            counts.update(
                ready=microbatches,
                started=microbatches,
                processed=microbatches,
                completed=microbatches - behind,
            )


def language_model(module: LightningModule) -> LanguageModel:
    """The module that a callback is given, by its own type: Lightning declares any module.

    Raises:
        TypeError: It is another one.
    """
    if not isinstance(module, LanguageModel):
        raise TypeError(f"callbacks of a run need a LanguageModel, got {type(module).__name__}")
    return module


def _rebuild(build: Any, value: Any) -> Any:
    return build(value) if isinstance(value, Mapping) else value
