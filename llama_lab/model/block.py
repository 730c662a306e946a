"""One layer: attention and feed-forward, each added to the residual stream.

B batch, T time, D model width.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from llama_lab.model.attention import build_attention
from llama_lab.model.config import DecoderConfig
from llama_lab.model.feed_forward import build_feed_forward
from llama_lab.model.layer_cache import LayerCache
from llama_lab.model.masks import TokenPositions
from llama_lab.model.norms import NormPlacement, build_norm


class Block(nn.Module):
    """The parts that all residual layouts share; a layout chooses its norms and its ``forward``."""

    norms: ClassVar[tuple[str, ...]] = ("attention_norm", "feed_forward_norm")
    """The norms that the layout has, from the four below."""

    has_final_norm: ClassVar[bool] = True
    """Whether the decoder normalises the output of the last layer."""

    attention_norm: nn.Module
    attention_post_norm: nn.Module
    feed_forward_norm: nn.Module
    feed_forward_post_norm: nn.Module

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.add_norm("attention_norm", config)
        self.attention = build_attention(
            config.attention, config.dim, norm=config.norm, dropout=config.dropout
        )
        self.add_norm("attention_post_norm", config)
        self.add_norm("feed_forward_norm", config)
        self.feed_forward = build_feed_forward(config.feed_forward, config.dim)
        self.add_norm("feed_forward_post_norm", config)
        self.dropout = build_dropout(config.dropout)

    def add_norm(self, name: str, config: DecoderConfig) -> None:
        """Add the norm called ``name``, if this layout has it."""
        if name in self.norms:
            self.add_module(name, build_norm(config.norm, config.dim))


class PreNormBlock(Block):
    """Sublayers read a normalised copy of the stream; the stream itself is not normalised.

        x ──┬──────────────────────────────(+)──┬─────────────────────────────────(+)── y
            └─ norm ─ attention ─ dropout ──┘   └─ norm ─ feed-forward ─ dropout ──┘

    Source: Xiong et al. 2020, arXiv:2002.04745; GPT-2 and LLaMA have it.
    """

    def forward(
        self, x: Tensor, positions: TokenPositions, cache: LayerCache | None = None
    ) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``."""
        x = x + self.dropout(self.attention(self.attention_norm(x), positions, cache))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class PostNormBlock(Block):
    """The sum is normalised, so the stream leaves every sublayer at unit scale.

        x ──┬───────────────────────(+)─ norm ──┬──────────────────────────(+)─ norm ── y
            └─ attention ─ dropout ──┘          └─ feed-forward ─ dropout ──┘

    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """

    has_final_norm = False

    def forward(
        self, x: Tensor, positions: TokenPositions, cache: LayerCache | None = None
    ) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``."""
        x = self.attention_norm(x + self.dropout(self.attention(x, positions, cache)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


class SandwichNormBlock(Block):
    """As pre, and the output of each sublayer is normalised as well.

        x ──┬─────────────────────────────────────(+)──┬──────────────────────────────(+)── y
            └─ norm ─ attention ─ norm ─ dropout ──┘   └─ the same of feed-forward ────┘

    Source: Ding et al. 2021, arXiv:2105.13290 (CogView); Gemma 2 (2024, arXiv:2408.00118).
    """

    norms = (
        "attention_norm",
        "attention_post_norm",
        "feed_forward_norm",
        "feed_forward_post_norm",
    )

    def forward(
        self, x: Tensor, positions: TokenPositions, cache: LayerCache | None = None
    ) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``."""
        mixed = self.attention(self.attention_norm(x), positions, cache)
        x = x + self.dropout(self.attention_post_norm(mixed))
        hidden = self.feed_forward(self.feed_forward_norm(x))
        return x + self.dropout(self.feed_forward_post_norm(hidden))


class ReorderedNormBlock(Block):
    """Sublayers read the stream itself; their output is normalised.

        x ──┬──────────────────────────────(+)──┬─────────────────────────────────(+)── y
            └─ attention ─ norm ─ dropout ──┘   └─ feed-forward ─ norm ─ dropout ──┘

    Source: OLMo 2 (2024, arXiv:2501.00656), after Liu et al. 2021, arXiv:2111.09883.
    """

    norms = ("attention_post_norm", "feed_forward_post_norm")

    def forward(
        self, x: Tensor, positions: TokenPositions, cache: LayerCache | None = None
    ) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``."""
        x = x + self.dropout(self.attention_post_norm(self.attention(x, positions, cache)))
        return x + self.dropout(self.feed_forward_post_norm(self.feed_forward(x)))


class ParallelBlock(Block):
    """Both sublayers read the same normalised copy, so that neither waits for the other.

                    ┌─ attention ──── dropout ─┐
        x ──┬─ norm ┴─ feed-forward ─ dropout ─┴─(+)── y
            └─────────────────────────────────────┘

    The one norm is ``attention_norm``. Source: GPT-J (Wang & Komatsuzaki 2021); PaLM (Chowdhery et
    al. 2022, arXiv:2204.02311). GPT-NeoX differs: it has one norm for each sublayer.
    """

    norms = ("attention_norm",)

    def forward(
        self, x: Tensor, positions: TokenPositions, cache: LayerCache | None = None
    ) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``."""
        normed = self.attention_norm(x)
        mixed = self.attention(normed, positions, cache)
        return x + self.dropout(mixed) + self.dropout(self.feed_forward(normed))


BLOCKS: dict[NormPlacement, type[Block]] = {
    "pre": PreNormBlock,
    "post": PostNormBlock,
    "sandwich": SandwichNormBlock,
    "reordered": ReorderedNormBlock,
    "parallel": ParallelBlock,
}


def build_dropout(probability: float) -> nn.Module:
    """Dropout (Srivastava et al. 2014), or the identity at 0, where dropout would copy its
    input.
    """
    return nn.Dropout(probability) if probability > 0 else nn.Identity()
