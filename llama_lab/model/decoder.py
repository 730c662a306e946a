"""The decoder-only Transformer: tokens in, hidden states out, logits on request.

B batch, T time, D model width, V vocabulary.
"""

from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llama_lab.model.block import BLOCKS, build_dropout
from llama_lab.model.cache import DecoderCache
from llama_lab.model.config import DecoderConfig as DecoderConfig
from llama_lab.model.config import layer_kinds
from llama_lab.model.flex import serves_heads
from llama_lab.model.init_schemes import WithStartValues
from llama_lab.model.loss import next_token_loss
from llama_lab.model.masks import Documents
from llama_lab.model.norms import build_norm
from llama_lab.model.positions import LayerPositions, PositionSizes, build_position
from llama_lab.model.settings import require
from llama_lab.model.softcap import softcap


class TokenEmbedding(nn.Embedding):
    """weight[token]: tokens ``[B, T]`` to ``[B, T, D]``."""

    def reset_parameters(self) -> None:
        # These hold until `initialise` draws the real ones. On `meta`, the parent's normal_ would
        # import sympy, and a command that only counts parameters would wait seconds for it.
        nn.init.uniform_(self.weight, -0.02, 0.02)


class ScaledEmbedding(TokenEmbedding):
    """weight[token] · √D, so that positions of unit size do not drown the tokens.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.4.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Tokens ``[B, T]`` to ``[B, T, D]``."""
        return super().forward(input) * self.embedding_dim**0.5


class TokenShift(WithStartValues):
    """x_t + weight · x_(t-1), channel by channel; weights start at 0.

    Source: Peng et al. 2023 (RWKV), arXiv:2305.13048, section 3.1. There, every layer mixes a token
    with the one before it; here only the embeddings are mixed, which needs no extra memory in
    generation.
    """

    starts = MappingProxyType({"weight": 0.0})

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = self.start("weight", dim)

    def forward(self, x: Tensor, before: Tensor | None, begins: Tensor | None) -> Tensor:
        """``[B, T, D]`` to the same.

        Args:
            x: Embeddings.
            before: Embedding of the token before the first one ``[B, 1, D]``, or ``None``.
            begins: True for tokens that begin a document, and so have no token before them ``[B,
                T]``.
        """
        first = x.new_zeros(x.size(0), 1, x.size(2)) if before is None else before
        previous = torch.cat((first, x[:, :-1]), dim=1)
        if begins is not None:
            previous = previous.masked_fill(begins[..., None], 0.0)
        return x + (self.weight * previous).to(x.dtype)


class Decoder(nn.Module):
    """A decoder: embedding, positions, layers, a final norm where the placement has one, and a
    head.

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
            "--model.decoder.vocab_size null gives the embedding no size: set a number",
        )
        assert config.vocab_size is not None
        self.config = config
        embedding = ScaledEmbedding if config.embedding_scale else TokenEmbedding
        block = BLOCKS[config.norm.placement]
        sizes = PositionSizes(
            config.context_length,
            config.dim,
            config.head_dim,
            config.attention.n_heads,
            serves_heads(config.head_dim, config.dropout),
        )

        self.embedding = embedding(config.vocab_size, config.dim)
        self.token_shift = TokenShift(config.dim) if config.token_shift else None
        self.position_embedding = build_position(config.position, sizes)
        self.layer_positions = LayerPositions(config.position, sizes, layer_kinds(config))
        self.dropout = build_dropout(config.dropout)
        self.blocks = nn.ModuleList(block(config) for _ in range(config.n_layers))
        self.final_norm = (
            build_norm(config.norm, config.dim) if block.has_final_norm else nn.Identity()
        )
        if not config.tie_embeddings:
            self.head = nn.Linear(config.dim, config.vocab_size, bias=False)

    def forward(
        self,
        tokens: Tensor,
        cache: DecoderCache | None = None,
        *,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Tokens ``[B, T]`` to hidden states ``[B, T, D]``, after the final norm.

        With ``documents``, one number per token ``[B, T]`` that changes where a document begins,
        each document is read as if it were alone. Without it, the whole row is one text from
        position 0. It does not go together with a cache.

        With a cache, the tokens follow those that it holds, and the cache keeps them too. Where
        positions depend on the length of the text (rope_scaling dynamic, beyond the original
        context), all tokens are computed again, because the cached keys and values are no longer
        valid.

        Raises:
            SettingError: The text is longer than the learned positions.
            ValueError: The cache is too short, or was made for another batch size.
        """
        return self.final_norm(self.read(tokens, cache=cache, documents=documents))

    def read(
        self,
        tokens: Tensor,
        *,
        cache: DecoderCache | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Tokens ``[B, T]`` to the output of the last layer ``[B, T, D]``, before the final
        norm.
        """
        n_tokens = tokens.size(1)
        past = 0 if cache is None else cache.length
        apart = None if documents is None else Documents.of(documents)
        before = None
        if cache is not None:
            cache.require_room(*tokens.shape)
            apart, before = cache.documents, cache.last_tokens
            cache.write(tokens)
            if not self.layer_positions.stays_valid(past, n_tokens):
                cache.reset()
                return self.read(cache.tokens[:, : past + n_tokens], cache=cache)[:, past:]

        x = self.embedding(tokens)
        if self.token_shift is not None:
            begins = None if apart is None else apart.offsets == 0
            x = self.token_shift(x, None if before is None else self.embedding(before), begins)
        if apart is None:
            positions = self.layer_positions.at(past, n_tokens, tokens.device)
            x = self.position_embedding.embed(x, past)
        else:
            positions = self.layer_positions.within(apart)
            x = self.position_embedding.embed_within(x, apart)
        x = self.dropout(x)
        for i, block in enumerate(self.blocks):
            x = block(x, positions[i], cache=None if cache is None else cache.layers[i])
        if cache is not None:
            cache.advance(n_tokens)
        return x

    def score(
        self,
        tokens: Tensor,
        targets: Tensor,
        *,
        reduction: Literal["mean", "sum"],
        z_loss: float = 0.0,
        documents: Tensor | None = None,
    ) -> Tensor:
        """The loss in nats of tokens ``[B, T]`` and of the targets that follow them ``[B, T]``.

        With and without ``documents``, the last token of a document is scored on the first token of
        the next one, so that both count the same targets.
        """
        x = self.read(tokens, documents=documents)
        return self.finish(x, targets, reduction=reduction, z_loss=z_loss)

    def finish(
        self,
        x: Tensor,
        targets: Tensor,
        *,
        reduction: Literal["mean", "sum"],
        z_loss: float = 0.0,
    ) -> Tensor:
        """The loss of the hidden states ``[B, T, D]`` that :meth:`read` returned."""
        return self.loss(self.final_norm(x), targets, reduction=reduction, z_loss=z_loss)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states ``[B, T, D]`` to logits ``[B, T, V]``."""
        return softcap(F.linear(hidden, self.head_weight), self.config.logit_softcap)

    def loss(
        self,
        hidden: Tensor,
        targets: Tensor,
        *,
        reduction: Literal["mean", "sum"],
        z_loss: float = 0.0,
    ) -> Tensor:
        """Next-token cross-entropy of :meth:`logits`, in nats; see :func:`next_token_loss`."""
        cap, weight = self.config.logit_softcap, self.head_weight
        return next_token_loss(hidden, weight, targets, reduction=reduction, cap=cap, z_loss=z_loss)

    @property
    def head_weight(self) -> Tensor:
        """The head's weight ``[V, D]``; it is the embedding's weight if they are tied."""
        return self.embedding.weight if self.config.tie_embeddings else self.head.weight
