"""Planted faults: famous mistakes, made in a decoder that is built, to see what they look like.

B batch, T time, P positions attended to, H query heads, K key/value heads, E head width,
R rotated coordinates.

The model's own code knows nothing of them. A fault hangs on hooks: before attention runs, one
exchanges the :class:`TokenPositions` that it is given. No tensor comes or goes, so that weights
move freely between a sound decoder and a faulty one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from llama_lab.model.attention import Attention, ScoredAttention
from llama_lab.model.block import BLOCKS, Block
from llama_lab.model.config import DecoderConfig
from llama_lab.model.decoder import Decoder
from llama_lab.model.layers import LayerKind
from llama_lab.model.masks import (
    AttentionMask,
    BiasMask,
    DotProductAttention,
    Position,
    TokenPositions,
    distances,
)
from llama_lab.model.positions import AlibiPosition
from llama_lab.model.rope.rotation import (
    FirstCoordinates,
    HalfPairs,
    InterleavedPairs,
    rotated_width,
)
from llama_lab.model.settings import refuse_idle, require_choice

FaultKind = Literal[
    "rope_queries_only",
    "mixed_rope_pairing",
    "no_final_norm",
    "kv_tiled",
    "no_causal_mask",
    "unscaled_scores",
]
FLAG = "model.fault"


@dataclass(frozen=True)
class TurnedApart(TokenPositions):
    """Attention turns its queries first and its keys second: here each in a way of its own."""

    turns: Iterator[Callable[[Tensor], Tensor]]

    def rotate(self, heads: Tensor) -> Tensor:
        return next(self.turns)(heads)


@dataclass(frozen=True)
class Altered(TokenPositions):
    """Queries, keys and values, the cache's among them, are changed before they are mixed."""

    sound: TokenPositions
    alter: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]

    def rotate(self, heads: Tensor) -> Tensor:
        return self.sound.rotate(heads)

    def attend(self, attention: DotProductAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.sound.attend(attention, *self.alter(q, k, v))


@dataclass(frozen=True)
class Unmasked(TokenPositions):
    """The future is seen; a window still hides what lies further back."""

    sound: TokenPositions
    position: Position

    def rotate(self, heads: Tensor) -> Tensor:
        return self.sound.rotate(heads)

    def attend(self, attention: DotProductAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n_queries, window = q.size(2), self.position.window
        distance = distances(k.size(2) - n_queries, n_queries, q.device)
        if isinstance(self.position, AlibiPosition):
            # By the formula alone: in the future, the distance is negative and the bias a bonus.
            bias = -self.position.slopes(q.device)[:, None, None] * distance
            if window is not None:
                bias = bias.masked_fill(distance >= window, float("-inf"))
            return BiasMask(bias[None], is_causal=False).attend(attention, q, k, v)
        mask = None if window is None else distance < window
        return AttentionMask(mask, is_causal=False).attend(attention, q, k, v)


def exchange_positions(
    decoder: Decoder, exchange: Callable[[TokenPositions, LayerKind], TokenPositions]
) -> None:
    """Give each layer's attention what ``exchange`` makes of its positions."""

    def hang(block: nn.Module, kind: LayerKind) -> None:
        def hook(attention: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            x, positions, *others = arguments
            return (x, exchange(positions, kind), *others)

        assert isinstance(block, Block)
        block.attention.register_forward_pre_hook(hook)

    for block, kind in zip(decoder.blocks, decoder.layer_positions.kinds, strict=True):
        hang(block, kind)


def rope_queries_only(decoder: Decoder) -> None:
    """Queries are turned to their positions, keys are not.

    Scores then depend on where a query stands instead of how far a key lies behind it. Symptom:
    nothing breaks, loss falls, and ends higher, near that of a model without positions.
    """

    def exchange(positions: TokenPositions, kind: LayerKind) -> TokenPositions:
        if not kind.has_position:
            return positions
        return TurnedApart(positions.mask, iter((positions.rotate, lambda keys: keys)))

    exchange_positions(decoder, exchange)


def mixed_rope_pairing(decoder: Decoder) -> None:
    """Queries are turned in the pairing of the config, keys in the other one.

    It happens where weights of Meta's layout meet code for Hugging Face's. Symptom: good weights
    score far worse, more so in long texts; a model that is trained so from the beginning learns,
    and ends somewhat higher than a sound one.
    """

    def exchange(positions: TokenPositions, kind: LayerKind) -> TokenPositions:
        if not kind.has_position:
            return positions
        turns = iter((positions.rotate, in_other_pairing(positions).rotate))
        return TurnedApart(positions.mask, turns)

    exchange_positions(decoder, exchange)


def in_other_pairing(positions: TokenPositions) -> TokenPositions:
    """The same angles, for pairs of the other kind."""
    if isinstance(positions, FirstCoordinates):
        return replace(positions, turned=in_other_pairing(positions.turned))
    assert isinstance(positions, HalfPairs)
    if isinstance(positions, InterleavedPairs):
        cos, sin = (
            HalfPairs.join(x[..., ::2], x[..., 1::2]) for x in (positions.cos, positions.sin)
        )
        return HalfPairs(positions.mask, cos=cos, sin=sin)
    cos, sin = (InterleavedPairs.join(*x.chunk(2, dim=-1)) for x in (positions.cos, positions.sin))
    return InterleavedPairs(positions.mask, cos=cos, sin=sin)


def no_final_norm(decoder: Decoder) -> None:
    """The head reads the residual stream as it is; the final norm is there and not called.

    Symptom: the scale of the logits follows the stream's, which grows with depth and in training.
    Loss falls more slowly or unsteadily, and a deeper model does not help. The norm's parameters
    get no gradient, so they stay as they were.
    """
    decoder.final_norm.requires_grad_(False)  # DDP waits for the gradient of what may have one
    decoder.final_norm.register_forward_hook(lambda norm, arguments, output: arguments[0])


def kv_tiled(decoder: Decoder) -> None:
    """Query head h reads key/value head h mod K instead of h // (H/K).

    That is ``repeat`` in the place of ``repeat_interleave``. Symptom: good weights (imported, or
    from a sound run) give noise, while a model that is trained so from the beginning is as good as
    any, for it is a sound one whose query heads have changed places.
    """
    attention = decoder.config.attention
    copies = attention.n_heads // attention.kv_heads

    def tile(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q, k.repeat(1, copies, 1, 1), v.repeat(1, copies, 1, 1)

    for module in decoder.modules():
        if isinstance(module, Attention):
            module.is_grouped = False
        if isinstance(module, ScoredAttention):
            module.group = 1
    exchange_positions(decoder, lambda positions, kind: Altered(positions.mask, positions, tile))


def no_causal_mask(decoder: Decoder) -> None:
    """Every token sees the whole text, its own successor too; a window limits the past alone.

    Symptom: loss falls towards 0, in validation too, for the token to be predicted is read off;
    generated text is poor, for there the future is missing. Generation works: a token is read when
    it comes. Those before it stay as they were in a cache, and are made anew, with it visible,
    without one, so that here alone the two give different texts.
    """
    of_kind = decoder.layer_positions.of_kind
    exchange_positions(
        decoder, lambda positions, kind: Unmasked(positions.mask, positions, of_kind[kind])
    )


def unscaled_scores(decoder: Decoder) -> None:
    """Scores are q kᵀ, without the 1 / √E.

    Symptom: where heads are wide the softmax is nearly one-hot early on, and its gradients vanish;
    loss falls late, or unsteadily at a rate that a sound model takes.
    """
    root = decoder.config.head_dim**0.5

    def undo(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return q * root, k, v

    exchange_positions(decoder, lambda positions, kind: Altered(positions.mask, positions, undo))


def idle_rope(config: DecoderConfig) -> str | None:
    """Why a fault of rope would do nothing, if so."""
    if config.position.kind != "rope":
        return f"position.kind {config.position.kind} rotates nothing"
    return lone_token(config)


def idle_pairing(config: DecoderConfig) -> str | None:
    """Why mixed pairings would do nothing, if so."""
    if because := idle_rope(config):
        return because
    if rotated_width(config.head_dim, config.position.rope_fraction) > 2:
        return None
    fraction = config.position.rope_fraction
    share = "" if fraction is None else f" and position.rope_fraction {fraction}"
    return f"attention.head_dim {config.head_dim}{share} leave rope a single pair, alike in both"


def idle_final_norm(config: DecoderConfig) -> str | None:
    """Why leaving out the final norm would do nothing, if so."""
    placement = config.norm.placement
    has_one = BLOCKS[placement].has_final_norm
    return None if has_one else f"norm.placement {placement} has no final norm"


def idle_tiling(config: DecoderConfig) -> str | None:
    """Why tiled key/value heads would do nothing, if so."""
    n_heads, kv_heads = config.attention.n_heads, config.attention.kv_heads
    if 1 < kv_heads < n_heads:
        return None
    return (
        f"attention.n_kv_heads {kv_heads} of attention.n_heads {n_heads} is repeated alike either "
        "way, which a number between 1 and n_heads is not"
    )


def idle_mask(config: DecoderConfig) -> str | None:
    """Why a missing mask would do nothing, if so."""
    return "context_length 1 has no future" if config.context_length == 1 else None


def idle_scale(config: DecoderConfig) -> str | None:
    """Why scores without their scale would do nothing, if so."""
    if config.head_dim == 1:
        return "attention.head_dim 1 has a root of 1"
    # Sinks take a share even of a score that stands alone.
    return None if config.attention.sinks else lone_token(config)


def lone_token(config: DecoderConfig) -> str | None:
    """Why no score decides anything, if so."""
    if config.context_length == 1:
        return "context_length 1 leaves a token itself alone to look at"
    return None


class Fault(NamedTuple):
    """What a kind is made of."""

    plant: Callable[[Decoder], None]
    """Makes the mistake in a decoder that is built; its docstring says what a learner sees."""

    idle: Callable[[DecoderConfig], str | None]
    """The settings under which it would do nothing, in words; ``None`` where it does something."""


FAULTS: dict[FaultKind, Fault] = {
    "rope_queries_only": Fault(rope_queries_only, idle_rope),
    "mixed_rope_pairing": Fault(mixed_rope_pairing, idle_pairing),
    "no_final_norm": Fault(no_final_norm, idle_final_norm),
    "kv_tiled": Fault(kv_tiled, idle_tiling),
    "no_causal_mask": Fault(no_causal_mask, idle_mask),
    "unscaled_scores": Fault(unscaled_scores, idle_scale),
}


def check_fault(config: DecoderConfig, fault: FaultKind | None) -> None:
    """Refuse a fault that is unknown, or would do nothing in this decoder.

    Raises:
        SettingError: It names the fault and the setting that makes it idle.
    """
    if fault is None:
        return
    require_choice(FLAG, fault, FaultKind)
    if because := FAULTS[fault].idle(config):
        refuse_idle(FLAG, fault, because=because)


def plant_fault(decoder: Decoder, fault: FaultKind | None) -> None:
    """Make the mistake ``fault`` in ``decoder``, once; ``None`` leaves it sound.

    Raises:
        SettingError: See :func:`check_fault`.
    """
    check_fault(decoder.config, fault)
    if fault is not None:
        FAULTS[fault].plant(decoder)
