"""Inputs of the two writings of a part, and the classes that describe a pair.

B batch, T time, D model width, E head width.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from llama_lab.inspect.memory import PRECISIONS, Precision
from llama_lab.kernels.kernel_study import KernelSizes
from llama_lab.model.initialise import seeded_generator

Outputs = Tensor | tuple[Tensor, ...]
Module = TypeVar("Module", bound=nn.Module)


class Skipped(Exception):
    """Why a pair cannot be timed here."""


@dataclass(frozen=True)
class Bench:
    """Where the writings run, and what they run on."""

    sizes: KernelSizes
    device: torch.device
    precision: Precision

    def autocast(self) -> AbstractContextManager[object]:
        """Surrounds each forward."""
        weights, products = PRECISIONS[self.precision]
        if weights == products:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=products)

    def draw(self, name: str, *shape: int, product: bool = False) -> Tensor:
        """A leaf from N(0, 1), the same for the same name; ``product``: as matrices return it."""
        kinds = PRECISIONS[self.precision]
        numbers = torch.randn(shape, generator=seeded_generator(0, name))
        dtype = kinds.products if product else kinds.weights
        return numbers.to(self.device, dtype).requires_grad_()

    def stream(self) -> Tensor:
        """The residual stream ``[B, T, D]``."""
        return self.draw("stream", self.sizes.batch_size, self.sizes.context_length, self.sizes.dim)

    def projected(self, name: str, n_heads: int) -> Tensor:
        """Heads ``[B, T, n_heads, E]`` as positions turn them."""
        s = self.sizes
        return self.draw(name, s.batch_size, s.context_length, n_heads, s.head_dim, product=True)

    def heads(self, name: str, n_heads: int) -> Tensor:
        """Heads ``[B, n_heads, T, E]`` as attention proper reads them."""
        return self.projected(name, n_heads).detach().transpose(1, 2).requires_grad_()

    def group(self) -> int:
        """Query heads that share a key.

        Raises:
            Skipped: Each has its own.
        """
        s = self.sizes
        if s.n_kv_heads == s.n_heads:
            raise Skipped(f"n_kv_heads {s.n_kv_heads} shares no keys among n_heads {s.n_heads}")
        return s.n_heads // s.n_kv_heads

    def own(self, module: Module) -> Module:
        """The module here, its parameters drawn by name."""
        module.to(self.device, PRECISIONS[self.precision].weights)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                scale = parameter.size(-1) ** -0.5
                parameter.copy_(self.draw(name, *parameter.shape) * scale)
        return module

    def weight(self, name: str, rows: int, columns: int) -> Tensor:
        """A matrix that keeps the scale of what it multiplies."""
        return (self.draw(name, rows, columns).detach() * columns**-0.5).requires_grad_()


@dataclass(frozen=True)
class Writing:
    """One way to compute a part."""

    label: str
    run: Callable[[], Outputs]
    """The forward, on tensors of its own choice."""
    leaves: tuple[Tensor, ...]
    """What the backward finds the gradients of; none where there is no backward."""
    aligned: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] = tuple
    """Gradients in the shapes of the other writing's."""


class Pair(NamedTuple):
    """Two writings."""

    first: Writing
    second: Writing


class Part(NamedTuple):
    """What a pair is about, and how it is made."""

    is_same: bool
    """Whether both writings compute the same, which is then checked."""
    build: Callable[[Bench], Pair]
    note: str = ""
    """What a reader must know of the comparison."""
