"""What Lightning and the callbacks of a run cost: a step of ``fit`` against a bare loop.

    python benchmarks/trainer_overhead.py [CONFIG]

Both run in this process on the same model, batches and optimiser, in turns of 50 steps, so that a
noisy machine disturbs both alike. Prints the medians over turns and their ratio.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import torch
from lightning.pytorch import Callback

from llama_lab.training.optimizers import build_optimizer
from llama_lab.training.trainer_cli import LabCLI, quiet

TURN, TURNS, WARMUP = 50, 8, 20


class BareLoop(Callback):
    """Times the trainer's turns, and between them a loop with nothing around it."""

    def __init__(self) -> None:
        self.trainer_ms: list[float] = []
        self.bare_ms: list[float] = []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.began = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step - WARMUP
        if step < 0 or step % TURN:
            return
        if step:
            self.trainer_ms.append((time.perf_counter() - self.began) / TURN * 1e3)
            self.bare_ms.append(self.bare(trainer, module) / TURN * 1e3)
        self.began = time.perf_counter()

    def bare(self, trainer: Any, module: Any) -> float:
        """Seconds for a turn of forward, backward, clipping and step, on this very model."""
        network = module.network
        weights = {k: v.clone() for k, v in network.state_dict().items()}
        optimizer = build_optimizer(network, module.optimizer_config)
        batches = iter(trainer.datamodule.train_dataloader())
        began = time.perf_counter()
        for _ in range(TURN):
            batch = next(batches)
            optimizer.zero_grad()
            loss = network.loss(network(batch.inputs), batch.targets, reduction="mean")
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
        seconds = time.perf_counter() - began
        network.load_state_dict(weights)
        optimizer.zero_grad()
        return seconds


def main() -> None:
    """Run and report."""
    quiet()
    config = sys.argv[1] if len(sys.argv) > 1 else "llama.yaml"
    steps = WARMUP + TURN * TURNS
    arguments = [f"--trainer.max_steps={steps}", f"--trainer.val_check_interval={steps}"]
    cli = LabCLI("fit", ["--config", config, "--name", "trainer-overhead", *arguments])
    timer = BareLoop()
    cli.trainer.callbacks.insert(0, timer)
    cli.fit()
    fit, bare = statistics.median(timer.trainer_ms), statistics.median(timer.bare_ms)
    ratios = [a / b for a, b in zip(timer.trainer_ms, timer.bare_ms, strict=True)]
    print(
        f"{config}: fit {fit:.2f} ms a step, bare loop {bare:.2f} ms, "
        f"ratio {statistics.median(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
