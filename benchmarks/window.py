"""What a window saves: attention over long texts, with all keys, a mask, and a window of 256.

    python benchmarks/window.py

One attention layer, forward and backward, on the CPU, in three ways: full attention; the window as
nothing but a T × T mask on it; and the window as the model has it, in blocks. A step's time is
taken in turns, so that a noisy machine disturbs all alike (medians, and medians of the turns'
ratios to the blocks), and the peak memory of a step in a process of its own. Fused attention holds
no scores, with or without a window, and the blocks' overlap costs a little beside it; beside a
mask, and where scores are held (here by dropout on them), blocks save most of the memory. The bar:
at 16 windows the blocks are at least twice as fast as either.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
import time
from pathlib import Path

import torch

from llama_lab.model.attention import Attention
from llama_lab.model.cache import DecoderCache
from llama_lab.model.decoder import DecoderConfig
from llama_lab.model.masks import AttentionMask, Position

DIM, N_HEADS, N_KV_HEADS, WINDOW = 256, 4, 2, 256
LENGTHS = (512, 1024, 2048, 4096, 8192)
HELD_LENGTHS = (1024, 2048, 4096)
TURNS = 5


class MaskedPosition(Position):
    """A window that saves nothing: all scores are computed, and most of them masked."""

    def mask_for(self, past: int, length: int, device: torch.device) -> AttentionMask:
        """The whole mask, one byte a score."""
        seen = torch.ones(length, length, dtype=torch.bool, device=device).tril_()
        return AttentionMask(seen.triu_(1 - WINDOW), is_causal=False)


WAYS = {"full": Position, "mask": MaskedPosition, "blocks": lambda: Position(WINDOW)}


class Step:
    """Forward and backward of one attention layer over ``length`` tokens."""

    def __init__(self, way: str, length: int, dropout: float) -> None:
        self.position = WAYS[way]()
        self.attention = Attention(
            DIM, N_HEADS, N_KV_HEADS, qkv_bias=False, output_bias=False, dropout=dropout
        )
        self.x = torch.randn(1, length, DIM, requires_grad=True)

    def run(self) -> float:
        """Seconds."""
        began = time.perf_counter()
        positions = self.position.at(0, self.x.size(1), self.x.device)
        self.attention(self.x, positions).sum().backward()
        return time.perf_counter() - began


def peak_mib(way: str, length: int, dropout: float) -> float:
    """What a step adds at most to the memory of this process, in MiB; nan where not on Linux."""
    torch.set_num_threads(1)
    Step(way, 3 * WINDOW, dropout).run()  # the code itself is read into memory
    step = Step(way, length, dropout)
    status = Path("/proc/self/status")
    if not status.exists():
        return math.nan
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far

    def kib(name: str) -> int:
        return int(next(x for x in status.read_text().splitlines() if name in x).split()[1])

    before = kib("VmRSS")
    step.run()
    return (kib("VmHWM") - before) / 1024


def compare(length: int, dropout: float) -> None:
    """One row."""
    steps = [Step(way, length, dropout) for way in WAYS]
    for step in steps:
        step.run()
    turns = [[step.run() for step in steps] for _ in range(TURNS)]
    times = [1e3 * statistics.median(column) for column in zip(*turns, strict=True)]
    faster = [statistics.median(turn[i] / turn[-1] for turn in turns) for i in (0, 1)]
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        memory = pool.starmap(peak_mib, [(way, length, dropout) for way in WAYS], chunksize=1)
    smaller = [memory[i] / memory[-1] for i in (0, 1)]
    print(
        f"{length:6} |{cells(times, '9.1f')} |{cells(faster, '6.2f')} "
        f"|{cells(memory, '7.0f')} |{cells(smaller, '6.2f')}",
        flush=True,
    )


def cells(values: list[float], form: str) -> str:
    """Numbers side by side."""
    return "".join(format(value, form) for value in values)


def cache_bytes(window: int | None, length: int) -> int:
    """Of the keys and values of one layer, one text."""
    config = DecoderConfig.from_dict(
        {
            "dim": DIM,
            "n_layers": 1,
            "context_length": length,
            "attention": {"n_heads": N_HEADS, "n_kv_heads": N_KV_HEADS, "window": window},
        }
    )
    layer = DecoderCache(config, 1, device="meta").layers[0]
    return layer.keys.nbytes + layer.values.nbytes


def main() -> None:
    """Run and report."""
    # Memory of a freed tensor goes back at once: a child's peak is then that of its tensors.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    torch.set_num_threads(1)
    print(f"one layer, width {DIM}, {N_HEADS} heads, window {WINDOW}, torch {torch.__version__}")
    for title, dropout, lengths in (("fused", 0.0, LENGTHS), ("scores held", 0.1, HELD_LENGTHS)):
        print(
            f"{title}:\ntokens |  full ms     mask   blocks | x full, mask "
            "|   full   mask blocks MiB | x full, mask"
        )
        for length in lengths:
            compare(length, dropout)
    for length in LENGTHS:
        full, windowed = (cache_bytes(window, length) / 2**20 for window in (None, WINDOW))
        print(f"cache of {length} tokens: {full:.2f} MiB, windowed {windowed:.2f} MiB")


if __name__ == "__main__":
    main()
