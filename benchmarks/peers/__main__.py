"""A training step of llama-lab beside nanoGPT's, litgpt's, transformers' and torchtitan's.

    NANOGPT=folder python -m benchmarks.peers [--shapes small large] [--models llama-lab ...]

Every model runs at its best of float32 and bf16 autocast, eager and compiled, which is found first;
then the bests take turns in this one process. Medians over turns, in CPU time on one thread (wall
time on more), and the median, least and greatest of the turns' ratios to the best peer. The bar:
1.03 of the best peer. Text is tinyshakespeare where ``data/tinyshakespeare.txt`` (or ``--text``) has
it, random tokens elsewhere. Whole-model compiling takes half a minute for each peer and precision.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from .models import BUILDERS, OWN, Absent, Shape
from .steps import PRECISIONS, WAYS, Batch, Ratio, Training, Way, take_turns, turn

SHAPES = {
    "small": Shape(n_layers=4, dim=128, n_heads=4, context=64, rows=12),
    "large": Shape(n_layers=6, dim=384, n_heads=6, context=256, rows=16),
}
STEPS = {"small": 6, "large": 1}
BAR = 1.03


def batches_of(shape: Shape, n: int, text: Path) -> list[Batch]:
    """``n`` batches."""
    if text.is_file():
        words = text.read_text(encoding="utf-8")
        ids = {c: i for i, c in enumerate(sorted(set(words)))}
        tokens = torch.tensor([ids[c] for c in words[: n * shape.rows * (shape.context + 1)]])
    else:
        print(f"no {text}: random tokens")
        tokens = torch.randint(shape.vocabulary, (n * shape.rows * (shape.context + 1),))
    rows = tokens.view(n, shape.rows, shape.context + 1)
    return [(row[:, :-1].contiguous(), row[:, 1:].contiguous()) for row in rows]


def best_way(name: str, shape: Shape, ways: list[Way], batches: list[Batch]) -> tuple[Way, Training]:
    """The fastest way of a model, by the least of four turns; it is kept as it is."""
    found: list[tuple[float, Way, Training]] = []
    for way in ways:
        torch.compiler.reset()
        try:
            training = Training(name, shape, way)
            for _ in range(2):
                turn(training, batches)
            seconds = min(turn(training, batches) for _ in range(4))
        except Absent:
            raise
        except Exception as error:  # a compiler fails in many ways
            print(f"  {name:13} {way!s:17} impossible: {str(error).splitlines()[0][:90]}")
            continue
        print(f"  {name:13} {way!s:17} {1e3 * seconds:8.2f} ms", flush=True)
        found.append((seconds, way, training))
    if not found:
        raise Absent("it runs in no way")
    _, way, training = min(found, key=lambda f: f[0])
    return way, training


def compare(name: str, models: list[str], ways: list[Way], turns: int, text: Path) -> Any:
    """One shape: every model's best way, and their turns side by side."""
    shape = SHAPES[name]
    print(f"\n{name}: {shape}")
    batches = batches_of(shape, STEPS[name], text)
    bests: dict[str, tuple[Way, Training]] = {}
    for model in models:
        try:
            bests[model] = best_way(model, shape, ways, batches)
        except Absent as error:
            print(f"  {model:13} skipped: {error}")
    times = take_turns({m: training for m, (_, training) in bests.items()}, batches, turns)
    medians = {model: statistics.median(ts) for model, ts in times.items()}
    peers = [model for model in medians if model != OWN]
    best = min(peers or medians, key=lambda model: medians[model])
    rows = []
    for model in sorted(medians, key=lambda m: medians[m]):
        ratio = Ratio.of(times[model], times[best])
        way = bests[model][0]
        print(f"  {model:13} {way!s:17} {1e3 * medians[model]:8.2f} ms  {ratio} of {best}")
        rows.append(
            {"model": model, "way": str(way), "ms": 1e3 * medians[model], "ratio": vars(ratio)}
        )
    own = next((row for row in rows if row["model"] == OWN), None)
    if own is not None and peers:
        print(f"  bar {BAR}: {'held' if own['ratio']['median'] <= BAR else 'missed'}")
    return {"shape": vars(shape), "best_peer": best, "rows": rows}


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--models", nargs="+", default=list(BUILDERS), choices=BUILDERS)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--eager", action="store_true", help="nothing is compiled")
    parser.add_argument("--text", type=Path, default=Path("data/tinyshakespeare.txt"))
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args()
    ways = [w for w in WAYS if w.precision in options.precisions]
    ways = [w for w in ways if not (options.eager and w.compiled)]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    results = {
        name: compare(name, options.models, ways, options.turns, options.text)
        for name in options.shapes
    }
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
