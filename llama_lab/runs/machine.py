"""The processes of a run: how many share the work, in which way, and how long they wait."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.strategies import Strategy

from llama_lab.errors import UserError
from llama_lab.parallel.strategy import ShardedStrategy

SHARDED = "fsdp"
STRATEGIES = ("auto", "ddp", SHARDED)
# torch's own waiting time. Others wait so long for the first process too, which prepares a corpus.
TIMEOUT = 1800
STRATEGY_HELP = (
    "auto, ddp (every process holds all weights) or fsdp (FSDP2: weights, gradients and optimiser "
    "states are divided between processes)."
)


def add_arguments(parser: LightningArgumentParser) -> None:
    """Settings of the processes that Lightning's trainer does not have."""
    parser.add_argument(
        "--trainer.tensor_parallel",
        type=int,
        default=1,
        help="Processes that share the heads and hidden units of a layer, beside strategy fsdp.",
    )
    parser.add_argument(
        "--trainer.process_timeout",
        type=int,
        default=TIMEOUT,
        help="Seconds that processes wait for one that does not answer, before the run ends.",
    )


def check_processes(trainer: Mapping[str, Any]) -> None:
    """Rules on the settings of several processes.

    Raises:
        UserError: A strategy or a number is impossible, or would do nothing.
    """
    strategy, shared = trainer["strategy"], trainer["tensor_parallel"]
    is_other = isinstance(strategy, str) and strategy.startswith(("fsdp", "deepspeed", "xla"))
    if is_other and strategy != SHARDED:
        raise UserError(
            f"--trainer.strategy {strategy}: there are {', '.join(STRATEGIES)}; take one of them"
        )
    if shared < 1:
        raise UserError(
            f"--trainer.tensor_parallel {shared}: must be 1 or more; 1 divides no layer"
        )
    if shared > 1 and strategy != SHARDED:
        raise UserError(
            f"--trainer.tensor_parallel {shared} needs --trainer.strategy {SHARDED}, and it is "
            f"{strategy}: set that, or --trainer.tensor_parallel 1"
        )
    if trainer["process_timeout"] < 1:
        raise UserError(
            f"--trainer.process_timeout {trainer['process_timeout']}: counts seconds; give a whole "
            f"number from 1, such as {TIMEOUT}"
        )


def take_strategy(trainer: dict[str, Any]) -> int:
    """Put the strategy in the place of its name, and take out what Lightning does not know.

    Returns:
        Seconds that processes wait for each other.
    """
    shared = trainer.pop("tensor_parallel")
    if trainer["strategy"] == SHARDED:
        trainer["strategy"] = ShardedStrategy(shared)
    return int(trainer.pop("process_timeout"))


def set_timeout(strategy: Strategy, seconds: int) -> None:
    """Let collectives fail that wait longer, before the processes find each other."""
    if hasattr(strategy, "_timeout"):
        strategy._timeout = timedelta(seconds=seconds)
