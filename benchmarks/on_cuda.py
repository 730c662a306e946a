"""Everything that is worth knowing of llama-lab on one GPU, in under ten minutes.

    NANOGPT=folder python benchmarks/on_cuda.py [--toy] [--sections tests small ...] [--json FILE]

The sections come in order of importance, each within its share of the time (``--minutes``), and the
numbers are written after each one, so that a run that is cut off leaves what it has; a second run
may take up the rest with ``--sections``. Peers (see ``peers/models.py``) that are not installed are
skipped by name; nothing is downloaded. ``--toy`` runs it all at toy sizes on the CPU.

Printed beside what they are held to: 1.15 of the fastest peer's tokens a second and 0.8 of its peak
memory at 124M and 1.1B parameters, bf16 autocast, about 64k tokens a step; 45 % and 55 % of the
measured bf16 matmul ceiling (6 N + 12 · layers · heads · head width · context FLOPs a token, N with
the head); 0.5 ms a step for the trainer; nanoGPT's own best estimate in half of nanoGPT's time.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from choices import BF16, adamw, attentions, checkpointed, stepper
from peers.models import OWN, Absent, Shape, compiled, whole
from peers.steps import Batch, Training, Way, clock, turn

from llama_lab.model import loss as loss_module

ROOT = Path(__file__).resolve().parent.parent
PEERS = ["litgpt", "nanoGPT", "torchtitan", "transformers"]
SPEED_BAR, MEMORY_BAR, TRAINER_BAR_MS = 1.15, 0.8, 0.5
MFU_BARS = {"small": 0.45, "large": 0.55}
SHARES = {
    "tests": 60,
    "small": 170,
    "large": 200,
    "trainer": 40,
    "weigh": 60,
    "char": 120,
    "devices": 120,
}
"""Seconds of a run of ten minutes; what a section leaves, the next ones have."""

SHAPES = {
    "small": Shape(12, 768, 12, 1024, 64, 32_000, n_kv_heads=4, hidden_dim=2048),
    "large": Shape(16, 2048, 32, 2048, 32, 32_000, n_kv_heads=8, hidden_dim=8192),
}
TOYS = {
    "small": Shape(2, 64, 4, 32, 4, 128, n_kv_heads=2),
    "large": Shape(2, 96, 4, 32, 4, 128, n_kv_heads=2),
}
TURNS, WARMUP = 7, 3


@dataclass
class Run:
    """Where it runs, what is known so far, and how long it may go on."""

    device: str
    shapes: dict[str, Shape]
    deadline: float
    ceiling: float = 0.0
    """bf16 matmul, in TFLOP/s."""

    @property
    def toy(self) -> bool:
        """Whether sizes and figures mean nothing."""
        return self.shapes is TOYS

    @property
    def left(self) -> float:
        """Seconds of the section."""
        return self.deadline - time.monotonic()


def flops_per_token(shape: Shape) -> float:
    """Of training, without a causal discount: 6 N and attention's two products."""
    config = shape.config()
    kv, width = shape.kv_heads * config.head_dim, shape.width()
    heads = shape.n_heads * config.head_dim
    layer = shape.dim * (2 * heads + 2 * kv + 3 * width) + 2 * shape.dim
    weights = shape.n_layers * layer + shape.dim + shape.vocabulary * shape.dim
    return 6 * weights + 12 * shape.n_layers * heads * shape.context


def matmul_ceiling(device: str, size: int) -> float:
    """TFLOP/s of the best of a few large bf16 products."""
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    now, best = clock(device), float("inf")
    for _ in range(6):
        began = now()
        for _ in range(8):
            a @ b
        best = min(best, (now() - began) / 8)
    return 2 * size**3 / max(best, 1e-9) / 1e12


def free(device: str) -> None:
    """Give back what earlier models held."""
    gc.collect()
    torch.compiler.reset()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak(device: str) -> float:
    """GiB since :func:`free`; nothing is counted on a CPU."""
    return torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0


def batch_of(shape: Shape, device: str) -> Batch:
    """Random tokens, the same for all."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(shape.vocabulary, (shape.rows, shape.context + 1), generator=generator)
    tokens = tokens.to(device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


@contextmanager
def logits_at_once(budget: int) -> Iterator[None]:
    """How many logits llama-lab's loss may hold."""
    before, loss_module.LOGITS_BUDGET = loss_module.LOGITS_BUDGET, budget
    try:
        yield
    finally:
        loss_module.LOGITS_BUDGET = before


def measured(run: Run, shape: Shape, name: str, way: Way, **settings: Any) -> dict[str, Any]:
    """Tokens a second and peak memory of one model alone, in as few microbatches as fit."""
    batch = batch_of(shape, run.device)
    for parts in (1, 2, 4, 8):
        free(run.device)
        began = time.monotonic()
        try:
            training = Training(name, shape, way, run.device, parts=parts, **settings)
            turn(training, [batch] * WARMUP)
            start = time.monotonic() - began
            times = [turn(training, [batch]) for _ in range(TURNS)]
        except torch.OutOfMemoryError:
            training = None
            continue
        return {
            "ms": 1e3 * statistics.median(times),
            "least_ms": 1e3 * min(times),
            "greatest_ms": 1e3 * max(times),
            "tokens_per_second": shape.tokens / statistics.median(times),
            "peak_gib": peak(run.device),
            "parts": parts,
            "start_seconds": start,
        }
    raise MemoryError("it does not fit in eight microbatches")


OWN_WAYS: dict[str, tuple[Way, dict[str, Any], int | None]] = {
    "blocks compiled": (BF16, {"compiling": compiled}, None),
    "blocks compiled, more logits": (BF16, {"compiling": compiled}, 2**29),
    "whole": (BF16, {"compiling": whole}, 2**33),
}
"""How llama-lab may run: the way, what compiles it, and the logits that may exist at once."""


def train(run: Run, name: str) -> dict[str, Any]:
    """Section: llama-lab's ways and its peers at one size."""
    shape, rows = run.shapes[name], {}

    def row(label: str, *arguments: Any, **settings: Any) -> None:
        try:
            rows[label] = measured(run, shape, *arguments, **settings)
        except Absent as error:
            print(f"  {label:42} skipped: {error}", flush=True)
            return
        except Exception as error:  # compilers and kernels fail in many ways
            rows[label] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
            print(f"  {label:42} failed: {rows[label]['error'][:110]}", flush=True)
            return
        r = rows[label]
        mfu = r["tokens_per_second"] * flops_per_token(shape) / 1e12 / max(run.ceiling, 1e-9)
        r["mfu"] = mfu
        print(
            f"  {label:42} {r['ms']:9.2f} ms {r['tokens_per_second']:12,.0f} tokens/s  "
            f"MFU {mfu:5.1%}  {r['peak_gib']:6.1f} GiB  x{r['parts']}  "
            f"start {r['start_seconds']:.0f} s",
            flush=True,
        )

    longest = 0.0
    names = [*OWN_WAYS, *PEERS]
    names.insert(1, names.pop(len(OWN_WAYS)))  # the first peer early, for a ratio of some kind
    for label in names:
        if run.left < longest:
            print(f"  {label:42} skipped: the section's time is over", flush=True)
            continue
        began = time.monotonic()
        if label in OWN_WAYS:
            way, settings, budget = OWN_WAYS[label]
            with logits_at_once(budget or loss_module.LOGITS_BUDGET):
                row(f"{OWN}, {label}", OWN, way, **settings)
        else:
            row(label, label, BF16)
        longest = max(longest, time.monotonic() - began)
    free(run.device)
    return {"rows": rows, **verdict(rows, MFU_BARS[name])}


def verdict(rows: dict[str, Any], mfu_bar: float) -> dict[str, Any]:
    """The best of both sides, and what they are held to."""
    works = {label: r for label, r in rows.items() if "ms" in r}
    sides = [
        {label: r for label, r in works.items() if label.startswith(OWN) is own}
        for own in (True, False)
    ]
    if not sides[0]:
        return {}
    fastest = [max(s.values(), key=lambda r: r["tokens_per_second"]) for s in sides if s]
    own = fastest[0]
    print(f"  MFU {own['mfu']:.1%} (bar {mfu_bar:.0%})")
    if len(fastest) == 1:
        return {"mfu": own["mfu"]}
    speed = own["tokens_per_second"] / fastest[1]["tokens_per_second"]
    memory = own["peak_gib"] / max(fastest[1]["peak_gib"], 1e-9)
    print(f"  {speed:.3f} of the fastest peer's tokens/s (bar {SPEED_BAR})")
    print(f"  {memory:.3f} of its peak memory (bar {MEMORY_BAR})")
    return {"mfu": own["mfu"], "speed": speed, "memory": memory}


def test(run: Run) -> dict[str, Any]:
    """Section: flex attention's tests, those that need CUDA among them."""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "tests/model/test_flex.py"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=max(30, run.left), check=False
    )
    lines = (done.stdout + done.stderr).strip().splitlines()
    print("  " + "\n  ".join(lines[-6:]))
    return {"code": done.returncode, "tail": lines[-25:]}


def trainer(run: Run) -> dict[str, Any]:
    """Section: what the trainer costs a step, at a tiny model, where it shows."""
    sizes = {"dim": 16, "n_layers": 1}
    arguments = [f"--model.decoder.{k}={v}" for k, v in sizes.items()]
    arguments += ["--data.context_length=16", "--data.batch_size=4", "--model.compile=false"]
    accelerator = "gpu" if run.device == "cuda" else "cpu"
    program = (
        "import json, sys; from trainer_overhead import measure; from llama_lab.training."
        "trainer_cli import quiet; quiet(); "
        "print('ROW', json.dumps(measure('llama.yaml', sys.argv[1:])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, f"--trainer.accelerator={accelerator}", *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'benchmarks'}"},
        capture_output=True,
        text=True,
        timeout=max(60, run.left),
        check=False,
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("ROW ")]
    if not rows:
        raise RuntimeError(done.stderr[-500:])
    row: dict[str, Any] = json.loads(rows[-1][4:])
    print(f"  {row['cost_ms']:.3f} ms a step (bar {TRAINER_BAR_MS})")
    return row


def weigh(run: Run) -> dict[str, Any]:
    """Section: choices one by one: attention, optimiser, loss, regions, graphs, checkpointing."""
    found: dict[str, Any] = {}

    def note(label: str, make: Callable[[], Callable[[], object]]) -> None:
        if run.left < 5:
            return
        try:
            free(run.device)
            call, now = make(), clock(run.device)
            for _ in range(3):
                call()
            times = []
            for _ in range(5):
                began = now()
                call()
                times.append(now() - began)
            found[label] = {"ms": 1e3 * statistics.median(times), "peak_gib": peak(run.device)}
            words = f"{found[label]['ms']:9.3f} ms {found[label]['peak_gib']:6.1f} GiB"
        except Exception as error:
            words = f"impossible: {str(error).strip().splitlines()[0][:80]}"
            found[label] = {"error": words}
        print(f"  {label:42} {words}", flush=True)

    def step_of(shape: Shape, compiling: Callable[..., Any]) -> Callable[[], object]:
        return stepper(shape, batch_of(shape, run.device), run.device, compiling)

    shape = run.shapes["small"]
    for label, attend in attentions(shape, torch.bfloat16, run.device).items():
        note(f"attention {label}", lambda attend=attend: lambda: attend().sum().backward())
    for label, settings in {"fused": {"fused": True}, "foreach": {"foreach": True}}.items():
        for dtype in (torch.float32, torch.bfloat16):
            name = f"adamw {label}, {str(dtype).removeprefix('torch.')} weights and state"
            note(name, lambda s=settings, d=dtype: adamw(shape, run.device, d, **s))
    tiny = replace(shape, n_layers=4, dim=128, n_heads=4, n_kv_heads=4, hidden_dim=352, rows=12)
    tiny = replace(tiny, context=64, vocabulary=65)
    for label, compiling in {
        "blocks": compiled,
        "whole": whole,
        "whole, CUDA graphs": lambda model: whole(model, mode="reduce-overhead"),
    }.items():
        note(f"4 x 128 {label}", lambda c=compiling: step_of(tiny, c))
    note("124M activations checkpointed, eager", lambda: step_of(shape, checkpointed))
    return found


def char(run: Run) -> dict[str, Any]:
    """Section: seconds to nanoGPT's best estimate, by nanoGPT and by llama-lab."""
    from char_race import race

    return race(run.device, run.left, toy=run.toy)


def devices(run: Run) -> dict[str, Any]:
    """Section: tokens a second under DDP, FSDP2, and FSDP2 with tensor parallelism, on 2+ GPUs."""
    count = 2 if run.toy else torch.cuda.device_count()
    if count < 2:
        print("  skipped: one GPU here, and several devices are what this measures")
        return {"skipped": "one GPU"}
    found: dict[str, Any] = {"devices": count}
    sizes = {"dim": 64, "n_layers": 2} if run.toy else {"dim": 2048, "n_layers": 16}
    for label, settings in {
        "ddp": ["--trainer.strategy=ddp"],
        "fsdp": ["--trainer.strategy=fsdp"],
        "fsdp x tensor 2": ["--trainer.strategy=fsdp", "--trainer.tensor_parallel=2"],
    }.items():
        command = [sys.executable, "-m", "llama_lab", "fit", "--config", "llama.yaml"]
        command += [f"--model.decoder.{k}={v}" for k, v in sizes.items()]
        command += [f"--trainer.devices={count}", "--trainer.max_steps=30", *settings]
        command += [f"--trainer.accelerator={'cpu' if run.toy else 'gpu'}"]
        command += ["--data.batch_size=64", "--trainer.val_check_interval=30", "--name", "devices"]
        command += [f"--trainer.precision={'32-true' if run.toy else 'bf16-mixed'}"]
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [*command, f"--trainer.default_root_dir={folder}"],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                capture_output=True,
                text=True,
                timeout=max(60, run.left),
                check=False,
            )
            if done.returncode:
                found[label] = {"error": done.stderr.strip()[-300:]}
            else:
                table = Path(folder, "logs", "devices", "run_0", "metrics.csv")
                with table.open(newline="", encoding="utf-8") as file:
                    rows = [row for row in csv.DictReader(file) if row["tokens_per_second"]]
                last = rows[-1]
                found[label] = {k: float(last[k]) for k in ("tokens_per_second", "train_loss")}
        print(f"  {label:20} {found[label]}", flush=True)
    return found


SECTIONS: dict[str, Callable[[Run], dict[str, Any]]] = {
    "tests": test,
    "small": lambda run: train(run, "small"),
    "large": lambda run: train(run, "large"),
    "trainer": trainer,
    "char": char,
    "weigh": weigh,
    "devices": devices,
}


def main() -> None:
    """Run the sections and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--toy", action="store_true", help="toy sizes, on the CPU")
    parser.add_argument("--sections", nargs="+", default=list(SECTIONS), choices=SECTIONS)
    parser.add_argument("--minutes", type=float, default=9.5)
    parser.add_argument("--json", type=Path, default=Path("cuda.json"))
    options = parser.parse_args()
    device = "cpu" if options.toy else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        sys.exit("no CUDA device here: try --toy")
    torch.set_float32_matmul_precision("high")
    end = time.monotonic() + 60 * options.minutes
    run = Run(device, TOYS if options.toy else SHAPES, end)
    run.ceiling = matmul_ceiling(device, 128 if options.toy else 8192)
    name = "CPU, toy sizes" if options.toy else torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}: bf16 matmul {run.ceiling:.3g} TFLOP/s", flush=True)
    results: dict[str, Any] = {"device": name, "torch": torch.__version__, "tflops": run.ceiling}
    for i, section in enumerate(options.sections):
        shares = [SHARES[s] for s in options.sections[i:]]
        seconds = (end - time.monotonic()) * shares[0] / sum(shares)
        if seconds < 5:
            print(f"\n{section}: skipped, the time is over")
            continue
        print(f"\n{section} ({seconds:.0f} s)", flush=True)
        run.deadline, began = time.monotonic() + seconds, time.monotonic()
        try:
            results[section] = SECTIONS[section](run)
        except Exception as error:  # one section must not cost the others
            results[section] = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
            print(f"  failed: {results[section]['error'][:200]}", flush=True)
        results[section]["seconds"] = time.monotonic() - began
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
