"""Training and decoding speed of a config, beside the measured ceilings of this machine."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from llama_lab.bench.limits import Phase, Step, limit_of
from llama_lab.bench.timed_steps import SLOW_STEP, BenchCLI
from llama_lab.data.datamodule import DEVICE_TOKENS
from llama_lab.inspect.accounting import count_parameters, decoding_bytes
from llama_lab.inspect.ceilings import matmul_ceiling, memory_bandwidth, product_dtype
from llama_lab.inspect.memory import PRECISIONS, training_memory
from llama_lab.model.decoder import Decoder
from llama_lab.model.devices import multiplies
from llama_lab.runs.callbacks import data_of
from llama_lab.runs.receipts import describe_device, versions
from llama_lab.studies.timing import computing_on, time_decoding
from llama_lab.training.compiling import missing_compiler
from llama_lab.training.optimizers import OPTIMIZERS

CEILING_SECONDS, BANDWIDTH_SECONDS, DECODING_SECONDS = 0.3, 0.4, 1.0
LONGEST_PROMPT = 512


@dataclass(frozen=True, kw_only=True)
class StepMs:
    """Milliseconds of an optimiser step."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, kw_only=True)
class DecodingSpeed:
    """Writing one text, with the cache, float32 weights unless the run trains others."""

    tokens_per_second: float
    context: int
    """Tokens seen, on average."""
    bytes_per_token: int
    """Of weights and cache, which a token has to read."""
    bandwidth_share: float
    """What that is of the memory's bandwidth, at this speed."""


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """Everything that is reported, under the names of the JSON output."""

    name: str
    device: str
    device_name: str
    threads: int
    precision: str
    compiled: bool
    compiled_whole: bool
    compiled_because: str
    parameters: int
    flops_per_token: int
    """Of training, as ``describe`` counts them."""
    batch_size: int
    context: int
    tokens_per_step: int
    steps: int
    """That were timed."""
    tokens_per_second: float
    flops_per_second: float
    mfu: float
    matmul_ceiling_flops_per_second: float
    memory_bandwidth_bytes_per_second: float
    peak_memory_bytes: int | None
    step_ms: StepMs
    share: dict[Phase, float]
    decoding: DecodingSpeed
    limit: str
    versions: dict[str, str]


def bench(name: str, flags: list[str], say: Callable[[str], None]) -> BenchResult:
    """Train a few steps of what ``fit --config NAME`` with these flags trains, and write a text.

    Args:
        name: Of a config, or its path.
        flags: Of ``fit``.
        say: Is told what is under way.

    Raises:
        UserError: ``fit`` would refuse them, or the bench has to.
        SettingError: The same, of the model's settings.
    """
    with tempfile.TemporaryDirectory(prefix="llama-lab-bench-") as folder:
        with redirect_stdout(sys.stderr):
            cli = BenchCLI(["--config", name, *flags], Path(folder) / "run")
            setting = cli.model.compile_setting
            first = "" if setting is False else "compiling the blocks where that is due, then "
            say(f"{name}: {first}timing steps of training")
            cli.time_steps()
        return conclude(name, cli, say)


def conclude(name: str, cli: BenchCLI, say: Callable[[str], None]) -> BenchResult:
    """The ceilings, decoding, and all numbers together."""
    trainer, module, watch = cli.trainer, cli.model, cli.watch
    data, device = data_of(trainer), trainer.strategy.root_device
    seconds = watch.timed.seconds
    if seconds[0] >= SLOW_STEP:
        say(f"a step takes {seconds[0]:,.0f} s: one was timed, without a warm-up")
    say("timing ceilings and decoding")
    dtype = product_dtype(trainer.precision_plugin.forward_context, device)
    # The run has measured it once, briefly. The machine may have been busy with something else.
    ceiling = max(cli.metrics.ceiling, matmul_ceiling(device, dtype, CEILING_SECONDS))
    bandwidth = memory_bandwidth(device, BANDWIDTH_SECONDS)
    tokens = data.config.batch_size * data.context
    rate = tokens * len(seconds) / sum(seconds)
    flops = rate * cli.metrics.flops_per_token
    step = measured_step(cli, flops / ceiling, Ceilings(device, dtype, ceiling, bandwidth))
    about = describe_device(device, str(trainer.precision))
    return BenchResult(
        name=name,
        device=device.type,
        device_name=about["name"],
        threads=about["threads"],
        precision=about["precision"],
        compiled=module.compilation.compiled,
        compiled_whole=module.compilation.whole,
        compiled_because=module.compilation.because,
        parameters=count_parameters(module.decoder_config).total,
        flops_per_token=cli.metrics.flops_per_token,
        batch_size=data.config.batch_size,
        context=data.context,
        tokens_per_step=tokens,
        steps=len(seconds),
        tokens_per_second=rate,
        flops_per_second=flops,
        mfu=step.mfu,
        matmul_ceiling_flops_per_second=ceiling,
        memory_bandwidth_bytes_per_second=bandwidth,
        peak_memory_bytes=watch.peak_bytes,
        step_ms=step_ms(seconds),
        share=dict(step.share),
        # The Trainer has moved the network to the CPU when it ended.
        decoding=decoding_speed(module.network.to(device), bandwidth),
        limit=limit_of(step),
        versions=versions(),
    )


class Ceilings(NamedTuple):
    """What was measured of a device, at the precision of a run."""

    device: torch.device
    dtype: torch.dtype
    flops_per_second: float
    bytes_per_second: float


def measured_step(cli: BenchCLI, mfu: float, ceilings: Ceilings) -> Step:
    """The step and its settings, as the rules about limits read them."""
    trainer, module, watch = cli.trainer, cli.model, cli.watch
    data, device = data_of(trainer), ceilings.device
    phases = watch.profiled.phases
    seconds = statistics.median(watch.timed.seconds)
    return Step(
        share={phase: spent / sum(phases.values()) for phase, spent in phases.items()},
        seconds=seconds,
        mfu=mfu,
        bandwidth_share=traffic_share(cli, seconds, ceilings.bytes_per_second),
        bf16_gain=bf16_gain(ceilings),
        threads=torch.get_num_threads(),
        cores=cores(),
        thread_gain=thread_gain(ceilings),
        n_layers=module.decoder_config.n_layers,
        batch_size=data.config.batch_size,
        accumulation=trainer.accumulate_grad_batches,
        num_workers=data.config.num_workers,
        corpus_fits=len(data.tokens.train) <= DEVICE_TOKENS,
        log_interval=trainer.log_every_n_steps,  # type: ignore[attr-defined]
        optimizer=module.optimizer_config.kind,
        compiled=module.compilation.compiled,
        can_compile=missing_compiler(device.type) is None,
    )


def step_ms(seconds: list[float]) -> StepMs:
    """Of steps that took so long."""
    each = [1e3 * s for s in seconds]
    return StepMs(median=statistics.median(each), min=min(each), max=max(each))


def decoding_speed(decoder: Decoder, bandwidth: float) -> DecodingSpeed:
    """Write within the context, so that no window is read anew, again and again; the median."""
    room = decoder.config.context_length
    prompt = min(max(1, room // 2), LONGEST_PROMPT)
    few = max(1, min(8, room - prompt - 1))
    per_token = time_decoding(decoder, prompt, few) / few
    tokens = max(1, min(room - prompt - 1, int(DECODING_SECONDS / per_token)))
    rounds = max(1, min(25, int(DECODING_SECONDS / (per_token * tokens))))
    rate = statistics.median(tokens / time_decoding(decoder, prompt, tokens) for _ in range(rounds))
    context = min(room, prompt + tokens // 2)
    size = decoding_bytes(decoder.config, context, decoder.head_weight.dtype)
    return DecodingSpeed(
        tokens_per_second=rate,
        context=context,
        bytes_per_token=size,
        bandwidth_share=rate * size / bandwidth,
    )


def bf16_gain(found: Ceilings) -> float | None:
    """How many times as high the ceiling of bfloat16 is; None for a run in 16 bits, and where the
    device does not multiply that."""
    if found.dtype.itemsize <= 2 or not multiplies(found.device, torch.bfloat16):
        return None
    other = matmul_ceiling(found.device, torch.bfloat16, CEILING_SECONDS)
    return other / found.flops_per_second


def thread_gain(found: Ceilings) -> float | None:
    """How many times as high the ceiling is on all cores; None where they compute, or a GPU."""
    # By name: threads are the CPU's alone.
    if found.device.type != "cpu" or torch.get_num_threads() >= cores():
        return None
    with computing_on(cores()):
        other = matmul_ceiling(found.device, found.dtype, CEILING_SECONDS)
    return other / found.flops_per_second


def traffic_share(cli: BenchCLI, seconds: float, bandwidth: float) -> float | None:
    """The memory's bandwidth that a step must have had: all that training holds is written once and
    read once. None where what it holds is not counted at the run's precision.
    """
    trainer, data = cli.trainer, data_of(cli.trainer)
    precision: Any = trainer.precision
    if precision not in PRECISIONS:
        return None
    accumulation = trainer.accumulate_grad_batches
    held = training_memory(
        cli.model.decoder_config,
        precision,
        OPTIMIZERS[cli.model.optimizer_config.kind].states,
        batch_size=data.config.batch_size // accumulation,
        context=data.context,
        averages=cli.model.averaging_config.kind != "none",
    )
    moved = 2 * (held.total + (accumulation - 1) * held.activations)
    return moved / seconds / bandwidth


def cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # no macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
