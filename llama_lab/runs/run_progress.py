"""Progress of a run: a bar on a terminal, plain lines elsewhere, and the closing lines."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from llama_lab.data.store.notes import between_documents, warnings_of
from llama_lab.inspect.accounting import count_parameters
from llama_lab.runs.callbacks import StepMetrics, ValidationRecord, data_of
from llama_lab.runs.user_callbacks import ended_early_line
from llama_lab.training.averaging import AveragingConfig, averaged_steps
from llama_lab.training.module import LanguageModel, language_model
from llama_lab.training.steps import finished_step, logged_step

# Off a terminal a line at least so far apart, and one at each validation.
SECONDS_BETWEEN_LINES = 10.0


class RunProgress(Callback):
    """Loss, tokens a second and time left while a run goes on.

    Args:
        metrics: Where the latest numbers are.
        bar: Draw a bar where standard output is a terminal.
    """

    def __init__(self, metrics: StepMetrics, *, bar: bool = True) -> None:
        self.metrics = metrics
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self.draws = bar and self.console.is_terminal
        self.progress: Progress | None = None
        self.line_at = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what is about to be trained on what."""
        if not trainer.is_global_zero:
            return
        pl_module = language_model(pl_module)
        for line in opening(trainer, pl_module):
            self.console.print(line, markup=False)
        self.began, self.first = time.monotonic(), trainer.global_step
        self.line_at = self.began
        if self.draws:
            self.progress = Progress(
                TextColumn("step {task.completed:,}/{task.total:,}"),
                BarColumn(),
                TextColumn("{task.fields[numbers]}"),
                console=self.console,
                refresh_per_second=4,
            )
            self.progress.start()
            self.task = self.progress.add_task(
                "", total=trainer.max_steps, completed=trainer.global_step, numbers=""
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar, or print a line now and then."""
        if not trainer.is_global_zero or not finished_step(trainer, batch_idx):
            return
        step = trainer.global_step
        if self.progress is not None:
            self.progress.update(self.task, completed=step, numbers=self.numbers(trainer))
        elif time.monotonic() - self.line_at > SECONDS_BETWEEN_LINES and logged_step(trainer, step):
            self._line(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the validation loss for good, above the bar."""
        if not trainer.is_global_zero or trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        pl_module = language_model(pl_module)
        loss, run = pl_module.validation["val_loss"], pl_module.run
        best = "  (best yet)" if loss < run.best_loss else ""
        self._line(trainer, f"  val loss {loss:.4f}{best}")

    def _line(self, trainer: Trainer, more: str = "") -> None:
        self.line_at = time.monotonic()
        text = (
            f"step {trainer.global_step:>6,}/{trainer.max_steps:,}  {self.numbers(trainer)}{more}"
        )
        self.console.print(text, markup=False)
        self.console.file.flush()

    def numbers(self, trainer: Trainer) -> str:
        """``loss 1.2345  123,456 tokens/s  1:23 left``."""
        latest = self.metrics.latest
        loss = latest.get("train_loss")
        words = [] if loss is None else [f"loss {loss:.4f}"]
        if rate := latest.get("tokens_per_second"):
            words.append(f"{rate:,.0f} tokens/s")
        done = trainer.global_step - self.first
        if done:
            left = (trainer.max_steps - trainer.global_step) / done
            words.append(f"{clock(left * (time.monotonic() - self.began))} left")
        return "  ".join(words)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the bar away."""
        self._close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Take the bar away."""
        self._close()

    def _close(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None


def clock(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def opening(trainer: Trainer, module: LanguageModel) -> list[str]:
    """What is trained, on what, for how long, and where it is kept."""
    config, data = module.decoder_config, data_of(trainer)
    info = data.tokens.info
    kv_heads = config.attention.kv_heads
    total = count_parameters(config).total
    notes = [*between_documents(data.config, data.tokens), *warnings_of(info.report)]
    budget = trainer.max_steps * data.config.batch_size
    device = trainer.strategy.root_device.type
    warmup = module.schedule_config.warmup_steps
    short = f"; warmup is {warmup:,} steps and will not end" if warmup >= trainer.max_steps else ""
    resumed = f", going on from step {trainer.global_step:,}" if trainer.global_step else ""
    return [
        f"run    {module.run.folder}{resumed}",
        f"model  {total:,} parameters: {config.n_layers} layers of {config.dim}, "
        f"{config.norm.kind} {config.norm.placement}, position {config.position.kind}, "
        f"{config.attention.n_heads} heads over {kv_heads} kv heads, {config.feed_forward.kind}",
        *fault_lines(module.fault, module.run.weights_fault),
        f"text   {info.corpus}: {info.train.tokens:,} tokens to train on, "
        f"{info.validation.tokens:,} to validate on; {data.tokenizer.kind} vocabulary of "
        f"{data.tokenizer.vocab_size:,}"
        + (
            f" (the model has {config.vocab_size:,} ids; the rest is never sampled)"
            if config.vocab_size != data.tokenizer.vocab_size
            else ""
        )
        + f"; {info.report['split']}",
        *(f"       {name}: {words}" for name, words in notes),
        f"work   {trainer.max_steps:,} steps of {data.config.batch_size} x {data.context} tokens = "
        f"{data.passes(budget):.1f} passes over the text; {trainer.world_size} x {device}, "
        f"{trainer.precision}{short}",
        *average_lines(module.averaging_config, trainer.max_steps),
        f"{module.compilation.words}: {module.compilation.because}",
    ]


def average_lines(config: AveragingConfig, max_steps: int) -> list[str]:
    """Which average of the weights is validated and saved, and over how many steps it reaches."""
    if config.kind == "none":
        return []
    reach, first = averaged_steps(config, max_steps), config.first_step(max_steps)
    decay = f"decay {config.rate:g}, less in its first steps; " if config.kind == "ema" else ""
    return [
        f"average {config.kind}: {decay}validated and saved in the place of the weights, from step "
        f"{first:,} on; at the end it reaches over about {reach:,} step{'s' * (reach != 1)}"
    ]


def fault_lines(planted: str | None, of_weights: str | None) -> list[str]:
    """The mistake that a run trains with, and the one that its first weights were trained with."""
    if not planted and not of_weights:
        return []
    words = f"{planted}: planted, this is no sound model" if planted else "none"
    if of_weights:
        kept = "kept" if planted == of_weights else "set aside by --model.fault"
        words += (
            f"; the weights of --model.init_from were trained with {of_weights}, which is {kept}"
        )
    return [f"fault  {words}"]


def closing(trainer: Trainer, module: LanguageModel, records: ValidationRecord) -> list[str]:
    """How it went, a sample, where it lies, and what to do next."""
    run, data = module.run, data_of(trainer)
    folder = run.folder
    lines = [
        "",
        *early_lines(run.ended_early, trainer),
        f"done in {clock(run.seconds)}: best validation loss {run.best_loss:.4f} nats per token at "
        f"step {run.best_step:,}; last {module.validation['val_loss']:.4f} "
        f"({module.validation['val_bits_per_byte']:.3f} bits per byte)",
        f"the text was read {data.passes(run.sequences):.1f} times",
    ]
    if data.tokenizer.vocab_size == 1:
        lines.append("the text holds a single character: there is nothing to predict, loss is 0")
    if remark := overfitting(run.validations):
        lines.append(remark)
    logs = folder.parent.parent if folder is not None else "logs"
    on = f"  llama-lab fit --ckpt_path {folder}/checkpoints/last.ckpt --trainer.callbacks null"
    heading = f"sample (temperature {records.sampling.temperature}):"
    sharded, best = module.sharding is not None, f"{folder}/checkpoints/best.ckpt"
    if sharded:
        one_file = f"  llama-lab consolidate {best} --output {folder}/best.ckpt"
        best = f"{folder}/best.ckpt"
    return [
        *lines,
        "",
        *([] if sharded else [heading, records.text.rstrip("\n"), ""]),
        f"run folder: {folder}",
        "next:",
        *([f"{on}     (to go on to step {trainer.max_steps:,})"] if run.ended_early else []),
        *([one_file] if sharded else []),
        f"  llama-lab generate --ckpt_path {best} --prompt TEXT",
        f"  tensorboard --logdir {logs}",
    ]


def early_lines(ended: dict[str, str] | None, trainer: Trainer) -> list[str]:
    """Who ended the run before its budget, and why."""
    if ended is None:
        return []
    return [ended_early_line(ended, trainer.global_step, trainer.max_steps)]


def overfitting(validations: list[tuple[int, float, float]]) -> str | None:
    """A remark where validation loss turned up while the training loss went on falling."""
    if len(validations) < 2:
        return None
    best, last = min(validations, key=lambda row: row[2]), validations[-1]
    rises = last[2] > best[2] * 1.005
    falls = math.isfinite(last[1]) and last[1] < best[1]
    if not (rises and falls):
        return None
    return (
        f"validation loss turned up after step {best[0]:,} ({best[2]:.4f} to {last[2]:.4f}) while "
        f"the training loss fell ({best[1]:.4f} to {last[1]:.4f}): the model is learning the text "
        f"by heart; stop near step {best[0]:,}, take more text, or raise --model.decoder.dropout"
    )
