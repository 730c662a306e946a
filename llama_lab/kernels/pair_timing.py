"""Timing of two writings against each other, after a check that they compute the same.

Both are timed in every turn, one right after the other, and the first in every second turn is the
other one: whatever else the machine does then slows both alike, and a turn's ratio stays fair where
its two times do not.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from llama_lab.errors import RunError
from llama_lab.inspect.memory import PRECISIONS
from llama_lab.kernels.inputs import Bench, Pair, Skipped, Writing
from llama_lab.kernels.kernel_study import PartStudy
from llama_lab.kernels.pairs import PARTS
from llama_lab.model.devices import synchronise
from llama_lab.model.initialise import seeded_generator
from llama_lab.studies.statistics import median_interval

Outcome = Literal["faster", "slower", "undecided", "skipped"]

WARM_UP = 3
"""Calls before the first that counts; the first of a compiled writing compiles it."""

# Largest difference over the largest entry: sums of thousands of products in another order.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 3e-2}


@dataclass(frozen=True, kw_only=True)
class PartResult:
    """A pair at one size."""

    part: str
    size: str
    is_same: bool
    """Whether both writings compute the same."""
    first: str = ""
    second: str = ""
    note: str = ""
    skipped: str = ""
    """Why it was not timed; all below is then empty."""
    first_seconds: float | None = None
    """Of one call: median over the turns."""
    second_seconds: float | None = None
    ratio: float | None = None
    """How many times as fast the second is: median over the turns of first / second."""
    low: float | None = None
    high: float | None = None
    """95 % interval of that median, by the sign test."""
    ratios: list[float] = field(default_factory=list)
    """Of every turn."""
    first_kept: int | None = None
    """Bytes that wait for the backward, which is null where there is none to be counted."""
    second_kept: int | None = None
    deviation: float | None = None
    """Largest difference in outputs and gradients, over the largest entry."""

    @property
    def outcome(self) -> Outcome:
        """What the interval says of the second."""
        if self.low is None or self.high is None:
            return "skipped"
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "undecided"


def time_parts(study: PartStudy, device: torch.device) -> Iterator[PartResult]:
    """Every part at every size, as soon as it is timed.

    Raises:
        RunError: Two writings that must compute the same do not.
    """
    for size, sizes in study.sizes.items():
        for name in study.parts:
            yield time_part(study, name, size, Bench(sizes, device, study.precision))


def time_part(study: PartStudy, name: str, size: str, bench: Bench) -> PartResult:
    """One part at one size."""
    part = PARTS[name]
    about: dict[str, Any] = {"part": name, "size": size, "is_same": part.is_same, "note": part.note}
    try:
        pair = part.build(bench)
    except Skipped as reason:
        return PartResult(**about, skipped=str(reason))
    deviation = check_equal(name, pair, bench, study.backward) if part.is_same else None
    runners = [Runner(writing, bench, study.backward) for writing in pair]
    kept = [runner.kept() for runner in runners]
    turns = alternate(runners, study.turns, study.seconds)
    ratios = [first / second for first, second in turns]
    low, high = median_interval(ratios) or (None, None)
    return PartResult(
        **about,
        first=pair.first.label,
        second=pair.second.label,
        first_seconds=median(first for first, _ in turns),
        second_seconds=median(second for _, second in turns),
        ratio=median(ratios),
        low=low,
        high=high,
        ratios=ratios,
        first_kept=kept[0],
        second_kept=kept[1],
        deviation=deviation,
    )


class Runner:
    """Calls of a writing: its forward and, where asked for and where it has one, its backward."""

    def __init__(self, writing: Writing, bench: Bench, backward: bool) -> None:
        self.writing = writing
        self.bench = bench
        self.backward = backward and bool(writing.leaves)
        self.cotangents = [
            torch.randn(output.shape, generator=seeded_generator(0, f"cotangent {i}")).to(output)
            for i, output in enumerate(self.forward())
        ]

    def forward(self) -> tuple[Tensor, ...]:
        """The outputs."""
        with nullcontext() if self.backward else torch.no_grad(), self.bench.autocast():
            outputs = self.writing.run()
        return outputs if isinstance(outputs, tuple) else (outputs,)

    def gradients(self, outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Of the leaves; none where there is no backward."""
        if not self.backward:
            return ()
        return torch.autograd.grad(outputs, self.writing.leaves, self.cotangents)

    def __call__(self) -> None:
        self.gradients(self.forward())

    def seconds(self, calls: int) -> float:
        """Of one call, over so many."""
        began = time.perf_counter()
        for _ in range(calls):
            self()
        synchronise(self.bench.device)
        return (time.perf_counter() - began) / calls

    def kept(self) -> int | None:
        """Bytes of the storages that a forward makes and autograd keeps for the backward.

        What two forwards both keep was there before: inputs, weights, tables.
        """
        if not self.backward:
            return None
        first, second = self._storages(), self._storages()
        return sum(size for key, (size, _) in second.items() if key not in first)

    def _storages(self) -> dict[int, tuple[int, Any]]:
        found: dict[int, tuple[int, Any]] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            # Held, so that no other storage takes its address meanwhile.
            found[storage._cdata] = (storage.nbytes(), storage)
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            self.forward()
        return found


def alternate(runners: list[Runner], turns: int, seconds: float) -> list[tuple[float, float]]:
    """Seconds of one call of the first and of the second, in each turn."""
    calls = []
    for runner in runners:
        runner.seconds(WARM_UP)
        calls.append(max(1, math.ceil(seconds / runner.seconds(WARM_UP))))
    found = []
    with no_garbage_collection():
        for turn in range(turns):
            times = [0.0, 0.0]
            for i in (0, 1) if turn % 2 == 0 else (1, 0):
                times[i] = runners[i].seconds(calls[i])
            found.append((times[0], times[1]))
    return found


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A collection in the middle of a turn would count for one of the two."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def check_equal(name: str, pair: Pair, bench: Bench, backward: bool) -> float:
    """The largest difference in outputs and gradients, over the largest entry.

    Raises:
        RunError: It is above what rounding explains.
    """
    values = []
    for writing in pair:
        runner = Runner(writing, bench, backward)
        outputs = runner.forward()
        aligned = writing.aligned(runner.gradients(outputs)) if runner.backward else ()
        values.append([tensor.detach().float().clone() for tensor in (*outputs, *aligned)])
    deviation = max(apart(a, b) for a, b in zip(*values, strict=True))
    tolerance = TOLERANCES[PRECISIONS[bench.precision].products]
    if not deviation <= tolerance:
        raise RunError(
            f"part {name}: {pair.first.label} and {pair.second.label} do not compute the same: "
            f"they differ by {deviation:.2g} of the largest entry, rounding explains {tolerance:g}"
        )
    return deviation


def apart(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest entry."""
    return ((a - b).abs().max() / a.abs().max().clamp_min(1e-30)).item()
