"""The limit of a training step, found from measurements, and the setting that would help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Phase = Literal["data", "forward", "backward", "optimizer", "other"]
PHASES: tuple[Phase, ...] = get_args(Phase)

# From so much of a step on, a phase is what to look at first.
DATA_SHARE, OTHER_SHARE, OPTIMIZER_SHARE = 0.2, 0.25, 0.3
NEAR_CEILING = 0.5
"""An MFU that counts as near: norms, activations and softmax are time without FLOPs."""
NEAR_BANDWIDTH = 0.4
SMALL_LAYER_SECONDS = 1e-3
"""A layer's forward and backward are some hundred kernels, and starting one takes about 10 µs."""
USUAL_LOG_INTERVAL = 10
WORTHWHILE_GAIN = 1.5


@dataclass(frozen=True, kw_only=True)
class Step:
    """A training step as it was measured, and the settings that it was measured under."""

    share: Mapping[Phase, float]
    """Of the step's time; they sum to 1."""
    seconds: float
    mfu: float
    bandwidth_share: float | None
    """Of the memory's bandwidth, by what a step writes and reads once at least; None where that is
    not known."""
    bf16_gain: float | None
    """The matmul ceiling of bfloat16 over the run's; None where the run multiplies in 16 bits."""
    threads: int
    cores: int
    thread_gain: float | None
    """The matmul ceiling with a thread for every core over the run's; None where there is one, and
    off the CPU."""
    n_layers: int
    batch_size: int
    accumulation: int
    num_workers: int | None
    corpus_fits: bool
    """Whether the corpus is small enough to be held on the device."""
    log_interval: int
    optimizer: str
    compiled: bool
    can_compile: bool

    @property
    def computing(self) -> float:
        """Share of forward and backward."""
        return self.share["forward"] + self.share["backward"]

    @property
    def layer_seconds(self) -> float:
        """A layer's forward and backward of one microbatch."""
        return self.computing * self.seconds / (self.n_layers * self.accumulation)


def limit_of(step: Step) -> str:
    """One line: what limits the step, by which number, and what to set. Never what is set already.

    The first rule that applies speaks: what is beside forward and backward, then these.
    """
    return next(found for rule in RULES if (found := rule(step)) is not None)


def data_bound(step: Step) -> str | None:
    """Batches come too slowly."""
    if step.share["data"] < DATA_SHARE:
        return None
    workers = step.num_workers
    if workers is not None and step.corpus_fits:
        remedy = "--data.num_workers null holds the corpus on the device"
    elif step.corpus_fits:
        remedy = larger_batch(step)
    elif not workers:
        remedy = "--data.num_workers 2 reads ahead"
    else:
        remedy = f"--data.num_workers {2 * workers} (now {workers}) reads further ahead"
    return f"data bound: {step.share['data']:.0%} of a step waits for its batch; {remedy}"


def logging_bound(step: Step) -> str | None:
    """The Trainer, callbacks and loggers take what the device could have."""
    if step.share["other"] < OTHER_SHARE:
        return None
    share = f"{step.share['other']:.0%} of a step"
    if step.log_interval < USUAL_LOG_INTERVAL:
        return (
            f"logging bound: {share} goes to the Trainer and to metrics; "
            f"--trainer.log_every_n_steps 50 (now {step.log_interval}) reads them less often"
        )
    return f"overhead bound: {share} goes to the Trainer; {larger_batch(step)}"


def optimizer_bound(step: Step) -> str | None:
    """The update takes as long as forward and backward."""
    if step.share["optimizer"] < OPTIMIZER_SHARE:
        return None
    lighter = "" if step.optimizer == "adamw" else ", or --model.optimizer.kind adamw is lighter"
    return (
        f"optimiser bound: {step.share['optimizer']:.0%} of a step is the update, which costs the "
        f"same for any batch; a larger --data.batch_size (now {step.batch_size}) needs fewer of "
        f"them{lighter}"
    )


def thread_bound(step: Step) -> str | None:
    """Cores stand idle."""
    if step.thread_gain is None or step.thread_gain < WORTHWHILE_GAIN:
        return None
    if step.layer_seconds < SMALL_LAYER_SECONDS:  # too little to be shared
        return None
    return (
        f"thread bound: {step.computing:.0%} of a step is forward and backward, and matrices are "
        f"multiplied {step.thread_gain:.1f} times as fast on {step.cores} threads as on "
        f"{step.threads}; set OMP_NUM_THREADS={step.cores}"
    )


def compute_bound(step: Step) -> str | None:
    """The matrices come near what the device can do."""
    if step.mfu < NEAR_CEILING:
        return None
    if step.bf16_gain is not None and step.bf16_gain >= WORTHWHILE_GAIN:
        remedy = f"--trainer.precision bf16-mixed multiplies {step.bf16_gain:.1f} times as fast"
    else:
        remedy = "a smaller --model.decoder.dim or --model.decoder.n_layers is less work"
    return f"compute bound: MFU {step.mfu:.0%} of the measured matmul ceiling; {remedy}"


def bandwidth_bound(step: Step) -> str | None:
    """What is kept for the backward, written and read, fills the memory's bandwidth."""
    if step.bandwidth_share is None or step.bandwidth_share < NEAR_BANDWIDTH:
        return None
    if not step.compiled and step.can_compile:
        remedy = "--model.compile true fuses what lies between the matrices"
    elif step.bf16_gain is not None:
        remedy = "--trainer.precision bf16-mixed halves most of it"
    else:
        remedy = "a smaller --model.decoder.dim or --model.decoder.n_layers keeps less"
    return (
        f"memory-bandwidth bound: {step.bandwidth_share:.0%} of the measured bandwidth is what a "
        f"step must write and read (MFU {step.mfu:.0%}); {remedy}"
    )


def overhead_bound(step: Step) -> str | None:
    """Kernels end sooner than they are started."""
    if step.layer_seconds >= SMALL_LAYER_SECONDS:
        return None
    return (
        f"overhead bound: a layer takes {step.layer_seconds * 1e3:.2f} ms forward and backward, "
        f"about what starting its kernels takes (MFU {step.mfu:.0%}); {larger_batch(step)}"
        f"{compile_too(step)}"
    )


def kernel_bound(step: Step) -> str:
    """Neither ceiling is near: small matrices, and all that lies between them."""
    remedy = (
        "--model.compile true fuses what lies between the matrices"
        if not step.compiled and step.can_compile
        else "a wider --model.decoder.dim makes better use of this device"
    )
    return (
        f"kernel bound: MFU {step.mfu:.0%}; the matrices are small, and the rest of a layer costs "
        f"time without FLOPs; {remedy}"
    )


RULES: tuple[Callable[[Step], str | None], ...] = (
    data_bound,
    logging_bound,
    optimizer_bound,
    thread_bound,
    compute_bound,
    bandwidth_bound,
    overhead_bound,
    kernel_bound,
)


def larger_batch(step: Step) -> str:
    """More work at a time."""
    if step.accumulation > 1:
        return (
            f"a smaller --trainer.accumulate_grad_batches (now {step.accumulation}) is more work "
            "at a time"
        )
    return f"a larger --data.batch_size (now {step.batch_size}) is more work at a time"


def compile_too(step: Step) -> str:
    """The other way, where it is open."""
    can = not step.compiled and step.can_compile
    return ", or --model.compile true makes fewer kernels" if can else ""
