"""Devices: the best one of this machine, and what a device can do.

A capability is found by trying it, once per process, and never by the device's name: a name tells
nothing about a newer device, or about an older one of the same kind.
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
    """Whether the device multiplies matrices of this type; Metal can for bfloat16 since macOS
    14.
    """
    return _succeeds(_multiply, device, dtype)


def lowers_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether autocast computes products of float32 matrices in ``dtype`` on the device.

    If it cannot, torch raises an error, or warns and keeps float32.
    """
    return _succeeds(_multiply_lowered, device, dtype)


def fuses_adamw(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device has a fused AdamW kernel for weights of this type."""
    return _succeeds(_step_fused, device, dtype)


def scales_gradients(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the device can undo the scaling of gradients that float16 needs."""
    return _succeeds(_unscale, device, dtype)


def pins_memory(device: torch.device) -> bool:
    """Whether torch's loader can pin memory, which the device reads without the CPU.

    Metal is recognised by its name, as in the loader, which warns there and does not pin.
    """
    if answers_at_once(device) or device.type == "mps":
        return False
    return _succeeds(_pin, device, torch.int64)


def answers_at_once(device: torch.device) -> bool:
    """Whether a call returns only when its work is done, so that reading a result never waits.

    This is decided by the name, because it cannot be tried: only the CPU works like this.
    """
    return device.type == "cpu"


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if not answers_at_once(device):
        torch.accelerator.synchronize(device)


def device_function(device: torch.device, name: str) -> Callable[..., Any] | None:
    """A function of the device's module in torch, such as ``torch.cuda.empty_cache``, or
    ``None``.
    """
    found: Callable[..., Any] | None = getattr(torch.get_device_module(device), name, None)
    return found


@cache
def _succeeds(trial: Callable[..., bool], device: torch.device, dtype: torch.dtype) -> bool:
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return trial(device, dtype)
        except torch.OutOfMemoryError:
            raise  # this says nothing about the device's abilities
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
