"""Lightning's automatic behaviours, and what a run does in their place.

Lightning looks at the environment and acts on it: inside a SLURM job it saves, requeues, and begins
the next run from what it saved; it reads settings from variables of its own; it takes in callbacks
of other packages. A run here does what its command says, so each is taken over or refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.utilities.registry import _load_external_callbacks
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from llama_lab.errors import UserError
from llama_lab.parallel.strategy import ShardedStrategy

CALLBACK_PACKAGES = "lightning.pytorch.callbacks_factory"
# Variables by which a launcher tells a process its place among others.
PLACES = ("RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK", "LOCAL_RANK", "SLURM_LOCALID")
OF_A_LAUNCHER = (*PLACES, "WORLD_SIZE", "SLURM_NTASKS", "JSM_NAMESPACE_SIZE", "TORCHELASTIC_RUN_ID")


class NamedStart(_CheckpointConnector):
    """Starts from the checkpoint that the command names, and from no other.

    Lightning's own takes an ``hpc_ckpt_N.ckpt`` of whatever run from the working folder when it
    finds itself inside a SLURM job, and the last checkpoint where a callback saves on exceptions.
    """

    def _select_ckpt_path(self, state_fn: Any, ckpt_path: Any, *args: Any, **kwargs: Any) -> Any:
        return ckpt_path


class NoSignals(_SignalConnector):
    """Leaves the signals to ``stopping``.

    Lightning's own answers SIGTERM with a broadcast that other processes do not join, and, inside a
    SLURM job, SIGUSR1 by a checkpoint beside ``logs/`` and a call of ``scontrol requeue``.
    """

    def register_signal_handlers(self) -> None:
        """Register none."""
        self.received_sigterm = False


def take_over(trainer: Trainer) -> None:
    """Put this project's decisions in the place of Lightning's automatic ones.

    Raises:
        UserError: The trainer would work otherwise than one process does, or its processes are not
            those that were started.
    """
    trainer._checkpoint_connector = NamedStart(trainer)
    trainer._signal_connector = NoSignals(trainer)
    check_strategy(trainer.strategy)
    environment = trainer._accelerator_connector.cluster_environment
    if isinstance(environment, SLURMEnvironment):
        environment.auto_requeue = False
    if environment.creates_processes_externally:
        wanted = trainer.num_devices * trainer.num_nodes
        check_world(environment.world_size(), wanted, type(environment).__name__)


def check_strategy(strategy: Strategy) -> None:
    """Let only strategies pass whose work was shown equal to that of one process.

    Raises:
        UserError: It may not average gradients, or not those that were computed.
    """
    # The exact types: a class derived from them may do anything.
    averages = type(strategy) is DDPStrategy and not changes_gradients(strategy)
    if averages or type(strategy) in (SingleDeviceStrategy, ShardedStrategy):
        return
    name = type(strategy).__name__
    if type(strategy) is DDPStrategy:
        name += " with a communication hook or model averaging"
    raise UserError(
        f"--trainer.strategy {name}: its work was not shown equal to that of one process; "
        "set --trainer.strategy ddp, fsdp, or auto"
    )


def changes_gradients(strategy: DDPStrategy) -> bool:
    """Whether processes exchange something else than the mean of their gradients."""
    hooks = (strategy._ddp_comm_hook, strategy._ddp_comm_state, strategy._ddp_comm_wrapper)
    averaging = strategy._model_averaging_period
    return averaging is not None or any(hook is not None for hook in hooks)


def check_world(started: int, wanted: int, environment: str) -> None:
    """Hold the processes that a launcher started against those of the trainer.

    Raises:
        UserError: They differ: each process would train alone, or wait for others for ever.
    """
    if started != wanted:
        raise UserError(
            f"--trainer.devices and --trainer.num_nodes make {wanted} "
            f"process{'es' * (wanted != 1)}, and the launcher ({environment}) says that it started "
            f"{started}: set --trainer.devices to the processes on each node and "
            "--trainer.num_nodes to the nodes, or start as many"
        )


def leave_out_foreign_callbacks(trainer: Trainer, own: Iterable[Callback]) -> list[str]:
    """Take callbacks off the trainer that installed packages brought in, and that nobody named.

    Returns:
        Their classes' names.
    """
    if not entry_points(group=CALLBACK_PACKAGES):
        return []
    brought = {type(callback) for callback in _load_external_callbacks(CALLBACK_PACKAGES)}
    named = {id(callback) for callback in own}
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    foreign = [c for c in callbacks if type(c) in brought and id(c) not in named]
    trainer.callbacks = [c for c in callbacks if c not in foreign]  # type: ignore[attr-defined]
    return [type(callback).__name__ for callback in foreign]


def work_alone(command: str) -> None:
    """Take this process, and those that it starts, out of the group that a launcher formed.

    Raises:
        UserError: It is not the first of the group: each would do the same work.
    """
    for name in PLACES:
        if os.environ.get(name, "0") not in ("", "0"):
            raise UserError(
                f"environment variable {name} is {os.environ[name]}: {command} is one process, "
                "which starts others itself; begin it once, without srun, torchrun or mpirun"
            )
    for name in OF_A_LAUNCHER:
        os.environ.pop(name, None)
