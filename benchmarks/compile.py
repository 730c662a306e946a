"""What compiling the blocks saves in a step, what it costs at the start, and when that is repaid.

    python benchmarks/compile.py [SHAPE:PRECISION ...]

A training step (forward, loss, backward, AdamW) on one CPU thread, eager against compiled, in
turns: medians, and the median of the turns' ratios. Each row is a process of its own with an empty
cache; the start is the first compiled step less the first eager one. All are seconds of CPU time,
the C++ compiler's included, which other work on the machine hardly disturbs. The last lines are
what the rows say of the constants of ``--model.compile auto``, which takes the smallest saving.
Beside them, how far losses drift apart within 20 steps from equal weights.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from typing import Any, NamedTuple

import torch
import torch._inductor.config

from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from llama_lab.training.compiling import compile_regions


class Shape(NamedTuple):
    """A decoder and its batch."""

    n_layers: int
    dim: int
    n_heads: int
    context: int
    rows: int
    turns: int

    @property
    def entries(self) -> int:
        """Numbers in a layer's input."""
        return self.rows * self.context * self.dim


SHAPES = {"small": Shape(4, 128, 4, 64, 12, 60), "large": Shape(6, 384, 6, 256, 16, 7)}
PRECISIONS = {"32-true": None, "bf16-mixed": torch.bfloat16}
VOCABULARY, LEARNING_RATE, DRIFT_STEPS = 65, 1e-3, 20


class Training:
    """A decoder with its optimiser, a step at a time."""

    def __init__(self, shape: Shape, dtype: torch.dtype | None, *, compiled: bool) -> None:
        config = DecoderConfig.from_dict(
            {
                "dim": shape.dim,
                "n_layers": shape.n_layers,
                "context_length": shape.context,
                "vocab_size": VOCABULARY,
                "attention": {"n_heads": shape.n_heads},
            }
        )
        self.decoder, self.dtype = Decoder(config), dtype
        initialise(self.decoder, 0)
        if compiled:
            compile_regions(self.decoder, training=True)
        self.optimizer = torch.optim.AdamW(self.decoder.parameters(), lr=LEARNING_RATE, fused=True)

    def step(self, tokens: torch.Tensor) -> tuple[float, float]:
        """CPU seconds, and the loss."""
        began = cpu_seconds()
        self.optimizer.zero_grad()
        with torch.autocast("cpu", self.dtype, enabled=self.dtype is not None):
            hidden = self.decoder(tokens[:, :-1])
            loss = self.decoder.loss(hidden, tokens[:, 1:], reduction="mean")
        loss.backward()
        self.optimizer.step()
        return cpu_seconds() - began, loss.item()


def cpu_seconds() -> float:
    """Of this process, and of those that it started and that have ended."""
    ended = os.times()
    # Not os.times of this process: it counts in hundredths of a second.
    return time.process_time() + ended.children_user + ended.children_system


def measure(name: str, precision: str) -> dict[str, Any]:
    """One row: seconds of the start and of a step, eager and compiled."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape, dtype = SHAPES[name], PRECISIONS[precision]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        torch._inductor.config.compile_threads = 1  # here, and not in processes that go on
        both = [Training(shape, dtype, compiled=compiled) for compiled in (False, True)]
        batches = torch.randint(VOCABULARY, (shape.turns, shape.rows, shape.context + 1))
        first = [training.step(batches[0]) for training in both]
        turns = [[training.step(tokens) for training in both] for tokens in batches[1:]]
    drift = max(abs(a[1] - b[1]) for a, b in [first, *turns][:DRIFT_STEPS])
    return {
        "start": first[1][0] - first[0][0],
        "eager": statistics.median(a[0] for a, _ in turns),
        "compiled": statistics.median(b[0] for _, b in turns),
        "ratio": statistics.median(b[0] / a[0] for a, b in turns),
        "drift": drift,
    }


def saved_an_entry(name: str, row: dict[str, Any]) -> float:
    """Seconds saved in a layer for each number of its input."""
    shape = SHAPES[name]
    return row["eager"] * (1 - row["ratio"]) / (shape.n_layers * shape.entries)


def main() -> None:
    """Run and report."""
    wanted = [tuple(word.split(":")) for word in sys.argv[1:]]
    cases = wanted or [(name, precision) for precision in PRECISIONS for name in SHAPES]
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    print(
        f"torch {torch.__version__}\nshape precision    eager ms  compiled  ratio   start s  drift"
    )
    for name, precision in cases:
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            row = rows[name, precision] = pool.apply(measure, (name, precision))
        print(
            f"{name} {precision:11} {1e3 * row['eager']:9.1f} {1e3 * row['compiled']:9.1f} "
            f"{row['ratio']:6.3f} {row['start']:8.1f}  {row['drift']:.1e}",
            flush=True,
        )
    for (name, precision), row in rows.items():
        print(
            f"{name} {precision}: START_SECONDS {row['start']:.0f}, "
            f"ENTRY_SECONDS {saved_an_entry(name, row):.1e}"
        )


if __name__ == "__main__":
    main()
