"""One layer: attention and feed-forward, each added to the residual stream.

B batch, T time, D model width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn

from llama_lab.model.attention import build_attention
from llama_lab.model.cache import LayerCache
from llama_lab.model.feed_forward import build_feed_forward
from llama_lab.model.norms import NormPlacement, build_norm
from llama_lab.model.places import Places

if TYPE_CHECKING:
    from llama_lab.model.decoder import DecoderConfig


class Block(nn.Module):
    """The parts that every residual layout arranges; a layout is its ``forward``."""

    has_final_norm: ClassVar[bool]
    """Whether the stream that leaves the last layer still has to be normalised."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.attention_norm = build_norm(config.norm, config.dim)
        self.attention = build_attention(config.attention, config.dim, dropout=config.dropout)
        self.feed_forward_norm = build_norm(config.norm, config.dim)
        self.feed_forward = build_feed_forward(config.feed_forward, config.dim)
        self.dropout = build_dropout(config.dropout)


class PreNormBlock(Block):
    """Sublayers read a normalised copy; the stream itself runs through untouched.

        x ──┬──────────────────────────────(+)──┬─────────────────────────────────(+)── y
            └─ norm ─ attention ─ dropout ──┘   └─ norm ─ feed-forward ─ dropout ──┘

    Source: Xiong et al. 2020, arXiv:2002.04745; GPT-2 and LLaMA have it.
    """

    has_final_norm = True

    def forward(self, x: Tensor, places: Places, cache: LayerCache | None = None) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``."""
        x = x + self.dropout(self.attention(self.attention_norm(x), places, cache))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class PostNormBlock(Block):
    """The sum is normalised, so the stream leaves every sublayer at unit scale.

        x ──┬───────────────────────(+)─ norm ──┬──────────────────────────(+)─ norm ── y
            └─ attention ─ dropout ──┘          └─ feed-forward ─ dropout ──┘

    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """

    has_final_norm = False

    def forward(self, x: Tensor, places: Places, cache: LayerCache | None = None) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``."""
        x = self.attention_norm(x + self.dropout(self.attention(x, places, cache)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))


BLOCKS: dict[NormPlacement, type[Block]] = {
    "pre": PreNormBlock,
    "post": PostNormBlock,
}


def build_dropout(probability: float) -> nn.Module:
    """Dropout (Srivastava et al. 2014), or nothing at all: at 0 it would still copy its input."""
    return nn.Dropout(probability) if probability > 0 else nn.Identity()
