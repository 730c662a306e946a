"""Rotary positions: pairs of coordinates of queries and keys, turned by angles.

B batch, T time, H heads (query or key), E head width, R rotated coordinates, P positions of
a table.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from llama_lab.model.masks import Documents, TabledPosition, TokenPositions
from llama_lab.model.rope.scaling import RopeScaling, RopeScalingConfig
from llama_lab.model.settings import require, shown

RopePairing = Literal["half", "interleaved"]


@dataclass(frozen=True)
class HalfPairs(TokenPositions):
    """x' = x · cos + partner(x) · sin, where coordinate i is paired with i + R/2.

    The tables have the shape ``[T, 1, R]``; the sine's has the minus sign of each first coordinate.
    """

    cos: Tensor
    sin: Tensor

    def rotate(self, heads: Tensor) -> Tensor:
        # In float32: bfloat16 tells neighbouring angles apart only near position 0.
        x = heads.float()
        return torch.addcmul(x * self.cos, self.partner(x), self.sin).to(heads.dtype)

    @staticmethod
    def join(first: Tensor, second: Tensor) -> Tensor:
        """Put the pairs' first and second coordinates ``[..., R/2]`` into their places in a
        head.
        """
        return torch.cat((first, second), dim=-1)

    @staticmethod
    def partner(x: Tensor) -> Tensor:
        """The partner of each coordinate, in its place."""
        # `roll` is as fast, but compiled code does not turn it into vector instructions.
        first, second = x.chunk(2, dim=-1)
        return torch.cat((second, first), dim=-1)


@dataclass(frozen=True)
class InterleavedPairs(HalfPairs):
    """The same rotation, where coordinate 2i is paired with 2i + 1."""

    @staticmethod
    def join(first: Tensor, second: Tensor) -> Tensor:
        return torch.stack((first, second), dim=-1).flatten(-2)

    @staticmethod
    def partner(x: Tensor) -> Tensor:
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((second, first), dim=-1).flatten(-2)


@dataclass(frozen=True)
class FirstCoordinates(TokenPositions):
    """The first ``width`` coordinates of each head are turned, and the others are not."""

    turned: TokenPositions
    width: int

    def rotate(self, heads: Tensor) -> Tensor:
        first, others = heads[..., : self.width], heads[..., self.width :]
        return torch.cat((self.turned.rotate(first), others), dim=-1)


ROPE_PAIRINGS: dict[RopePairing, type[HalfPairs]] = {
    "half": HalfPairs,
    "interleaved": InterleavedPairs,
}


class RotaryPosition(TabledPosition):
    """Pair i of each query and key at position p is turned by the angle p · theta^(-2i/R).

    The product of a query and a key then depends only on the distance of their positions.

    Args:
        context_length: Number of positions that the model was made for.
        width: R, here all E coordinates of a head.
        theta: Base of the frequencies.
        pairing: Which coordinates turn together.
        scaling: Scaling of the frequencies; ``None`` leaves them as they are.
        window: Number of tokens that a token sees; ``None`` means all up to itself.
        flex: Whether flex attention may compute a window, where it can.
    """

    def __init__(
        self,
        context_length: int,
        width: int,
        *,
        theta: float,
        pairing: RopePairing,
        scaling: RopeScaling | None = None,
        window: int | None = None,
        flex: bool = False,
    ) -> None:
        super().__init__(context_length, window, flex)
        self.width = width
        self.theta = theta
        self.pairs = ROPE_PAIRINGS[pairing]
        self.scaling = scaling or RopeScaling(RopeScalingConfig(), context_length)
        self.span = self.scaling.span(context_length)
        self.begin_table()

    def make(self, positions: Tensor) -> Tensor:
        frequencies = self.scaling.frequencies(self.theta, self.width, self.span, positions.device)
        angles = positions[:, None] * frequencies
        cos, sin = angles.cos() * self.scaling.amplitude, angles.sin() * self.scaling.amplitude
        return torch.stack((self.pairs.join(cos, cos), self.pairs.join(-sin, sin)))

    def rows(self, past: int, length: int, device: torch.device) -> Tensor:
        span = self.scaling.span(past + length)
        if span != self.span:
            self.span = span
            self.tabulate(past + length, device)
        return super().rows(past, length, device)

    def at(self, past: int, length: int, device: torch.device) -> TokenPositions:
        cos, sin = self.rows(past, length, device).unsqueeze(-2)
        return self.pairs(self.mask_for(past, length, device), cos=cos, sin=sin)

    def within(self, documents: Documents) -> TokenPositions:
        cos, sin = self.rows_within(documents).unsqueeze(-2)
        return self.pairs(self.mask_within(documents), cos=cos, sin=sin)

    def stays_valid(self, past: int, length: int) -> bool:
        return past == 0 or self.scaling.span(past) == self.scaling.span(past + length)


class PartialRotaryPosition(RotaryPosition):
    """Only the first R coordinates of each head are turned, with the frequencies of width R.

    Source: GPT-J (Wang & Komatsuzaki 2021); GPT-NeoX (Black et al. 2022, arXiv:2204.06745).
    """

    def at(self, past: int, length: int, device: torch.device) -> TokenPositions:
        return self.first(super().at(past, length, device))

    def within(self, documents: Documents) -> TokenPositions:
        return self.first(super().within(documents))

    def first(self, turned: TokenPositions) -> TokenPositions:
        """Apply ``turned`` only to the first coordinates."""
        return FirstCoordinates(turned.mask, turned, self.width)


def rotated_width(head_dim: int, fraction: float | None) -> int:
    """R: the number of coordinates that rope turns in a head of width ``head_dim``.

    Raises:
        SettingError: This number of coordinates cannot be divided into pairs.
    """
    width = head_dim if fraction is None else int(head_dim * fraction)
    require(
        fraction is None or (width >= 2 and width % 2 == 0),
        f"--model.decoder.position.rope_fraction {shown(fraction)} of heads of width {head_dim} "
        f"turns {width} coordinates, which do not form pairs: give a fraction such as "
        f"{max(2, width + width % 2) / head_dim:g}",
    )
    return width
