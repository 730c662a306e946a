"""Initial values of the parameters: schemes for matrices and tables, declared values for others."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from llama_lab.model.settings import refuse_idle, require_choice, require_positive

InitKind = Literal["normal", "depth_scaled", "xavier", "zero_output"]

# The matrices whose result is added to the residual stream.
WRITERS = (".attention.wo.weight", ".feed_forward.down.weight")
HEAD = "head.weight"
# Tables with one vector per token or position. The head counts as one: its vectors score tokens.
TABLES = ("embedding.weight", "position_embedding.weight", HEAD)


@dataclass(frozen=True, kw_only=True)
class InitConfig:
    """The weights that training starts from."""

    kind: InitKind = "normal"
    """normal (every matrix from N(0, std²)), depth_scaled (like normal, but the two matrices per
    layer that write into the residual stream from N(0, std² / (2 n_layers)): GPT-2), zero_output
    (like normal, but those two matrices and an untied head are 0) or xavier (uniform, scaled by the
    matrix's own size: 2017)."""

    std: float | None = None
    """Standard deviation of the matrices and embeddings; null means 0.02. Refused with xavier."""

    def __post_init__(self) -> None:
        require_choice("model.decoder.init.kind", self.kind, InitKind)
        if self.kind == "xavier":
            because = "init.kind xavier uses each matrix's own size"
            refuse_idle("model.decoder.init.std", self.std, because=because)
        if self.std is not None:
            require_positive("model.decoder.init.std", self.std)


class WithStartValues(nn.Module):
    """A module that declares start values for some of its parameters, whatever the scheme is.

    Gains, temperatures and similar parameters are not matrices, and their shape does not show how
    they should start. The class declares the value once, for construction and for ``initialise``,
    which also fills parameters that ``to_empty`` left without a value.
    """

    starts: ClassVar[Mapping[str, float]] = MappingProxyType({})
    """Start value of each parameter, by its name in this module."""

    def start(self, name: str, *shape: int) -> nn.Parameter:
        """The parameter called ``name``, filled with its start value."""
        return nn.Parameter(torch.full(shape, self.starts[name]))


class NormalInit:
    """Matrices and embeddings from N(0, std²).

    Source: GPT-1 (Radford et al. 2018), which drew from N(0, 0.02²).
    """

    def __init__(self, std: float, n_layers: int) -> None:
        self.std = std
        self.n_layers = n_layers

    def draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """A float32 tensor of ``shape`` on the CPU for the matrix or table called ``name``."""
        unit = torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)
        return unit.mul_(self.std_of(name, shape))

    def std_of(self, name: str, shape: torch.Size) -> float:
        """Standard deviation for the matrix called ``name``."""
        return self.std


class DepthScaledInit(NormalInit):
    """As normal, but the 2 n_layers sublayers together add variance 1 to the residual stream.

    The std of their output matrices is divided by √(2 n_layers). Source: GPT-2 (Radford et al.
    2019), section 2.3.
    """

    def std_of(self, name: str, shape: torch.Size) -> float:
        if name.endswith(WRITERS):
            return self.std / (2 * self.n_layers) ** 0.5
        return self.std


class XavierInit(NormalInit):
    """Matrices uniform in ±√(6 / (fan_in + fan_out)); embeddings, learned positions and head from
    N(0, 1/D), so that logits, and embeddings times √D, start at unit variance.

    Source: Glorot & Bengio 2010, section 4.2; for the tables, tensor2tensor, the code of Vaswani et
    al. 2017, which draws a head of its own like the embedding.
    """

    def draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        if name in TABLES:
            return super().draw(name, shape, generator)
        bound = (6 / sum(shape)) ** 0.5
        unit = torch.rand(shape, generator=generator, device="cpu", dtype=torch.float32)
        return unit.mul_(2).sub_(1).mul_(bound)

    def std_of(self, name: str, shape: torch.Size) -> float:
        return shape[-1] ** -0.5


class ZeroOutputInit(NormalInit):
    """As normal, but the matrices that write into the residual stream and the head are 0: every
    layer starts as the identity, and all tokens are equally likely. A tied head is the embedding,
    and stays normal.

    Source: Zhang et al. 2019, arXiv:1901.09321, rule 1; for the head also Yang et al. 2022,
    arXiv:2203.03466.
    """

    def draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        if name == HEAD or name.endswith(WRITERS):
            return torch.zeros(shape, device="cpu", dtype=torch.float32)
        return super().draw(name, shape, generator)


INITS: dict[InitKind, type[NormalInit]] = {
    "normal": NormalInit,
    "depth_scaled": DepthScaledInit,
    "xavier": XavierInit,
    "zero_output": ZeroOutputInit,
}


def build_init(config: InitConfig, n_layers: int) -> NormalInit:
    """Build the scheme that ``config`` describes, for a decoder of ``n_layers`` layers."""
    return INITS[config.kind](0.02 if config.std is None else config.std, n_layers)
