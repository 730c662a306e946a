"""A training step of llama-lab beside nanoGPT's, litgpt's, transformers' and torchtitan's.

    NANOGPT=folder python -m benchmarks.peers [--shapes small large] [--models llama-lab ...]

Every model runs at its best of float32 and bf16 autocast, eager and compiled (whole with the loss;
llama-lab also in regions, as ``--model.compile true`` does it), which is found first;
then the bests take turns in this one process. Medians over turns, in CPU time on one thread (wall
time on more), and the median, least and greatest of the turns' ratios to the best peer. The bar:
1.03 of the best peer. Text is tinyshakespeare where ``data/tinyshakespeare.txt`` (or ``--text``)
has it, random tokens elsewhere. Compiling a peer whole takes half a minute for each precision.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from .models import BUILDERS, KINDS, OWN, Absent, Shape
from .steps import PRECISIONS, WAYS, Batch, Ratio, Training, Way, take_turns, turn

SHAPES = {
    "small": Shape(n_layers=4, dim=128, n_heads=4, context=64, rows=12),
    "large": Shape(n_layers=6, dim=384, n_heads=6, context=256, rows=16),
}
STEPS = {"small": 2, "large": 1}
BAR, TRIALS = 1.03, 4


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


def ready(name: str, shape: Shape, ways: list[Way], batches: list[Batch]) -> dict[str, Training]:
    """A model in every way that works here, compiled and warm."""
    found = {}
    for way in ways:
        if way.kind == "regions" and name != OWN:
            continue
        try:
            training = Training(name, shape, way)
            turn(training, batches)
        except Absent as error:
            print(f"  {name:13} skipped: {error}")
            return {}
        except Exception as error:  # a compiler fails in many ways
            print(f"  {name:13} {way!s:17} impossible: {str(error).splitlines()[0][:90]}")
            continue
        found[f"{name:13} {way!s:17}"] = training
    return found


def compare(name: str, models: list[str], ways: list[Way], turns: int, text: Path) -> Any:
    """One shape: every model's best way, and their turns side by side."""
    shape = SHAPES[name]
    print(f"\n{name}: {shape}", flush=True)
    batches = batches_of(shape, STEPS[name], text)
    trainings = {model: ready(model, shape, ways, batches) for model in models}
    everything = {label: t for found in trainings.values() for label, t in found.items()}
    take_turns(everything, batches, 1)  # a model's compiling may undo that of those before
    trials = take_turns(everything, batches, TRIALS)
    for label, times in trials.items():
        print(f"  {label} {1e3 * statistics.median(times):8.2f} ms", flush=True)
    bests = {
        model: min(found, key=lambda label: statistics.median(trials[label]))
        for model, found in trainings.items()
        if found
    }
    times = take_turns({label: everything[label] for label in bests.values()}, batches, turns)
    medians = {label: statistics.median(ts) for label, ts in times.items()}
    peers = [label for model, label in bests.items() if model != OWN]
    best = min(peers or medians, key=lambda label: medians[label])
    rows = []
    print("  each at its best, in turns:")
    for label in sorted(medians, key=lambda m: medians[m]):
        ratio = Ratio.of(times[label], times[best])
        print(f"  {label} {1e3 * medians[label]:8.2f} ms  {ratio} of {best.split()[0]}")
        rows.append({"model": label.split(), "ms": 1e3 * medians[label], "ratio": vars(ratio)})
        if label == bests.get(OWN) and peers:
            print(f"    bar {BAR}: {'held' if ratio.median <= BAR else 'missed'}")
    return {"shape": vars(shape), "best_peer": best.split(), "rows": rows}


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--models", nargs="+", default=list(BUILDERS), choices=BUILDERS)
    parser.add_argument("--turns", type=int, default=41)
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--text", type=Path, default=Path("data/tinyshakespeare.txt"))
    parser.add_argument("--json", type=Path, help="a file for the numbers")
    options = parser.parse_args()
    ways = [w for w in WAYS if w.precision in options.precisions]
    ways = [w for w in ways if w.kind in options.kinds]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    results = {
        name: compare(name, options.models, ways, options.turns, options.text)
        for name in options.shapes
    }
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
