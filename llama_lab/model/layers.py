"""In what the layers of one decoder differ, and the rules of those settings together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from llama_lab.model.rope import rotated_width
from llama_lab.model.rope_scaling import check_rope_scaling
from llama_lab.model.settings import refuse_idle, require

if TYPE_CHECKING:
    from llama_lab.model.decoder import DecoderConfig


class LayerKind(NamedTuple):
    """How a layer's attention looks at the text; layers of one kind share what they know of it."""

    window: int | None
    """Tokens that a token sees, itself included; ``None`` means all up to itself."""

    has_position: bool
    """Whether the layer's attention is told positions, where the position's kind does so. Layers
    without between layers with: Yang et al. 2025, arXiv:2501.18795."""


def layer_kinds(config: DecoderConfig) -> list[LayerKind]:
    """One :class:`LayerKind` a layer, from the first layer on."""
    every = config.position.nope_every
    return [
        LayerKind(config.attention.window_of(i), every is None or (i + 1) % every != 0)
        for i in range(config.n_layers)
    ]


def check_layers(config: DecoderConfig) -> None:
    """Refuse settings of windows and positions that would do nothing in these layers."""
    attention, position = config.attention, config.position
    flag = "model.decoder.attention.window"
    if attention.window is not None and attention.window >= config.context_length:
        because = f"it is not below context_length {config.context_length}"
        refuse_idle(flag, attention.window, because=because)
    if all(kind.window is None for kind in layer_kinds(config)):
        because = (
            f"attention.window_pattern {attention.window_pattern} has its first L after n_layers "
            f"{config.n_layers}"
        )
        refuse_idle(flag, attention.window, because=because)
    if position.nope_every is not None and position.nope_every > config.n_layers:
        because = f"n_layers {config.n_layers} is less"
        refuse_idle("model.decoder.position.nope_every", position.nope_every, because=because)
    if position.kind == "rope":
        check_rope(config)


def check_rope(config: DecoderConfig) -> None:
    """Refuse what rope cannot do with these heads, or what no layer would use."""
    position = config.position
    flag = "model.decoder.position"
    width = rotated_width(config.head_dim, position.rope_fraction)
    check_rope_scaling(position.rope_scaling, width, position.theta)
    if position.rope_local_theta is None:
        return
    windows = {kind.window for kind in layer_kinds(config) if kind.has_position}
    if windows <= {None}:
        because = "attention.window null leaves every layer global"
        if config.attention.window is not None:
            because = f"nope_every {position.nope_every} takes every windowed layer"
        refuse_idle(f"{flag}.rope_local_theta", position.rope_local_theta, because=because)
    if None not in windows:
        because = f"rope_local_theta {position.rope_local_theta} serves every rotated layer"
        refuse_idle(f"{flag}.rope_theta", position.rope_theta, because=because)
        require(
            position.rope_scaling.kind == "none",
            f"--{flag}.rope_scaling.kind {position.rope_scaling.kind} would do nothing: {because}; "
            f"set --{flag}.rope_scaling.kind none",
        )
