"""Normalisation layers. Their placement around a sublayer is in ``block.py``.

D model width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from llama_lab.model.init_schemes import WithStartValues
from llama_lab.model.settings import (
    refuse_idle,
    require_choice,
    require_positive,
    require_switch,
)

NormKind = Literal["layernorm", "rmsnorm", "rmsnorm_offset", "rmsnorm_plain", "dyt"]
NormPlacement = Literal["pre", "post", "sandwich", "reordered", "parallel"]


@dataclass(frozen=True, kw_only=True)
class NormConfig:
    """The normalisation in every layer, and its place around the sublayers."""

    kind: NormKind = "rmsnorm"
    """layernorm (centre and scale: GPT-2, the 2017 Transformer), rmsnorm (scale only: LLaMA),
    rmsnorm_offset (its gain is 1 + weight: Gemma), rmsnorm_plain (no gain) or dyt (a tanh instead
    of statistics)."""

    placement: NormPlacement = "pre"
    """pre (before a sublayer: LLaMA), post (after the sum: 2017), sandwich (before and after a
    sublayer: Gemma 2), reordered (after a sublayer, before the sum: OLMo 2) or parallel (one before
    both sublayers, side by side: PaLM). All but post have one more norm after the last layer."""

    eps: float | None = None
    """Added to the variance or to the mean square, so that nothing is divided by zero; null means
    1e-5. Refused with dyt, which does not divide."""

    bias: bool | None = None
    """Give layernorm a learned bias; null means true. Refused with the other kinds."""

    def __post_init__(self) -> None:
        require_choice("model.decoder.norm.kind", self.kind, NormKind)
        require_choice("model.decoder.norm.placement", self.placement, NormPlacement)
        if self.kind == "dyt":
            because = "norm.kind dyt does not divide"
            refuse_idle("model.decoder.norm.eps", self.eps, because=because)
        if self.kind != "layernorm":
            because = f"norm.kind {self.kind} has no optional bias"
            refuse_idle("model.decoder.norm.bias", self.bias, because=because)
        if self.eps is not None:
            require_positive("model.decoder.norm.eps", self.eps)
        if self.bias is not None:
            require_switch("model.decoder.norm.bias", self.bias)

    @property
    def epsilon(self) -> float:
        """``eps``, with the default resolved."""
        return 1e-5 if self.eps is None else self.eps


class LayerNorm(WithStartValues):
    """y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, over the last axis.

    The variance divides by D. Source: Ba et al. 2016, arXiv:1607.06450.
    """

    starts = MappingProxyType({"weight": 1.0, "bias": 0.0})

    def __init__(self, dim: int, *, eps: float, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = self.start("weight", dim)
        self.bias = self.start("bias", dim) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """``[..., D]`` to ``[..., D]``."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · gain, over the last axis, of two tensors of one type.

    torch's own function has a kernel on CUDA, and compiled code fuses it with its neighbours. On
    the CPU it is a chain of small operations, and :class:`ShortRMSNorm` needs half of them. This
    was measured on the CPU only, so the device is chosen by name; `meta` counts as the CPU does.
    """
    is_composed = x.device.type in ("cpu", "meta") and not torch.compiler.is_compiling()
    if is_composed and x.dtype == torch.float32:
        return ShortRMSNorm.apply(x, gain, eps)
    return F.rms_norm(x, gain.shape, gain, eps)


class ShortRMSNorm(torch.autograd.Function):
    """n · gain, where n = x · r and r = 1 / sqrt(mean(x²) + eps), and its gradient by hand:
    dx = r · (dy · gain - n · mean(dy · gain · n)).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        scale = length.square_().div_(x.size(-1)).add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, scale, gain)
        return normed * gain

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        normed, scale, gain = ctx.saved_tensors
        products = grad * normed
        along = (products @ gain).unsqueeze(-1)
        x_grad = torch.addcmul(grad * gain, normed, along, value=-1 / gain.numel()).mul_(scale)
        return x_grad, products.reshape(-1, gain.numel()).sum(0), None


class RMSNorm(WithStartValues):
    """y = x / sqrt(mean(x²) + eps) * weight, over the last axis.

    Source: Zhang & Sennrich 2019, arXiv:1910.07467.
    """

    starts = MappingProxyType({"weight": 1.0})

    def __init__(self, dim: int, *, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = self.start("weight", dim)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., D]`` to ``[..., D]``."""
        # Under autocast, a matrix's output has a lower precision than the weight, and the fused
        # kernel needs both in one type.
        return rms_norm(x.to(self.weight.dtype), self.weight, self.eps)


class OffsetRMSNorm(RMSNorm):
    """y = x / sqrt(mean(x²) + eps) * (1 + weight), over the last axis; weights start at 0.

    Source: Gemma (Gemma Team 2024, arXiv:2403.08295), in its code.
    """

    starts = MappingProxyType({"weight": 0.0})

    def forward(self, x: Tensor) -> Tensor:
        """``[..., D]`` to ``[..., D]``."""
        # In float32: bfloat16 would round away small weights that are added to 1.
        gain = 1 + self.weight.float()
        return rms_norm(x.float(), gain, self.eps).to(x.dtype)


class PlainRMSNorm(nn.Module):
    """y = x / sqrt(mean(x²) + eps), over the last axis: no parameters.

    Source: Qin et al. 2023, arXiv:2307.14995, as SRMSNorm.
    """

    def __init__(self, dim: int, *, eps: float) -> None:
        super().__init__()
        self.shape = (dim,)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """``[..., D]`` to ``[..., D]``."""
        return F.rms_norm(x, self.shape, eps=self.eps)


class DynamicTanh(WithStartValues):
    """y = tanh(alpha * x) * weight + bias: limits outliers without looking at the other entries.

    Alpha is one learned number. The authors' language models multiply the embeddings by √D, which
    ``embedding_scale`` does. Source: Zhu et al. 2025, arXiv:2503.10622.
    """

    starts = MappingProxyType({"alpha": 0.5, "weight": 1.0, "bias": 0.0})

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alpha = self.start("alpha", 1)
        self.weight = self.start("weight", dim)
        self.bias = self.start("bias", dim)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., D]`` to ``[..., D]``."""
        return torch.tanh(self.alpha * x) * self.weight + self.bias


NORMS: dict[NormKind, Callable[[NormConfig, int], nn.Module]] = {
    "layernorm": lambda config, dim: LayerNorm(
        dim, eps=config.epsilon, bias=config.bias is not False
    ),
    "rmsnorm": lambda config, dim: RMSNorm(dim, eps=config.epsilon),
    "rmsnorm_offset": lambda config, dim: OffsetRMSNorm(dim, eps=config.epsilon),
    "rmsnorm_plain": lambda config, dim: PlainRMSNorm(dim, eps=config.epsilon),
    "dyt": lambda _, dim: DynamicTanh(dim),
}


def build_norm(config: NormConfig, dim: int) -> nn.Module:
    """Build the normalisation that ``config`` describes, for vectors of width ``dim``."""
    return NORMS[config.kind](config, dim)
