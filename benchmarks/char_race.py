"""Seconds to nanoGPT's own best estimate at characters: nanoGPT's recipe against nanogpt-char.yaml.

    NANOGPT=folder python benchmarks/char_race.py [--cpu]

nanoGPT trains its model as its ``train.py`` does with ``config/train_shakespeare_char.py``: the
same batch, rates, decay, clipping, dropout and estimates of the validation loss (200 random batches
every 250 steps); compiled, bf16 autocast. llama-lab runs ``fit`` and scores the whole split. Both
clocks stand still while they validate, and start at the first step, compiling included. The bar is
half of nanoGPT's time. tinyshakespeare must lie at ``data/tinyshakespeare.txt`` or in the folder
that ``LLAMA_LAB_TEST_DATA`` names.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback
from peers.models import Shape, nanogpt_source

from llama_lab.runs.command_line import LabCLI, quiet

STEPS, EVERY, ESTIMATES, WARMUP = 5000, 250, 200, 100
RATE, LEAST_RATE = 1e-3, 1e-4
RECIPE = Shape(n_layers=6, dim=384, n_heads=6, context=256, rows=64, dropout=0.2)
TOY = Shape(n_layers=1, dim=16, n_heads=2, context=16, rows=4, dropout=0.2)
BAR = 0.5


def text_file() -> Path:
    """tinyshakespeare, wherever it lies."""
    folders = [Path("data"), Path(os.environ.get("LLAMA_LAB_TEST_DATA", "data"))]
    files = [f / "tinyshakespeare.txt" for f in folders]
    found = next((f for f in files if f.is_file()), None)
    if found is None:
        raise FileNotFoundError(f"tinyshakespeare is at none of {', '.join(map(str, files))}")
    return found.resolve()


def rate(step: int, steps: int) -> float:
    """nanoGPT's: a linear warmup and half a cosine."""
    if step < WARMUP:
        return RATE * (step + 1) / (WARMUP + 1)
    share = (step - WARMUP) / max(1, steps - WARMUP)
    return LEAST_RATE + 0.5 * (1 + math.cos(math.pi * share)) * (RATE - LEAST_RATE)


class Clock:
    """Seconds of training alone."""

    def __init__(self, device: str) -> None:
        self.device, self.seconds = device, 0.0

    def now(self) -> float:
        """Of the wall, when the device has nothing left to do."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()

    def go(self) -> None:
        """Run."""
        self.began = self.now()

    def stop(self) -> float:
        """Stand still; the sum."""
        self.seconds += self.now() - self.began
        return self.seconds


def nanogpt(device: str, shape: Shape, steps: int, every: int, limit: float) -> list[Any]:
    """(step, seconds, estimate) of nanoGPT's run; it ends early when ``limit`` seconds are over."""
    source, end = nanogpt_source(), time.monotonic() + limit
    text = text_file().read_text(encoding="utf-8")
    ids = {c: i for i, c in enumerate(sorted(set(text)))}
    tokens = torch.tensor([ids[c] for c in text], device=device)
    cut = int(0.9 * len(tokens))
    torch.manual_seed(1337)

    def batch(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(part) - shape.context, (shape.rows, 1), device=device)
        rows = part[starts + torch.arange(shape.context + 1, device=device)]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    config = source.GPTConfig(
        block_size=shape.context,
        vocab_size=len(ids),
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        n_embd=shape.dim,
        dropout=shape.dropout,
        bias=False,
    )
    plain = source.GPT(config).to(device)
    optimizer = plain.configure_optimizers(0.1, RATE, (0.9, 0.99), device)
    model = torch.compile(plain) if device == "cuda" else plain
    clock, found = Clock(device), []
    clock.go()
    for step in range(steps + 1):
        if step and step % every == 0:
            seconds = clock.stop()
            plain.eval()
            with torch.no_grad(), torch.autocast(device, torch.bfloat16):
                losses = [plain(*batch(tokens[cut:]))[1].item() for _ in range(ESTIMATES)]
            plain.train()
            found.append((step, seconds, sum(losses) / len(losses)))
            clock.go()
        if step == steps or time.monotonic() > end:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate(step, steps)
        with torch.autocast(device, torch.bfloat16):
            loss = model(*batch(tokens[:cut]))[1]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
    return found


class Race(Callback):
    """(step, seconds, validation loss) of llama-lab's run."""

    def __init__(self, goal: float) -> None:
        self.goal, self.found = goal, []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.clock = Clock(module.device.type)
        self.clock.go()

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            self.clock.stop()

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        if trainer.sanity_checking:
            return
        loss = module.validation["val_loss"]
        self.found.append((trainer.global_step, self.clock.seconds, loss))
        trainer.should_stop = loss <= self.goal
        self.clock.go()


def own(goal: float, arguments: list[str]) -> list[Any]:
    """llama-lab's run, to the goal or its end."""
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        race = Race(goal)
        corpus = [f"--data.corpus={text_file()}", f"--trainer.default_root_dir={folder}"]
        cli = LabCLI("fit", ["--config", "nanogpt-char.yaml", *corpus, *arguments])
        cli.trainer.callbacks.insert(0, race)
        cli.fit()
    return race.found


def race(device: str, limit: float, *, toy: bool = False) -> dict[str, Any]:
    """Both runs, one after the other, and when each was as good as nanoGPT's best estimate."""
    shape, steps, every = (TOY, 20, 10) if toy else (RECIPE, STEPS, EVERY)
    theirs = nanogpt(device, shape, steps, every, 0.6 * limit)
    goal_step, goal_seconds, goal = min(theirs, key=lambda row: row[2])
    print(f"  nanoGPT: {goal:.4f} at step {goal_step} in {goal_seconds:.1f} s", flush=True)
    sizes = {"dim": shape.dim, "n_layers": shape.n_layers, "context_length": shape.context}
    arguments = [f"--model.decoder.{k}={v}" for k, v in sizes.items()]
    arguments += [f"--model.decoder.attention.n_heads={shape.n_heads}"]
    arguments += [f"--data.batch_size={shape.rows}", f"--trainer.max_steps={steps}"]
    arguments += [f"--trainer.val_check_interval={every}"]
    arguments += ["--model.compile=true"] if device == "cuda" else ["--model.compile=false"]
    ours = own(goal, arguments)
    reached = next((row for row in ours if row[2] <= goal), None)
    best = min(ours, key=lambda row: row[2])
    print(f"  llama-lab: {best[2]:.4f} at step {best[0]} in {best[1]:.1f} s (whole split)")
    share = reached[1] / goal_seconds if reached else None
    print(f"  share of nanoGPT's time: {share or 'goal not reached'} (bar {BAR})", flush=True)
    return {"nanogpt": theirs, "llama_lab": ours, "goal": goal, "share": share}


if __name__ == "__main__":
    on_cpu = "--cpu" in sys.argv
    race("cpu" if on_cpu else "cuda", 600.0, toy=on_cpu)
