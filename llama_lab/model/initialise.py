"""The weights that training starts from.

Each tensor is drawn from a generator of its own, seeded by the run's seed and the tensor's name.
Two models that share a tensor (same name, same shape) therefore share its first value, whatever
else differs between them, and whatever device or precision they are on.
"""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from llama_lab.model.settings import require_choice, require_positive

if TYPE_CHECKING:
    from llama_lab.model.decoder import Decoder

InitKind = Literal["normal", "depth_scaled"]


@dataclass(frozen=True, kw_only=True)
class InitConfig:
    """The weights that training starts from."""

    kind: InitKind = "normal"
    """normal (every matrix from N(0, std²)) or depth_scaled (the same, but the two that write into
    the residual stream from N(0, std² / (2 n_layers)): GPT-2)."""

    std: float | None = None
    """Standard deviation of the matrices and embeddings; null means 0.02."""

    def __post_init__(self) -> None:
        require_choice("model.decoder.init.kind", self.kind, InitKind)
        if self.std is not None:
            require_positive("model.decoder.init.std", self.std)


class NormalInit:
    """Matrices and embeddings from N(0, std²), biases 0, gains of norms 1.

    Source: GPT-1 (Radford et al. 2018), which drew from N(0, 0.02²).
    """

    def __init__(self, std: float, n_layers: int) -> None:
        self.std = std
        self.n_layers = n_layers

    def draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """A float32 tensor of ``shape`` on the CPU for the parameter called ``name``."""
        if name.endswith(".bias"):
            return torch.zeros(shape, device="cpu", dtype=torch.float32)
        if len(shape) == 1:
            return torch.ones(shape, device="cpu", dtype=torch.float32)
        unit = torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)
        return unit.mul_(self.std_of(name))

    def std_of(self, name: str) -> float:
        """Standard deviation of the matrix called ``name``."""
        return self.std


class DepthScaledInit(NormalInit):
    """As normal, but what 2 n_layers sublayers add to the residual stream has variance 1 in sum.

    Their std is divided by √(2 n_layers). Source: GPT-2 (Radford et al. 2019), section 2.3.
    """

    # The matrices whose result is added to the residual stream.
    WRITERS = (".attention.wo.weight", ".feed_forward.down.weight")

    def std_of(self, name: str) -> float:
        if name.endswith(self.WRITERS):
            return self.std / (2 * self.n_layers) ** 0.5
        return self.std


INITS: dict[InitKind, type[NormalInit]] = {
    "normal": NormalInit,
    "depth_scaled": DepthScaledInit,
}


def build_init(config: InitConfig, n_layers: int) -> NormalInit:
    """The scheme that ``config`` describes, for a decoder of ``n_layers`` layers."""
    return INITS[config.kind](0.02 if config.std is None else config.std, n_layers)


@torch.no_grad()
def initialise(decoder: "Decoder", seed: int) -> None:
    """Draw every parameter of ``decoder`` anew, by its config's scheme; a tied tensor once.

    Args:
        decoder: On any device but ``meta``, in any precision.
        seed: The run's seed.
    """
    scheme = build_init(decoder.config.init, decoder.config.n_layers)
    for name, parameter in decoder.named_parameters():
        parameter.copy_(scheme.draw(name, parameter.shape, seeded_generator(seed, name)))


def seeded_generator(seed: int, name: str) -> torch.Generator:
    """A CPU generator whose state depends on ``seed`` and ``name`` alone."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator(device="cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)
