"""Where a token stands: added to its embedding, or turned into its queries and keys.

B batch, T time, D model width, H heads (query or key), E head width, P positions in a table.

A kind is one class with two sides. ``embed`` is the side of the embeddings; ``at`` gives what every
layer's attention needs to know, made once a forward. A kind overrides the sides that it uses.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from llama_lab.model.settings import (
    nearest_multiple,
    refuse_idle,
    require,
    require_choice,
    require_positive,
)

PositionKind = Literal["learned", "sinusoidal", "rope", "none"]
RopePairing = Literal["half", "interleaved"]


@dataclass(frozen=True, kw_only=True)
class PositionConfig:
    """How the model knows the order of the tokens."""

    kind: PositionKind = "rope"
    """learned (a vector a place: GPT-2), sinusoidal (2017), rope (LLaMA) or none (order is known
    from the causal mask alone)."""

    rope_theta: float | None = None
    """Base of rope's wavelengths; null means 10000. Refused unless the kind is rope."""

    rope_pairing: RopePairing | None = None
    """Coordinates that rope turns together: half (i with i + head width / 2: Hugging Face) or
    interleaved (2i with 2i + 1: Meta's files); null means half. Refused unless the kind is rope."""

    def __post_init__(self) -> None:
        require_choice("model.decoder.position.kind", self.kind, PositionKind)
        if self.kind != "rope":
            because = f"position.kind {self.kind} rotates nothing"
            refuse_idle("model.decoder.position.rope_theta", self.rope_theta, because=because)
            refuse_idle("model.decoder.position.rope_pairing", self.rope_pairing, because=because)
        if self.rope_theta is not None:
            require_positive("model.decoder.position.rope_theta", self.rope_theta)
        if self.rope_pairing is not None:
            require_choice("model.decoder.position.rope_pairing", self.rope_pairing, RopePairing)


@dataclass(frozen=True)
class Places:
    """Where the T tokens of one forward stand, as attention sees it; shared by every layer."""

    mask: Tensor | None
    """``[T, P]``, true where a token may look; ``None`` where ``is_causal`` says it all."""

    is_causal: bool
    """Whether token t sees tokens 0 to t of this same forward, and no others exist."""

    def rotate(self, heads: Tensor) -> Tensor:
        """Queries or keys ``[B, T, H, E]``, turned to their places."""
        return heads


@dataclass(frozen=True)
class HalfPairs(Places):
    """x' = x · cos + partner(x) · sin, where coordinate i is paired with i + E/2.

    The tables are ``[T, 1, E]`` and carry the minus sign of each pair's first coordinate.
    """

    cos: Tensor
    sin: Tensor

    def rotate(self, heads: Tensor) -> Tensor:
        # In float32: bfloat16 tells neighbouring angles apart only near position 0.
        x = heads.float()
        return torch.addcmul(x * self.cos, self.partner(x), self.sin).to(heads.dtype)

    @staticmethod
    def join(first: Tensor, second: Tensor) -> Tensor:
        """The pairs' first and second coordinates ``[..., E/2]``, put in their places."""
        return torch.cat((first, second), dim=-1)

    @staticmethod
    def partner(x: Tensor) -> Tensor:
        """Each coordinate's partner, in its stead."""
        return x.roll(x.size(-1) // 2, dims=-1)


@dataclass(frozen=True)
class InterleavedPairs(HalfPairs):
    """The same rotation, where coordinate 2i is paired with 2i + 1."""

    @staticmethod
    def join(first: Tensor, second: Tensor) -> Tensor:
        return torch.stack((first, second), dim=-1).flatten(-2)

    @staticmethod
    def partner(x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)


ROPE_PAIRINGS: dict[RopePairing, type[HalfPairs]] = {
    "half": HalfPairs,
    "interleaved": InterleavedPairs,
}


class Position(nn.Module):
    """No position: order is known from the causal mask alone.

    Source: Haviv et al. 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466.
    """

    def embed(self, x: Tensor, past: int) -> Tensor:
        """Embeddings ``[B, T, D]`` of the tokens that follow ``past`` others, with their places."""
        return x

    def at(self, past: int, length: int, device: torch.device) -> Places:
        """What attention needs to know of ``length`` tokens that follow ``past`` others."""
        return Places(*sight(past, length, device))


class LearnedPosition(Position):
    """x + weight[place]. Source: Gehring et al. 2017, arXiv:1705.03122; GPT-2 (Radford 2019).

    Raises:
        SettingError: A token stands past the last vector of the table.
    """

    def __init__(self, context_length: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(context_length, dim))

    def embed(self, x: Tensor, past: int) -> Tensor:
        end, context_length = past + x.size(1), self.weight.size(0)
        require(
            end <= context_length,
            f"{end} tokens are longer than --model.decoder.context_length {context_length}, where "
            "learned positions end: shorten the text, or train with a longer context or with "
            "--model.decoder.position.kind rope, sinusoidal or none",
        )
        return x + self.weight[past:end]


class TabledPosition(Position):
    """A kind that reads a fixed table of the places, which grows with the longest text seen.

    The table is no buffer: a buffer would follow the model into bfloat16, come out of ``meta``
    uninitialised, and be broadcast by DDP in every step. It is a constant, made again on demand.
    """

    table: Tensor

    def __init__(self, context_length: int) -> None:
        super().__init__()
        self.context_length = context_length

    @abstractmethod
    def make(self, places: Tensor) -> Tensor:
        """The table's rows at ``places``, float64 ``[P]``, along the result's axis -2."""

    def rows(self, past: int, length: int, device: torch.device) -> Tensor:
        """The float32 rows of ``length`` places that follow ``past`` others."""
        end = past + length
        if self.table.device != device or self.table.size(-2) < end:
            self.tabulate(max(end, self.table.size(-2)), device)
        return self.table[..., past:end, :]

    def tabulate(self, n_places: int, device: torch.device) -> None:
        """Make the table of the first ``n_places`` places on ``device``."""
        # MPS has no float64, and arange on `meta` imports sympy, which takes seconds. A table born
        # in inference mode could not be trained with afterwards.
        source = torch.device("cpu") if device.type in ("mps", "meta") else device
        with torch.inference_mode(False), torch.no_grad():
            places = torch.arange(n_places, dtype=torch.float64, device=source)
            self.table = self.make(places).float().to(device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TabledPosition":
        # Made where the model goes, before its first forward there, so that a compiled forward
        # always finds the table and is compiled once.
        super()._apply(fn, recurse)
        target = fn(torch.empty(0, device=self.table.device)).device
        if target != self.table.device:
            self.tabulate(self.context_length, target)
        return self


class SinusoidalPosition(TabledPosition):
    """x + PE, where PE(p, 2i) = sin(p / 10000^(2i/D)) and PE(p, 2i+1) = cos of the same angle.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """

    def __init__(self, context_length: int, dim: int) -> None:
        super().__init__(context_length)
        self.dim = dim
        self.tabulate(context_length, torch.empty(0).device)

    def make(self, places: Tensor) -> Tensor:
        angles = wave_angles(places, self.dim, base=10000.0)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[:, : self.dim]

    def embed(self, x: Tensor, past: int) -> Tensor:
        return (x + self.rows(past, x.size(1), x.device)).to(x.dtype)


class RotaryPosition(TabledPosition):
    """Pair i of each query and key, turned by the angle p · theta^(-2i/E) at place p.

    A query's product with a key then depends on the distance of their places alone.
    Source: Su et al. 2021, arXiv:2104.09864.
    """

    def __init__(
        self, context_length: int, head_dim: int, *, theta: float, pairing: RopePairing
    ) -> None:
        super().__init__(context_length)
        self.head_dim = head_dim
        self.theta = theta
        self.pairs = ROPE_PAIRINGS[pairing]
        self.tabulate(context_length, torch.empty(0).device)

    def make(self, places: Tensor) -> Tensor:
        angles = wave_angles(places, self.head_dim, base=self.theta)
        cos, sin = angles.cos(), angles.sin()
        return torch.stack((self.pairs.join(cos, cos), self.pairs.join(-sin, sin)))

    def at(self, past: int, length: int, device: torch.device) -> Places:
        cos, sin = self.rows(past, length, device).unsqueeze(-2)
        return self.pairs(*sight(past, length, device), cos=cos, sin=sin)


def wave_angles(places: Tensor, width: int, *, base: float) -> Tensor:
    """p · base^(-2i/width) for each place p and i < width/2: ``[P]`` to ``[P, width/2]``."""
    exponents = torch.arange(0, width, 2, dtype=places.dtype, device=places.device) / width
    return places[:, None] * base**-exponents


def sight(past: int, length: int, device: torch.device) -> tuple[Tensor | None, bool]:
    """Mask and causal flag of ``length`` tokens that see ``past`` others and each other's past.

    A single token sees all there is. ``is_causal`` aligns the triangle with the upper left corner,
    so tokens that follow others need their mask spelt out.
    """
    if past == 0 or length == 1:
        return None, length > 1
    visible = torch.ones(length, past + length, dtype=torch.bool, device=device)
    return visible.tril(past), False


class Sizes(NamedTuple):
    """What the decoder tells its positions."""

    context_length: int
    dim: int
    head_dim: int


def build_rope(config: PositionConfig, sizes: Sizes) -> Position:
    """Rotary positions, with the kind's own defaults where the config says null."""
    return RotaryPosition(
        sizes.context_length,
        sizes.head_dim,
        theta=10000.0 if config.rope_theta is None else config.rope_theta,
        pairing=config.rope_pairing or "half",
    )


POSITIONS: dict[PositionKind, Callable[[PositionConfig, Sizes], Position]] = {
    "learned": lambda _, sizes: LearnedPosition(sizes.context_length, sizes.dim),
    "sinusoidal": lambda _, sizes: SinusoidalPosition(sizes.context_length, sizes.dim),
    "rope": build_rope,
    "none": lambda _, sizes: Position(),
}


def build_position(config: PositionConfig, sizes: Sizes) -> Position:
    """The positions that ``config`` describes."""
    return POSITIONS[config.kind](config, sizes)


def check_rope_width(dim: int, n_heads: int) -> None:
    """Refuse a head whose coordinates rope cannot pair."""
    require(
        (dim // n_heads) % 2 == 0,
        f"--model.decoder.position.kind rope turns pairs of coordinates, and dim {dim} / n_heads "
        f"{n_heads} gives heads of odd width {dim // n_heads}: set --model.decoder.dim to a "
        f"multiple of {2 * n_heads}, such as {nearest_multiple(dim, 2 * n_heads)}",
    )
