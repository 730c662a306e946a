"""The precision of a run, held against what its device can do."""

from __future__ import annotations

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision, Precision
from lightning.pytorch.utilities import rank_zero_warn

from llama_lab.errors import UserError
from llama_lab.model.devices import holds, lowers_products, multiplies, scales_gradients

MIXED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
OF_WEIGHTS = {"64-true": torch.float64, "bf16-true": torch.bfloat16, "16-true": torch.float16}


def resolve_precision(trainer: Trainer) -> None:
    """Let autocast work on the trainer's device, and refuse a precision that the device lacks.

    Lightning asks for CUDA's autocast on every accelerator that it does not know: there, all would
    be computed in float32, without a word. A device that has no autocast for any type computes so,
    which is said and recorded.

    Raises:
        UserError: The device cannot compute so.
    """
    device, precision = trainer.strategy.root_device, str(trainer.precision)
    plugin = trainer.precision_plugin
    if dtype := MIXED.get(precision):
        if isinstance(plugin, MixedPrecision) and plugin.device != device.type:
            if not any(lowers_products(device, each) for each in MIXED.values()):
                rank_zero_warn(
                    f"--trainer.precision {precision}: {device.type} has no autocast; all is "
                    "computed in float32, as 32-true says"
                )
                trainer.strategy.precision_plugin = Precision()
                return
            plugin.device = device.type
            if plugin.scaler is not None:
                plugin.scaler = torch.amp.GradScaler(device=device.type)
        able = lowers_products(device, dtype)
        able = able and (precision != "16-mixed" or scales_gradients(device, torch.float32))
    elif dtype := OF_WEIGHTS.get(precision):
        able = holds(device, dtype) and multiplies(device, dtype)
    else:
        return
    if not able:
        name = str(dtype).removeprefix("torch.")
        raise UserError(
            f"--trainer.precision {precision}: {device.type} does not compute in {name}, as a "
            "trial showed; set 32-true"
        )
