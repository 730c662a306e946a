"""Processes of a run: which of them hold the weights whole."""

from __future__ import annotations

from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    SingleDeviceStrategy,
    Strategy,
)

from llama_lab.errors import UserError


def require_whole_weights(strategy: Strategy, setting: str, without: str) -> None:
    """Refuse a setting that reads whole tensors where a process may hold but a part of each.

    Args:
        strategy: The trainer's.
        setting: The flag with its value.
        without: The flag with the value that does not need them.

    Raises:
        UserError: The strategy may divide tensors.
    """
    is_whole = isinstance(strategy, SingleDeviceStrategy | DDPStrategy)
    if is_whole and not isinstance(strategy, DeepSpeedStrategy):
        return
    raise UserError(
        f"{setting}: {type(strategy).__name__} may divide a layer's weights between processes; "
        f"set {without}, or --trainer.strategy ddp"
    )
