"""Settings of the architecture, and the rules that hold between its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llama_lab.model.attention import AttentionConfig, check_head_dim, check_heads
from llama_lab.model.feed_forward import FeedForwardConfig
from llama_lab.model.init_schemes import InitConfig
from llama_lab.model.layers import LayerKind
from llama_lab.model.norms import NormConfig
from llama_lab.model.positions import PositionConfig, check_rope_width
from llama_lab.model.rope.rotation import rotated_width
from llama_lab.model.rope.scaling import check_rope_scaling
from llama_lab.model.settings import (
    from_mapping,
    refuse_idle,
    require,
    require_fraction,
    require_positive,
    require_switch,
    require_whole,
)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The architecture of the model; the defaults give a small LLaMA."""

    dim: int = 128
    """Width of the residual stream."""

    n_layers: int = 4
    """Number of layers; each layer has an attention and a feed-forward."""

    context_length: int = 128
    """Number of tokens that the model sees at once in training."""

    vocab_size: int | None = None
    """Number of tokens in the vocabulary; null means as many as the tokenizer has."""

    tie_embeddings: bool = False
    """Use the token embedding as the output head too, so that both are one tensor."""

    embedding_scale: bool = False
    """Multiply the token embeddings by sqrt(dim), as the 2017 Transformer does."""

    token_shift: bool = False
    """Add a learned share of the previous token's embedding to each embedding, one share per
    channel (a part of RWKV's token shift), so that the model knows pairs of tokens before any
    attention."""

    logit_softcap: float | None = None
    """Soft limit of the logits, which become cap · tanh(logit / cap), in training too (Gemma 2);
    null means no limit."""

    dropout: float = 0.0
    """Probability of dropout in training, on embeddings, on the outputs of sublayers and on
    attention weights: at least 0 and below 1."""

    norm: NormConfig = field(default_factory=NormConfig)
    """The normalisation in every layer, and its place around the sublayers."""

    position: PositionConfig = field(default_factory=PositionConfig)
    """The position encoding: how the model knows the order of the tokens."""

    attention: AttentionConfig = field(default_factory=AttentionConfig)
    """The attention heads of every layer."""

    feed_forward: FeedForwardConfig = field(default_factory=FeedForwardConfig)
    """The feed-forward sublayer of every layer."""

    init: InitConfig = field(default_factory=InitConfig)
    """The weights that training starts from."""

    def __post_init__(self) -> None:
        for name in ("dim", "n_layers", "context_length"):
            require_whole(f"model.decoder.{name}", getattr(self, name))
        if self.vocab_size is not None:
            require_whole("model.decoder.vocab_size", self.vocab_size)
        require_switch("model.decoder.tie_embeddings", self.tie_embeddings)
        require_switch("model.decoder.embedding_scale", self.embedding_scale)
        require_switch("model.decoder.token_shift", self.token_shift)
        require_fraction("model.decoder.dropout", self.dropout)
        if self.logit_softcap is not None:
            require_positive("model.decoder.logit_softcap", self.logit_softcap)
        if self.attention.head_dim is None:
            check_heads(self.dim, self.attention.n_heads)
        if self.position.kind == "rope":
            if self.attention.head_dim is None:
                check_rope_width(self.dim, self.attention.n_heads)
            else:
                check_head_dim(self.attention.head_dim)
        check_layers(self)
        self.feed_forward.width(self.dim)

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        own = self.attention.head_dim
        return self.dim // self.attention.n_heads if own is None else own

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DecoderConfig:
        """The inverse of ``dataclasses.asdict``; a missing key keeps its default.

        Raises:
            SettingError: A key is unknown, or the config refuses a value.
        """
        return from_mapping(cls, values, flag="model.decoder")


def layer_kinds(config: DecoderConfig) -> list[LayerKind]:
    """One :class:`LayerKind` per layer, from the first layer on."""
    every = config.position.nope_every
    return [
        LayerKind(config.attention.window_of(i), every is None or (i + 1) % every != 0)
        for i in range(config.n_layers)
    ]


def check_layers(config: DecoderConfig) -> None:
    """Refuse settings of windows and positions that would do nothing in any layer."""
    attention, position = config.attention, config.position
    flag = "model.decoder.attention.window"
    if attention.window is not None and attention.window >= config.context_length:
        because = f"it is not below context_length {config.context_length}"
        refuse_idle(flag, attention.window, because=because)
    if all(kind.window is None for kind in layer_kinds(config)):
        because = (
            f"attention.window_pattern {attention.window_pattern} has no L within n_layers "
            f"{config.n_layers}"
        )
        refuse_idle(flag, attention.window, because=because)
    if position.nope_every is not None and position.nope_every > config.n_layers:
        because = f"n_layers {config.n_layers} is smaller"
        refuse_idle("model.decoder.position.nope_every", position.nope_every, because=because)
    if position.kind == "rope":
        check_rope(config)


def check_rope(config: DecoderConfig) -> None:
    """Refuse settings of rope that these heads cannot have, or that no layer would use."""
    position = config.position
    flag = "model.decoder.position"
    width = rotated_width(config.head_dim, position.rope_fraction)
    check_rope_scaling(position.rope_scaling, width, position.theta)
    if position.rope_local_theta is None:
        return
    windows = {kind.window for kind in layer_kinds(config) if kind.has_position}
    if windows <= {None}:
        because = "attention.window null makes every layer global"
        if config.attention.window is not None:
            because = (
                f"nope_every {position.nope_every} removes positions from every windowed layer"
            )
        refuse_idle(f"{flag}.rope_local_theta", position.rope_local_theta, because=because)
    if None not in windows:
        because = f"rope_local_theta {position.rope_local_theta} replaces it in every layer"
        refuse_idle(f"{flag}.rope_theta", position.rope_theta, because=because)
        require(
            position.rope_scaling.kind == "none",
            f"--{flag}.rope_scaling.kind {position.rope_scaling.kind} would do nothing: {because}; "
            f"set --{flag}.rope_scaling.kind none",
        )
