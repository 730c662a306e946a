"""The numbers of the README, measured through the public commands.

    python benchmarks/readme_numbers.py [help] [nanogpt] [best] [llama]

tinyshakespeare is downloaded, or taken from data/tinyshakespeare.txt. Runs go to logs/ as always.
"""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path


def lab(*arguments: str) -> None:
    """Run ``llama-lab`` and let it print."""
    subprocess.run([sys.executable, "-m", "llama_lab", *arguments], check=True)


def newest(name: str) -> Path:
    """The newest run folder of a name."""
    return max(Path("logs", name).glob("run_*"), key=lambda p: p.stat().st_mtime_ns)


def validations(run: Path) -> list[tuple[int, float]]:
    """(step, validation loss) of a run."""
    with (run / "metrics.csv").open() as file:
        return [
            (int(r["step"]), float(r["val_loss"])) for r in csv.DictReader(file) if r["val_loss"]
        ]


def measure_help() -> str:
    """Median seconds of ``llama-lab --help`` over eleven calls."""
    times = []
    for _ in range(11):
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "llama_lab", "--help"], check=True, stdout=subprocess.DEVNULL
        )
        times.append(time.perf_counter() - began)
    return f"llama-lab --help: {statistics.median(times):.2f} s (bar 0.5)"


def final_losses(name: str, seeds: int, bar: float) -> str:
    """Final loss of a config over the whole validation split, of so many seeds."""
    losses = []
    for seed in range(seeds):
        lab("fit", "--config", f"{name}.yaml", "--seed_everything", str(seed))
        losses.append(validations(newest(name))[-1][1])
    receipt = json.loads((newest(name) / "receipt.json").read_text())
    each = ", ".join(f"{loss:.4f}" for loss in losses)
    return (
        f"{name}.yaml: final validation loss {each}; mean {statistics.mean(losses):.4f} "
        f"(bar {bar:.2f}), {receipt['parameters']['total']:,} parameters (bar 804,096)"
    )


def measure_nanogpt() -> str:
    """nanoGPT's budget with LLaMA's parts."""
    return final_losses("nanogpt-cpu", 3, 1.70)


def measure_best() -> str:
    """The best recipe found for that budget."""
    return final_losses("nanogpt-cpu-best", 5, 1.53)


def measure_llama() -> str:
    """Best loss of the default config, and where in the budget it falls."""
    lab("fit", "--config", "llama.yaml")
    losses = validations(newest("llama"))
    step, best = min(losses, key=lambda row: row[1])
    part = step / losses[-1][0]
    return f"llama.yaml: best {best:.4f} (bar 1.20) at {part:.0%} of the budget (bar 80 %)"


MEASURES = {
    "help": measure_help,
    "nanogpt": measure_nanogpt,
    "best": measure_best,
    "llama": measure_llama,
}

if __name__ == "__main__":
    print("\n".join(["", *[MEASURES[name]() for name in sys.argv[1:] or MEASURES]]))
