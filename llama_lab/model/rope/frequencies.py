"""Frequencies of sinusoidal and rotary positions."""

import torch
from torch import Tensor


def wave_frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """base^(-2i/width) for i < width/2, in radians per position: float64 ``[width/2]``."""
    exponents = torch.arange(0, width, 2, dtype=torch.float64, device=device) / width
    return base**-exponents
