"""What a warm worker saves of the start-ups that separate `llama-lab fit` calls pay.

    python benchmarks/warm_workers.py

The same n runs twice: as n processes of `llama-lab fit`, and as n jobs of one worker of
`llama-lab ablate`, whose own start and whatever it does besides (a sample, the passages that it
shares with the text) count against it. A start-up is what a `fit` process takes beyond the wall
time in its receipt. In turns, so that a noisy machine disturbs both alike. The bar: at least 80 %
of (n - 1) start-ups are saved. The weights of each pair of runs must be equal to the bit.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from llama_lab.studies.pool import Job, Pool

RUNS, TURNS = 6, 3
FIT = [
    "--config=llama.yaml",
    "--model.decoder.dim=32",
    "--model.decoder.context_length=32",
    "--data.batch_size=8",
    "--data.val_fraction=0.02",
    "--trainer.accelerator=cpu",
    "--trainer.max_steps=20",
    "--trainer.val_check_interval=20",
]


def separate(folder: Path) -> tuple[float, float]:
    """Seconds of all processes, and the median of their start-ups."""
    starts, total = [], 0.0
    for seed in range(RUNS):
        root = folder / f"separate_{seed}"
        command = [sys.executable, "-m", "llama_lab", "fit", *FIT, f"--seed_everything={seed}"]
        began = time.perf_counter()
        subprocess.run(
            [*command, f"--trainer.default_root_dir={root}"], check=True, capture_output=True
        )
        seconds = time.perf_counter() - began
        receipt = json.loads((root / "logs/llama/run_0/receipt.json").read_text())
        starts.append(seconds - receipt["wall_seconds"])
        total += seconds
    return total, statistics.median(starts)


def warm(folder: Path) -> float:
    """Seconds of the same runs in one worker, its start and end among them."""
    jobs = [
        Job(
            str(seed),
            "train",
            {
                "arguments": [*FIT, f"--seed_everything={seed}", "--name=warm"],
                "folder": str(folder / f"warm_{seed}"),
                "scores": {},
                "decode": None,
                "probe": False,
            },
            folder / "log.txt",
        )
        for seed in range(RUNS)
    ]
    ends: list[str] = []
    began = time.perf_counter()
    with Pool(1, 1) as pool:
        pool.run(jobs, lambda job, answer: ends.append(answer["end"]), lambda jobs: None)
    assert ends == ["finished"] * RUNS, ends
    return time.perf_counter() - began


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Of a run's last checkpoint."""
    state: dict[str, torch.Tensor] = torch.load(run / "checkpoints/last.ckpt", weights_only=True)[
        "state_dict"
    ]
    return state


def main() -> None:
    """Run and report."""
    os.environ["OMP_NUM_THREADS"] = "1"
    shares = []
    for turn in range(TURNS):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            os.chdir(folder)
            (apart, start), together = separate(folder), warm(folder)
            for seed in range(RUNS):
                a = weights(folder / f"separate_{seed}/logs/llama/run_0")
                b = weights(folder / f"warm_{seed}")
                assert all(torch.equal(a[key], b[key]) for key in a), f"seed {seed} differs"
            os.chdir("/")
        shares.append((apart - together) / ((RUNS - 1) * start))
        print(
            f"turn {turn + 1}: {RUNS} processes {apart:.1f} s (start-up {start:.1f} s each), one "
            f"worker {together:.1f} s: {shares[-1]:.0%} of {RUNS - 1} start-ups saved",
            flush=True,
        )
    print(f"median {statistics.median(shares):.0%} (bar 80 %); all weights equal to the bit")


if __name__ == "__main__":
    main()
