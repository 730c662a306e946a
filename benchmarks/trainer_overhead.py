"""What Lightning and the callbacks of a run cost: a step of ``fit`` against a bare loop.

    python benchmarks/trainer_overhead.py [CONFIG] [FLAGS OF FIT ...]

Both run in this process on the same model, batches and optimiser, in turns of 5 steps, on one CPU
thread in its own CPU time, so that a busy machine disturbs both alike (elsewhere in wall time). The
bare loop does what the trainer does: it clips where ``--trainer.gradient_clip_val`` says so.
Prints the medians over turns, the median of the turns' ratios, and that of their differences,
which is the cost of a step whatever the model: a tiny one shows it best, such as that of
``--model.decoder.dim 16 --model.decoder.n_layers 1 --data.context_length 16 --data.batch_size 4``.
The bars: 1.05 at llama.yaml; 0.5 ms a step on CUDA. A validation and the checkpoint behind it,
every ``val_check_interval`` steps, are no part of it.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from typing import Any

import torch
from lightning.pytorch import Callback

from llama_lab.runs.command_line import LabCLI, quiet
from llama_lab.training.optimizers import build_optimizer

TURN, TURNS, WARMUP = 5, 60, 20
RATIO_BAR, CUDA_BAR_MS = 1.05, 0.5


class BareLoop(Callback):
    """Times the trainer's turns, and between them a loop with nothing around it."""

    def __init__(self) -> None:
        self.trainer_ms: list[float] = []
        self.bare_ms: list[float] = []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        on_one_thread = module.device.type == "cpu" and torch.get_num_threads() == 1
        self.clock = time.process_time if on_one_thread else time.perf_counter
        self.synchronise = torch.cuda.synchronize if module.device.type == "cuda" else int
        self.optimizer = build_optimizer(module.network, module.optimizer_config)
        self.batches = itertools.chain.from_iterable(
            itertools.repeat(trainer.datamodule.train_dataloader())
        )
        self.bare(trainer, module)
        self.began = self.now()

    def now(self) -> float:
        """Milliseconds, of a device that has nothing left to do."""
        self.synchronise()
        return 1e3 * self.clock()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        # At a step's start, so that all callbacks of the step before have ended.
        step = trainer.global_step - WARMUP
        if step < 0 or step % TURN:
            return
        if step:
            self.trainer_ms.append((self.now() - self.began) / TURN)
            self.bare_ms.append(self.bare(trainer, module) / TURN)
        self.began = self.now()

    def bare(self, trainer: Any, module: Any) -> float:
        """Milliseconds of a turn of forward, backward, clipping and step, on this very model."""
        network, clip = module.network, trainer.gradient_clip_val
        weights = {k: v.clone() for k, v in network.state_dict().items()}
        began = self.now()
        for batch in itertools.islice(self.batches, TURN):
            self.optimizer.zero_grad()
            with trainer.precision_plugin.forward_context():
                loss = network.loss(network(batch.inputs), batch.targets, reduction="mean")
            loss.backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
            self.optimizer.step()
        ms = self.now() - began
        network.load_state_dict(weights)
        self.optimizer.zero_grad()
        return ms


def measure(config: str, arguments: list[str]) -> dict[str, float]:
    """Medians in ms, of the ratios and of the differences, least and greatest ratio."""
    steps = WARMUP + TURN * TURNS + 1
    limits = [f"--trainer.max_steps={steps}", f"--trainer.val_check_interval={steps}"]
    named = ["--config", config, "--name", "trainer-overhead", *limits]
    cli = LabCLI("fit", [*named, *arguments])
    timer = BareLoop()
    cli.trainer.callbacks.append(timer)
    cli.fit()
    turns = list(zip(timer.trainer_ms, timer.bare_ms, strict=True))
    ratios = [a / b for a, b in turns]
    return {
        "fit_ms": statistics.median(timer.trainer_ms),
        "bare_ms": statistics.median(timer.bare_ms),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "greatest": max(ratios),
        "cost_ms": statistics.median(a - b for a, b in turns),
    }


def main() -> None:
    """Run and report."""
    quiet()
    config = sys.argv[1] if len(sys.argv) > 1 else "llama.yaml"
    row = measure(config, sys.argv[2:])
    print(
        f"{config}: fit {row['fit_ms']:.2f} ms a step, bare loop {row['bare_ms']:.2f} ms, ratio "
        f"{row['ratio']:.3f} ({row['least']:.3f} to {row['greatest']:.3f}; bar {RATIO_BAR}), "
        f"cost {row['cost_ms']:.3f} ms (bar on CUDA {CUDA_BAR_MS})"
    )


if __name__ == "__main__":
    main()
