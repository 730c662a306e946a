"""Time of a training step, measured in a short trial, and time of decoding."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from llama_lab.generation.generate import generate
from llama_lab.generation.sampling import SamplingConfig
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.devices import synchronise
from llama_lab.model.initialise import initialise
from llama_lab.training.optimizers import OptimizerConfig, build_optimizer

REPEATS = 4
AUTOCAST = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class StepTime(NamedTuple):
    """Seconds."""

    step: float
    """One optimiser step: forward, backward, update."""
    forward: float
    """One microbatch as validation reads it."""


def time_step(
    decoder: Mapping[str, Any],
    optimizer: Mapping[str, Any],
    *,
    batch_size: int,
    accumulation: int,
    context: int,
    precision: str,
    device: str,
) -> StepTime:
    """Time the bare step of a decoder on random tokens: medians, the first one left out.

    Args:
        decoder: Settings of the decoder, its vocabulary among them.
        optimizer: Settings of the optimiser.
        batch_size: Sequences per optimiser step.
        accumulation: Microbatches that they are divided into.
        context: Tokens per sequence.
        precision: As ``--trainer.precision`` says it.
        device: Type of the device that it trains on.
    """
    model = Decoder(DecoderConfig.from_dict(decoder))
    initialise(model, 0)
    place = torch.device(device)
    model.to(place)
    update = build_optimizer(model, OptimizerConfig(**optimizer))
    rows = max(1, batch_size // accumulation)
    shape = (rows, context + 1)
    ids = torch.randint(
        model.config.vocab_size or 1, shape, generator=torch.Generator().manual_seed(0)
    ).to(place)
    inputs, targets = ids[:, :-1], ids[:, 1:]

    def loss() -> torch.Tensor:
        lower = AUTOCAST.get(precision)
        with torch.autocast(device, dtype=lower) if lower else nullcontext():
            return model.score(inputs, targets, reduction="mean")

    def step() -> None:
        for _ in range(accumulation):
            (loss() / accumulation).backward()
        update.step()
        update.zero_grad()

    def forward() -> None:
        with torch.no_grad():
            loss()

    return StepTime(_median(step, place), _median(forward, place))


def _median(work: Callable[[], None], device: torch.device) -> float:
    seconds = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        work()
        synchronise(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def time_decoding(decoder: Decoder, context: int, tokens: int) -> float:
    """Seconds for ``tokens`` ids, one text, behind ``context`` random ids, with the cache."""
    n_ids = decoder.config.vocab_size
    assert n_ids is not None
    draws = torch.Generator().manual_seed(0)
    prompt = torch.randint(n_ids, (context,), generator=draws).tolist()
    ids = generate(
        decoder,
        prompt,
        max_new_tokens=tokens + 1,
        sampling=SamplingConfig(temperature=0.0),
        generator=draws,
        n_ids=n_ids,
    )
    next(ids)  # reads the prompt
    began = time.perf_counter()
    for _ in ids:
        pass
    return time.perf_counter() - began


@contextmanager
def computing_on(threads: int) -> Iterator[None]:
    """Torch on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
