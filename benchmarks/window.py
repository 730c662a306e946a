"""What a window saves: attention over long texts, all keys against a window of 256.

    python benchmarks/window.py

One attention layer, forward and backward, on the CPU: a step's time in turns, so that a noisy
machine disturbs both alike (medians, and the median of the turns' ratios), and the peak memory
of a step in a process of its own. Fused attention holds no scores, with or without a window, and
the blocks' overlap costs a little; so a window saves memory where scores are held (here by dropout
on them) and in the cache. The bar: at 16 windows the windowed layer is at least twice as fast.
"""

from __future__ import annotations

import math
import multiprocessing
import statistics
import time
from pathlib import Path

import torch

from llama_lab.model.attention import Attention
from llama_lab.model.cache import DecoderCache
from llama_lab.model.decoder import DecoderConfig
from llama_lab.model.places import Position

DIM, N_HEADS, N_KV_HEADS, WINDOW = 256, 4, 2, 256
LENGTHS = (512, 1024, 2048, 4096, 8192)
HELD_LENGTHS = (1024, 2048, 4096)
TURNS = 5


class Step:
    """Forward and backward of one attention layer over ``length`` tokens."""

    def __init__(self, window: int | None, length: int, dropout: float) -> None:
        self.position = Position(window)
        self.attention = Attention(
            DIM, N_HEADS, N_KV_HEADS, qkv_bias=False, output_bias=False, dropout=dropout
        )
        self.x = torch.randn(1, length, DIM, requires_grad=True)

    def run(self) -> float:
        """Seconds."""
        began = time.perf_counter()
        places = self.position.at(0, self.x.size(1), self.x.device)
        self.attention(self.x, places).sum().backward()
        return time.perf_counter() - began


def peak_mib(window: int | None, length: int, dropout: float) -> float:
    """What a step adds at most to the memory of this process, in MiB; nan where not on Linux."""
    torch.set_num_threads(1)
    Step(None, 64, dropout).run()
    step = Step(window, length, dropout)
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
    full, windowed = (Step(window, length, dropout) for window in (None, WINDOW))
    full.run()
    windowed.run()
    turns = [(full.run(), windowed.run()) for _ in range(TURNS)]
    times = [1e3 * statistics.median(column) for column in zip(*turns, strict=True)]
    ratio = statistics.median(a / b for a, b in turns)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        arguments = [(window, length, dropout) for window in (None, WINDOW)]
        memory = pool.starmap(peak_mib, arguments, chunksize=1)
    print(
        f"{length:6} {times[0]:9.1f} {times[1]:9.1f} {ratio:7.2f} "
        f"{memory[0]:10.0f} {memory[1]:10.0f} {memory[0] / memory[1]:7.2f}",
        flush=True,
    )


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
    print(f"one layer, width {DIM}, {N_HEADS} heads, window {WINDOW}, torch {torch.__version__}")
    for title, dropout, lengths in (("fused", 0.0, LENGTHS), ("scores held", 0.1, HELD_LENGTHS)):
        print(f"{title}:\ntokens   full ms   windowed   ratio   full MiB   windowed   ratio")
        for length in lengths:
            compare(length, dropout)
    for length in LENGTHS:
        full, windowed = (cache_bytes(window, length) / 2**20 for window in (None, WINDOW))
        print(f"cache of {length} tokens: {full:.2f} MiB, windowed {windowed:.2f} MiB")


if __name__ == "__main__":
    main()
