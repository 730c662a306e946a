"""A step of Muon that makes matrices of one shape orthogonal together, against torch's own.

    python benchmarks/muon.py

Both step the block matrices of the same decoder, in turns, on one CPU thread and in its CPU time,
so that other work on the machine counts little. Prints medians over turns, and the median ratio.
"""

from __future__ import annotations

import statistics
import time

import torch

from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from llama_lab.training.muon import Muon
from llama_lab.training.optimizers import block_matrices

TURNS, STEPS = 9, 5
SIZES = {
    "4 layers of 128": {"dim": 128, "n_layers": 4, "attention": {"n_heads": 4}},
    "6 layers of 384": {"dim": 384, "n_layers": 6, "attention": {"n_heads": 6}},
}


def optimizer(kind: type[torch.optim.Muon], sizes: dict[str, object]) -> torch.optim.Muon:
    """Over the blocks' matrices, with gradients that stay."""
    model = Decoder(DecoderConfig.from_dict({**sizes, "vocab_size": 65}))
    initialise(model, 0)
    matrices = block_matrices(model)
    draw = torch.Generator().manual_seed(0)
    for matrix in matrices:
        matrix.grad = torch.randn(matrix.shape, generator=draw)
    return kind(matrices, lr=1e-3)


def step_ms(muon: torch.optim.Muon) -> float:
    """CPU time of a step, in milliseconds."""
    began = time.process_time()
    for _ in range(STEPS):
        muon.step()
    return (time.process_time() - began) / STEPS * 1e3


def main() -> None:
    """Run and report."""
    torch.set_num_threads(1)
    for name, sizes in SIZES.items():
        ours, theirs = optimizer(Muon, sizes), optimizer(torch.optim.Muon, sizes)
        step_ms(ours), step_ms(theirs)
        pairs = [(step_ms(ours), step_ms(theirs)) for _ in range(TURNS)]
        ratios = [here / there for here, there in pairs]
        here, there = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"{name}: together {here:.1f} ms, torch.optim.Muon {there:.1f} ms, ratio "
            f"{statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
