"""The decoder-only Transformer: tokens in, hidden states out, logits on request.

B batch, T time, D model width, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from llama_lab.model.attention import AttentionConfig, check_head_dim, check_heads
from llama_lab.model.block import BLOCKS, build_dropout
from llama_lab.model.cache import DecoderCache
from llama_lab.model.feed_forward import FeedForwardConfig
from llama_lab.model.flex import serves_heads
from llama_lab.model.initialise import InitConfig
from llama_lab.model.layers import check_layers, layer_kinds
from llama_lab.model.loss import next_token_loss
from llama_lab.model.norms import NormConfig, build_norm
from llama_lab.model.positions import (
    LayerPositions,
    PositionConfig,
    Sizes,
    build_position,
    check_rope_width,
)
from llama_lab.model.settings import (
    from_mapping,
    require,
    require_fraction,
    require_positive,
    require_switch,
    require_whole,
)
from llama_lab.model.softcap import softcap


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The architecture; the defaults are a small LLaMA."""

    dim: int = 128
    """Width of the residual stream."""

    n_layers: int = 4
    """Layers, each an attention and a feed-forward."""

    context_length: int = 128
    """Tokens that the model is trained to see at once."""

    vocab_size: int | None = None
    """Tokens that the model knows; null means as many as the tokenizer has."""

    tie_embeddings: bool = False
    """Whether the output head is the token embedding itself, one tensor in two places."""

    embedding_scale: bool = False
    """Whether token embeddings are multiplied by sqrt(dim) on the way in, as in 2017."""

    logit_softcap: float | None = None
    """Soft limit of the logits, which become cap · tanh(logit / cap), in training too (Gemma 2);
    null means none."""

    dropout: float = 0.0
    """Probability, while training, of dropping an embedding's, a sublayer's or an attention
    weight's entry; from 0 up to, not including, 1."""

    norm: NormConfig = field(default_factory=NormConfig)
    """The normalisation of every layer, and its place around the sublayers."""

    position: PositionConfig = field(default_factory=PositionConfig)
    """How the model knows the order of the tokens."""

    attention: AttentionConfig = field(default_factory=AttentionConfig)
    """The heads of every layer's attention."""

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
    def from_dict(cls, values: Mapping[str, Any]) -> "DecoderConfig":
        """The inverse of ``dataclasses.asdict``; what is absent keeps its default.

        Raises:
            SettingError: An unknown key, or a value that the config refuses.
        """
        return from_mapping(cls, values, flag="model.decoder")


class TokenEmbedding(nn.Embedding):
    """weight[token]: tokens ``[B, T]`` to ``[B, T, D]``."""

    def reset_parameters(self) -> None:
        # Until `initialise` draws the real ones. The parent's normal_ would import sympy on `meta`,
        # which takes seconds that whoever only counts parameters would wait for.
        nn.init.uniform_(self.weight, -0.02, 0.02)


class ScaledEmbedding(TokenEmbedding):
    """weight[token] · √D, so that positions of unit size do not drown the tokens.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.4.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Tokens ``[B, T]`` to ``[B, T, D]``."""
        return super().forward(input) * self.embedding_dim**0.5


class Decoder(nn.Module):
    """Embedding, positions, layers, final norm where the placement has one, head.

    With ``tie_embeddings`` the head is the embedding (Press & Wolf 2017, arXiv:1608.05859), and
    ``embedding.weight`` is the only tensor of the two. Built on ``meta``, the decoder works after
    ``to_empty`` and ``initialise`` or ``load_state_dict``: it has no buffers.

    Raises:
        SettingError: ``config.vocab_size`` is null.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        require(
            config.vocab_size is not None,
            "--model.decoder.vocab_size null leaves the embedding without a size: set it",
        )
        assert config.vocab_size is not None
        self.config = config
        embedding = ScaledEmbedding if config.embedding_scale else TokenEmbedding
        block = BLOCKS[config.norm.placement]
        sizes = Sizes(
            config.context_length,
            config.dim,
            config.head_dim,
            config.attention.n_heads,
            serves_heads(config.head_dim, config.dropout),
        )

        self.embedding = embedding(config.vocab_size, config.dim)
        self.position_embedding = build_position(config.position, sizes)
        self.layer_positions = LayerPositions(config.position, sizes, layer_kinds(config))
        self.dropout = build_dropout(config.dropout)
        self.blocks = nn.ModuleList(block(config) for _ in range(config.n_layers))
        self.final_norm = (
            build_norm(config.norm, config.dim) if block.has_final_norm else nn.Identity()
        )
        if not config.tie_embeddings:
            self.head = nn.Linear(config.dim, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor, cache: DecoderCache | None = None) -> Tensor:
        """Tokens ``[B, T]`` to hidden states ``[B, T, D]``, after the final norm.

        With a cache, the tokens follow those that it holds, and are held by it afterwards. Where
        positions depend on the length of the text (rope_scaling dynamic, past the original
        context), they are read anew with all before them: what the layers made of those is no
        longer what they would make of them now.

        Raises:
            SettingError: Learned positions do not reach so far.
            ValueError: The cache is too short, or made for another batch size.
        """
        n_tokens = tokens.size(1)
        past = 0 if cache is None else cache.length
        if cache is not None:
            cache.require_room(*tokens.shape)
            cache.tokens[:, past : past + n_tokens] = tokens
            if not self.layer_positions.keeps(past, n_tokens):
                cache.reset()
                return self.forward(cache.tokens[:, : past + n_tokens], cache)[:, past:]

        places = self.layer_positions.at(past, n_tokens, tokens.device)
        x = self.dropout(self.position_embedding.embed(self.embedding(tokens), past))
        for i, block in enumerate(self.blocks):
            x = block(x, places[i], None if cache is None else cache.layers[i])
        if cache is not None:
            cache.advance(n_tokens)
        return self.final_norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states ``[B, T, D]`` to logits ``[B, T, V]``."""
        return softcap(F.linear(hidden, self.head_weight), self.config.logit_softcap)

    def loss(self, hidden: Tensor, targets: Tensor, *, reduction: Literal["mean", "sum"]) -> Tensor:
        """Next-token cross-entropy of :meth:`logits`, in nats; see :func:`next_token_loss`."""
        cap = self.config.logit_softcap
        return next_token_loss(hidden, self.head_weight, targets, reduction=reduction, cap=cap)

    @property
    def head_weight(self) -> Tensor:
        """``[V, D]``: the head's weight, the embedding's when tied."""
        return self.embedding.weight if self.config.tie_embeddings else self.head.weight
