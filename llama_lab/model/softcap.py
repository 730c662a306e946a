"""A soft limit on attention scores and logits: small values stay the same, and none passes ±cap.

Source: Bello et al. 2016, arXiv:1611.09940, for logits; Gemma 2 (2024,
arXiv:2408.00118), section 2, for both.
"""

import torch
from torch import Tensor


def softcap(x: Tensor, cap: float | None) -> Tensor:
    """cap · tanh(x / cap); ``x`` itself where ``cap`` is ``None``."""
    return x if cap is None else cap * torch.tanh(x / cap)


def softcap_gradient(gradient: Tensor, x: Tensor, cap: float | None) -> Tensor:
    """The gradient for ``x``, given the one for ``softcap(x, cap)``: times 1 - tanh²(x / cap)."""
    return gradient if cap is None else gradient * (1 - torch.tanh(x / cap).square())
