"""Devices: the one that this machine computes on best, and what a device can do.

A device is asked by trying, once in a process, and never by its name: a name says nothing of a
device that came later, nor of an older one of the same kind.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch


def best_device() -> torch.device:
    """The machine's accelerator (CUDA, Metal, XPU, …), or the CPU where there is none."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def holds(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device has tensors of this type: Metal has no float64."""
    return _succeeds(_hold, device, dtype)


def holds_float64(device: torch.device) -> bool:
    """Whether the device has float64 tensors."""
    return holds(device, torch.float64)


def multiplies(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device multiplies matrices of this type: Metal learnt bfloat16 with macOS 14."""
    return _succeeds(_multiply, device, dtype)


def lowers_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether autocast makes products of float32 matrices be in ``dtype`` on the device.

    Where it cannot, torch raises, or warns and leaves them in float32.
    """
    return _succeeds(_multiply_lowered, device, dtype)


def fuses_adamw(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device has AdamW as one kernel for weights of this type."""
    return _succeeds(_step_fused, device, dtype)


def scales_gradients(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device undoes the scale that float16's small gradients are multiplied by."""
    return _succeeds(_unscale, device, dtype)


def pins_memory(device: torch.device) -> bool:
    """Whether torch's loader can hold batches where the device reads them without the CPU.

    Metal is told by name, as the loader does that too: it would not pin for it, and warn.
    """
    if answers_at_once(device) or device.type == "mps":
        return False
    return _succeeds(_pin, device, torch.int64)


def answers_at_once(device: torch.device) -> bool:
    """Whether work is done when its call returns, so that reading a result waits for nothing.

    This is told by name, as it cannot be tried: of all devices the CPU alone works so.
    """
    return device.type == "cpu"


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if not answers_at_once(device):
        torch.accelerator.synchronize(device)


def device_function(device: torch.device, name: str) -> Callable[..., Any] | None:
    """A function of the device's module in torch, such as ``torch.cuda.empty_cache``, if there."""
    found: Callable[..., Any] | None = getattr(torch.get_device_module(device), name, None)
    return found


@cache
def _succeeds(trial: Callable[..., bool], device: torch.device, dtype: torch.dtype) -> bool:
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return trial(device, dtype)
        except torch.OutOfMemoryError:
            raise  # says nothing of the device
        except (RuntimeError, TypeError, NotImplementedError, AssertionError):
            return False


def _hold(device: torch.device, dtype: torch.dtype) -> bool:
    return torch.zeros(1, dtype=dtype, device=device).dtype == dtype


def _multiply(device: torch.device, dtype: torch.dtype) -> bool:
    one = torch.ones(1, 1, dtype=dtype, device=device)
    torch.mm(one, one)
    return True


def _multiply_lowered(device: torch.device, dtype: torch.dtype) -> bool:
    with torch.autocast(device.type, dtype=dtype):
        one = torch.ones(1, 1, device=device)
        return torch.mm(one, one).dtype == dtype


def _pin(device: torch.device, dtype: torch.dtype) -> bool:
    return torch.zeros(1, dtype=dtype).pin_memory().is_pinned()


def _unscale(device: torch.device, dtype: torch.dtype) -> bool:
    weight = torch.nn.Parameter(torch.ones(1, dtype=dtype, device=device))
    weight.grad = torch.ones_like(weight)
    scaler = torch.amp.GradScaler(device=device.type)
    scaler.scale(weight)
    scaler.unscale_(torch.optim.SGD([weight]))
    return True


def _step_fused(device: torch.device, dtype: torch.dtype) -> bool:
    weight = torch.nn.Parameter(torch.ones(1, dtype=dtype, device=device))
    weight.grad = torch.ones_like(weight)
    torch.optim.AdamW([weight], fused=True).step()
    return True
