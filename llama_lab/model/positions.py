"""Position encodings: added to embeddings, rotated into queries and keys, or a bias on scores.

B batch, T time, D model width, H heads (query or key), P positions attended to.

A kind acts in up to two places. ``embed`` adds positions to the embeddings. ``at`` gives attention
its positions and mask, once per forward for all layers of one kind. A class overrides the methods
that it uses, and :data:`POSITIONS` says which class acts in which place.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from llama_lab.model.layers import LayerKind
from llama_lab.model.masks import (
    AttentionMask,
    BiasMask,
    Documents,
    Position,
    TabledPosition,
    TokenPositions,
    distances,
)
from llama_lab.model.rope.frequencies import wave_frequencies
from llama_lab.model.rope.rotation import (
    PartialRotaryPosition,
    RopePairing,
    RotaryPosition,
    rotated_width,
)
from llama_lab.model.rope.scaling import RopeScaling, RopeScalingConfig, build_rope_scaling
from llama_lab.model.settings import (
    is_number,
    nearest_multiple,
    refuse_idle,
    require,
    require_choice,
    require_positive,
    require_whole,
    shown,
)

PositionKind = Literal["learned", "sinusoidal", "rope", "alibi", "none"]
FLAG = "model.decoder.position"


@dataclass(frozen=True, kw_only=True)
class PositionConfig:
    """The position encoding: how the model knows the order of the tokens."""

    kind: PositionKind = "rope"
    """learned (one vector per position: GPT-2), sinusoidal (2017), rope (LLaMA), alibi (scores fall
    with the distance: BLOOM) or none (the causal mask alone shows the order)."""

    rope_theta: float | None = None
    """Base of rope's wavelengths; null means 10000. Refused unless the kind is rope."""

    rope_local_theta: float | None = None
    """Base of rope's wavelengths in windowed layers; rope_scaling then leaves these layers alone
    (Gemma 3). Null means the same base as in the other layers. Refused unless the kind is rope, and
    without a window."""

    rope_pairing: RopePairing | None = None
    """Which coordinates rope turns together: half (i with i + head width / 2: Hugging Face) or
    interleaved (2i with 2i + 1: Meta's files); null means half. Refused unless the kind is rope."""

    rope_fraction: float | None = None
    """Share of each head's coordinates that rope turns, from the first one on (GPT-NeoX, Phi):
    above 0, and at most 1; null means 1. Refused unless the kind is rope."""

    nope_every: int | None = None
    """Every n-th layer gets no positions: with 4 these are the layers 4, 8, ... (SmolLM3). Null
    means that all layers get them. For rope and alibi only."""

    rope_scaling: RopeScalingConfig = field(default_factory=RopeScalingConfig)
    """The scaling of rope's frequencies for texts longer than the training context."""

    def __post_init__(self) -> None:
        require_choice(f"{FLAG}.kind", self.kind, PositionKind)
        if self.kind != "rope":
            self.refuse_rope_settings()
        for name in ("rope_theta", "rope_local_theta"):
            if getattr(self, name) is not None:
                require_positive(f"{FLAG}.{name}", getattr(self, name))
        if self.rope_pairing is not None:
            require_choice(f"{FLAG}.rope_pairing", self.rope_pairing, RopePairing)
        fraction = self.rope_fraction
        require(
            fraction is None or (is_number(fraction) and 0 < fraction <= 1),
            f"--{FLAG}.rope_fraction {shown(fraction)} is impossible: give a number above 0 and up "
            "to 1",
        )
        self.check_nope()

    def refuse_rope_settings(self) -> None:
        """Refuse the settings that only rope uses."""
        because = f"position.kind {self.kind} rotates nothing"
        for name in ("rope_theta", "rope_local_theta", "rope_pairing", "rope_fraction"):
            refuse_idle(f"{FLAG}.{name}", getattr(self, name), because=because)
        require(
            self.rope_scaling.kind == "none",
            f"--{FLAG}.rope_scaling.kind {self.rope_scaling.kind} would do nothing: {because}; set "
            f"--{FLAG}.rope_scaling.kind none",
        )

    def check_nope(self) -> None:
        """Refuse to remove positions from layers that have none of their own, or from all
        layers.
        """
        if self.nope_every is None:
            return
        if self.kind not in ("rope", "alibi"):
            because = f"position.kind {self.kind} adds no positions inside the layers"
            refuse_idle(f"{FLAG}.nope_every", self.nope_every, because=because)
        require_whole(f"{FLAG}.nope_every", self.nope_every)
        require(
            self.nope_every > 1,
            f"--{FLAG}.nope_every 1 leaves no layer with --{FLAG}.kind {self.kind}: give 2 or "
            f"more, or set --{FLAG}.kind none",
        )

    @property
    def theta(self) -> float:
        """Base of rope's wavelengths, with the default resolved."""
        return 10000.0 if self.rope_theta is None else self.rope_theta


class LearnedPosition(Position):
    """x + weight[place]. Source: Gehring et al. 2017, arXiv:1705.03122; GPT-2 (Radford 2019).

    Raises:
        SettingError: The text is longer than the table.
    """

    def __init__(self, context_length: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(context_length, dim))

    def embed(self, x: Tensor, past: int) -> Tensor:
        end, context_length = past + x.size(1), self.weight.size(0)
        require(
            end <= context_length,
            f"{end} tokens are longer than --model.decoder.context_length {context_length}, where "
            "learned positions end: shorten the text, train with a longer context, or train with "
            "--model.decoder.position.kind rope, sinusoidal, alibi or none",
        )
        return x + self.weight[past:end]

    def embed_within(self, x: Tensor, documents: Documents) -> Tensor:
        return x + self.weight[documents.offsets]


class SinusoidalPosition(TabledPosition):
    """x + PE, where PE(p, 2i) = sin(p / 10000^(2i/D)) and PE(p, 2i+1) = cos of the same angle.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """

    def __init__(self, context_length: int, dim: int) -> None:
        super().__init__(context_length)
        self.dim = dim
        self.begin_table()

    def make(self, positions: Tensor) -> Tensor:
        angles = positions[:, None] * wave_frequencies(self.dim, 10000.0, positions.device)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)[:, : self.dim]

    def embed(self, x: Tensor, past: int) -> Tensor:
        return (x + self.rows(past, x.size(1), x.device)).to(x.dtype)

    def embed_within(self, x: Tensor, documents: Documents) -> Tensor:
        return (x + self.rows_within(documents)).to(x.dtype)


class AlibiPosition(Position):
    """The scores of head h fall by slope_h per position that a key lies behind its query.

    The slopes are 2^(-8 h/n) for h = 1 to n where n is a power of two. Other numbers of heads get
    the slopes of the next lower power of two, and then every other slope of the next higher one.
    Source: Press et al. 2022, arXiv:2108.12409, and the authors' code.
    """

    def __init__(self, n_heads: int, window: int | None = None) -> None:
        super().__init__(window)
        self.n_heads = n_heads
        self.heads = slice(None)  # those that are computed here: all, or a share of several devices

    def dense_mask(self, held: int, length: int, device: torch.device) -> AttentionMask:
        distance = distances(held, length, device)
        return self.biased(distance, self.visible(distance))

    def mask_within(self, documents: Documents) -> AttentionMask:
        distance, _ = documents.seen_within(self.window)
        return self.biased(distance, self.visible_within(documents))

    def biased(self, distance: Tensor, visible: Tensor) -> AttentionMask:
        """Add -slope · distance ``[T, P]`` to the scores of visible keys."""
        bias = -self.slopes(distance.device)[:, None, None] * distance
        return BiasMask(bias[None].masked_fill(~visible, float("-inf")), is_causal=False)

    def slopes(self, device: torch.device) -> Tensor:
        """``[H]``, float32."""
        whole = 2 ** (self.n_heads.bit_length() - 1)
        steps = torch.arange(self.n_heads, device=device)
        shares = torch.cat((1 + steps[:whole], 0.5 + steps[: self.n_heads - whole])) / whole
        return torch.exp2(-8 * shares)[self.heads]


class PositionSizes(NamedTuple):
    """The sizes of the decoder that its positions need."""

    context_length: int
    dim: int
    head_dim: int
    n_heads: int
    flex: bool = False
    """Whether flex attention may compute windows of these heads."""


def build_rope(config: PositionConfig, sizes: PositionSizes, layer: LayerKind) -> Position:
    """Build the rotary positions of one kind of layer, with the defaults resolved."""
    theta = config.theta
    scaling = build_rope_scaling(config.rope_scaling, sizes.context_length)
    if layer.window is not None and config.rope_local_theta is not None:
        theta = config.rope_local_theta
        scaling = RopeScaling(RopeScalingConfig(), sizes.context_length)
    width = rotated_width(sizes.head_dim, config.rope_fraction)
    rotary = RotaryPosition if width == sizes.head_dim else PartialRotaryPosition
    return rotary(
        sizes.context_length,
        width,
        theta=theta,
        pairing=config.rope_pairing or "half",
        scaling=scaling,
        window=layer.window,
        flex=sizes.flex,
    )


def add_nothing(config: PositionConfig, sizes: PositionSizes) -> Position:
    """Add nothing to the embeddings."""
    return Position()


def tell_nothing(config: PositionConfig, sizes: PositionSizes, layer: LayerKind) -> Position:
    """Give attention no positions, but only its window."""
    return Position(layer.window, sizes.flex)


class PositionParts(NamedTuple):
    """The functions that build one kind's positions, for its two places."""

    embedding: Callable[[PositionConfig, PositionSizes], Position]
    """Positions for the embeddings."""

    attention: Callable[[PositionConfig, PositionSizes, LayerKind], Position]
    """Positions for the attention of one kind of layer."""


POSITIONS: dict[PositionKind, PositionParts] = {
    "learned": PositionParts(
        lambda _, sizes: LearnedPosition(sizes.context_length, sizes.dim), tell_nothing
    ),
    "sinusoidal": PositionParts(
        lambda _, sizes: SinusoidalPosition(sizes.context_length, sizes.dim), tell_nothing
    ),
    "rope": PositionParts(add_nothing, build_rope),
    "alibi": PositionParts(
        add_nothing, lambda _, sizes, layer: AlibiPosition(sizes.n_heads, layer.window)
    ),
    "none": PositionParts(add_nothing, tell_nothing),
}


def build_position(config: PositionConfig, sizes: PositionSizes) -> Position:
    """Build the positions that ``config`` adds to the embeddings."""
    return POSITIONS[config.kind].embedding(config, sizes)


class LayerPositions(nn.Module):
    """Positions and masks of all layers' attention; layers of one kind share theirs.

    Args:
        config: The kind of positions, and its settings.
        sizes: The sizes of the decoder.
        kinds: One kind per layer.
    """

    def __init__(
        self, config: PositionConfig, sizes: PositionSizes, kinds: Sequence[LayerKind]
    ) -> None:
        super().__init__()
        self.kinds = kinds
        attention = POSITIONS[config.kind].attention
        self.of_kind: dict[LayerKind, Position] = {
            kind: (attention if kind.has_position else tell_nothing)(config, sizes, kind)
            for kind in dict.fromkeys(kinds)
        }
        self.modules_of_kinds = nn.ModuleList(self.of_kind.values())

    def at(self, past: int, length: int, device: torch.device) -> list[TokenPositions]:
        """One entry per layer, for ``length`` tokens that follow ``past`` others; see
        :class:`Position`.
        """
        made = {kind: position.at(past, length, device) for kind, position in self.of_kind.items()}
        return [made[kind] for kind in self.kinds]

    def within(self, documents: Documents) -> list[TokenPositions]:
        """One entry per layer, for documents in a row; see :class:`Position`."""
        made = {kind: position.within(documents) for kind, position in self.of_kind.items()}
        return [made[kind] for kind in self.kinds]

    def stays_valid(self, past: int, length: int) -> bool:
        """Whether the keys and values of ``past`` tokens are still valid when ``length`` follow."""
        return all(position.stays_valid(past, length) for position in self.of_kind.values())


def check_rope_width(dim: int, n_heads: int) -> None:
    """Refuse heads whose coordinates rope cannot pair."""
    require(
        (dim // n_heads) % 2 == 0,
        f"--model.decoder.position.kind rope turns pairs of coordinates, and dim {dim} / n_heads "
        f"{n_heads} gives heads of odd width {dim // n_heads}: set --model.decoder.dim to a "
        f"multiple of {2 * n_heads}, such as {nearest_multiple(dim, 2 * n_heads)}",
    )
