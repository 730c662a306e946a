"""Causal self-attention: multi-head, grouped-query or multi-query.

B batch, T time, P positions attended to, D model width, H query heads, K key/value heads,
E head width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from llama_lab.model import flex
from llama_lab.model.init_schemes import WithStartValues
from llama_lab.model.layer_cache import LayerCache
from llama_lab.model.masks import TokenPositions
from llama_lab.model.norms import NormConfig, build_norm
from llama_lab.model.settings import (
    nearest_multiple,
    refuse_idle,
    require,
    require_choice,
    require_positive,
    require_switch,
    require_whole,
)
from llama_lab.model.softcap import softcap

QKNorm = Literal["none", "head", "projection"]


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """The heads of every layer's attention."""

    n_heads: int = 4
    """Number of query heads. Unless head_dim is set, dim must be a multiple of it."""

    n_kv_heads: int | None = None
    """Number of key/value heads, each shared by n_heads / n_kv_heads query heads. Null means
    n_heads (multi-head attention); 1 is multi-query attention."""

    head_dim: int | None = None
    """Width of one head; null means dim / n_heads. A width that is set here need not divide dim."""

    qkv_bias: bool = False
    """Add a bias to the projections to queries, keys and values, and to the gate's projection."""

    output_bias: bool = False
    """Add a bias to the projection back to the model width."""

    window: int | None = None
    """Number of tokens that a token sees in a windowed layer, itself included: with 4 it sees
    itself and the 3 tokens before it (Mistral, Gemma 3). Null means that it sees all tokens up to
    itself. At least 2, and below context_length."""

    window_pattern: str | None = None
    """Which layers are windowed: one letter per layer, L (windowed, local) or G (global), repeated
    from the first layer to the last, such as LLLLLG. Null means all layers. Refused without a
    window."""

    qk_norm: QKNorm = "none"
    """Normalisation of queries and keys by norm.kind, before they get their positions: none, head
    (each head alone: Qwen3, Gemma 3) or projection (all heads together: OLMo 2)."""

    softcap: float | None = None
    """Soft limit of the attention scores, which become softcap · tanh(score / softcap); null means
    no limit. With a limit, all scores are held in memory."""

    sinks: bool = False
    """Give each head a learned logit that takes a share of the attention and adds nothing to the
    result (GPT-OSS). All scores are then held in memory."""

    gate: bool = False
    """Multiply the output of the heads by a sigmoid of the layer's input (Qwen3-Next)."""

    def __post_init__(self) -> None:
        flag = "model.decoder.attention"
        require_whole(f"{flag}.n_heads", self.n_heads)
        for name in ("qkv_bias", "output_bias", "sinks", "gate"):
            require_switch(f"{flag}.{name}", getattr(self, name))
        require_choice(f"{flag}.qk_norm", self.qk_norm, QKNorm)
        if self.head_dim is not None:
            require_whole(f"{flag}.head_dim", self.head_dim)
        if self.softcap is not None:
            require_positive(f"{flag}.softcap", self.softcap)
        self.check_window()
        if self.n_kv_heads is None:
            return
        require_whole("model.decoder.attention.n_kv_heads", self.n_kv_heads)
        divisors = [str(n) for n in range(1, self.n_heads + 1) if self.n_heads % n == 0]
        require(
            self.n_heads % self.n_kv_heads == 0,
            f"--model.decoder.attention.n_kv_heads {self.n_kv_heads} does not divide "
            f"--model.decoder.attention.n_heads {self.n_heads}: choose one of "
            f"{', '.join(divisors)}",
        )

    def check_window(self) -> None:
        """Refuse a window of one token, and a pattern without a window or without a windowed
        layer.
        """
        flag, pattern = "model.decoder.attention.window_pattern", self.window_pattern
        if self.window is None:
            refuse_idle(flag, pattern, because="attention.window null makes every layer global")
            return
        require_whole("model.decoder.attention.window", self.window)
        require(
            self.window > 1,
            "--model.decoder.attention.window 1 lets each token see only itself, so that queries "
            "and keys would do nothing: give 2 or more",
        )
        require(
            pattern is None
            or (isinstance(pattern, str) and set(pattern) <= {"L", "G"} and "L" in pattern),
            f"--{flag} {pattern} is impossible: give letters L (windowed) and G (global) with at "
            f"least one L, or set --model.decoder.attention.window null",
        )

    def window_of(self, layer: int) -> int | None:
        """The window of layer number ``layer``, counted from 0; ``None`` if the layer has no
        window.
        """
        pattern = self.window_pattern or "L"
        return self.window if pattern[layer % len(pattern)] == "L" else None

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads, with the default resolved."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads


def split_then_normalise(projected: Tensor, norm: nn.Module, head_dim: int) -> Tensor:
    """Split ``[B, T, heads · E]`` into heads ``[B, T, heads, E]`` and normalise each head alone."""
    return norm(projected.unflatten(-1, (-1, head_dim))).to(projected.dtype)


def normalise_then_split(projected: Tensor, norm: nn.Module, head_dim: int) -> Tensor:
    """Normalise ``[B, T, heads · E]`` as one vector, then split it into heads ``[B, T, heads,
    E]``.
    """
    return norm(projected).to(projected.dtype).unflatten(-1, (-1, head_dim))


class QKNormParts(NamedTuple):
    """The functions of one kind of qk_norm."""

    split: Callable[[Tensor, nn.Module, int], Tensor]
    build: Callable[[NormConfig, int, int], nn.Module]
    """Build the norm, from its config, the number of heads and the width of a head."""


# Source: Henry et al. 2020, arXiv:2010.04245 (normalisation by length); Dehghani et al. 2023,
# arXiv:2302.05442 (a norm with a gain). Queries and keys each get a new norm of the config's kind
# and eps; with "head", all heads share its gain. layernorm also centres each query and key, and
# adds its bias. dyt takes no statistics: it bounds the entries of a query or key, but does not fix
# its length.
QK_NORMS: dict[QKNorm, QKNormParts] = {
    "none": QKNormParts(split_then_normalise, lambda *_: nn.Identity()),
    "head": QKNormParts(
        split_then_normalise, lambda config, n_heads, head_dim: build_norm(config, head_dim)
    ),
    "projection": QKNormParts(
        normalise_then_split,
        lambda config, n_heads, head_dim: build_norm(config, n_heads * head_dim),
    ),
}


class Attention(nn.Module):
    """softmax(q kᵀ / √E + causal mask) v, head by head, and projected back to the model width.

    K = H is multi-head attention (Vaswani et al. 2017, arXiv:1706.03762), K = 1 multi-query
    (Shazeer 2019, arXiv:1911.02150), between them grouped-query (Ainslie et al. 2023,
    arXiv:2305.13245): query head h reads key/value head h // (H/K).

    With ``gate``, what the heads read is multiplied, entry by entry, by sigmoid(x wgᵀ) before the
    projection back (Qiu et al. 2025, arXiv:2505.06708, position G1).
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int,
        *,
        qkv_bias: bool,
        output_bias: bool,
        dropout: float,
        head_dim: int | None = None,
        qk_norm: QKNorm = "none",
        norm: NormConfig = NormConfig(),  # noqa: B008 (frozen)
        gate: bool = False,
    ) -> None:
        super().__init__()
        self.head_dim = dim // n_heads if head_dim is None else head_dim
        self.is_grouped = n_kv_heads < n_heads
        self.dropout = dropout
        self.split, build = QK_NORMS[qk_norm]
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=qkv_bias)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=qkv_bias)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=qkv_bias)
        self.q_norm = build(norm, n_heads, self.head_dim)
        self.k_norm = build(norm, n_kv_heads, self.head_dim)
        self.wg = nn.Linear(dim, n_heads * self.head_dim, bias=qkv_bias) if gate else None
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=output_bias)

    def forward(
        self, x: Tensor, positions: TokenPositions, cache: LayerCache | None = None
    ) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``; a cache adds earlier keys and values, and keeps these."""
        q = positions.rotate(self.split(self.wq(x), self.q_norm, self.head_dim))
        k = positions.rotate(self.split(self.wk(x), self.k_norm, self.head_dim))
        v = self.wv(x).unflatten(-1, (-1, self.head_dim))
        q, k, v = (h.transpose(1, 2) for h in (q, k, v))
        if cache is not None:
            k, v = cache.update(k, v)
        mixed = positions.attend(self, q, k, v).transpose(1, 2).flatten(2)
        if self.wg is not None:
            mixed = mixed * self.wg(x).sigmoid()
        return self.wo(mixed)

    def dot_product(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """softmax(q kᵀ / √E + mask) v: q ``[B, H, T, E]``, k and v ``[B, K, P, E]``, to q's shape.

        Args:
            q: Queries.
            k: Keys.
            v: Values.
            mask: Fits ``[B, H, T, P]``: true for keys that a query may see, or a bias on scores.
            is_causal: Token t sees tokens 0 to t; there is no mask then.
        """
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal,
            enable_gqa=self.is_grouped,
        )

    def dot_product_in_tiles(self, q: Tensor, k: Tensor, v: Tensor, tiles: BlockMask) -> Tensor:
        """As :meth:`dot_product`, with the mask as tiles."""
        return flex.attend(q, k, v, tiles)


class ScoredAttention(Attention, WithStartValues):
    """Attention that changes its scores, and so holds them in memory: ``[B, H, T, P]``, float32.

    With ``cap``, scores become cap · tanh(score / cap), before any mask or position bias (Gemma 2
    2024, arXiv:2408.00118). With ``sinks`` head h has exp(sinks[h]) added to its softmax's
    denominator, as if there were one more key, of value 0 (Xiao et al. 2023, arXiv:2309.17453,
    whose key is real; GPT-OSS 2025, arXiv:2508.10925, has this form). A sink starts at 0.
    """

    starts = MappingProxyType({"sinks": 0.0})

    def __init__(
        self, dim: int, n_heads: int, n_kv_heads: int, *, cap: float | None, sinks: bool, **kw: Any
    ) -> None:
        super().__init__(dim, n_heads, n_kv_heads, **kw)
        self.group = n_heads // n_kv_heads
        self.cap = cap
        self.sinks = self.start("sinks", n_heads) if sinks else None

    def dot_product(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """As in :class:`Attention`."""
        # Queries that share keys stand side by side, so that no key or value is copied.
        shared = q.unflatten(1, (-1, self.group)).flatten(2, 3)
        scores = (shared @ k.transpose(-2, -1)).float() * self.head_dim**-0.5
        scores = softcap(scores, self.cap).unflatten(2, (self.group, -1)).flatten(1, 2)
        weights = self.softmax(masked(scores, mask, is_causal)).to(v.dtype)
        weights = F.dropout(weights, self.dropout, self.training)
        mixed = weights.unflatten(1, (-1, self.group)).flatten(2, 3) @ v
        return mixed.unflatten(2, (self.group, -1)).flatten(1, 2)

    def dot_product_in_tiles(self, q: Tensor, k: Tensor, v: Tensor, tiles: BlockMask) -> Tensor:
        """As in :class:`Attention`; here the scores are not held in memory."""
        return flex.attend(q, k, v, tiles, cap=self.cap, sinks=self.sinks)

    def softmax(self, scores: Tensor) -> Tensor:
        """exp(score) over the sum of all, and of the head's sink: ``[B, H, T, P]``."""
        if self.sinks is None:
            return scores.softmax(dim=-1)
        total = scores.logsumexp(dim=-1, keepdim=True)
        return (scores - torch.logaddexp(total, self.sinks.float()[:, None, None])).exp()


def masked(scores: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
    """Scores ``[B, H, T, P]`` under a mask or a bias, which mean the same as in fused attention."""
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, float("-inf"))
    return scores + mask


def check_heads(dim: int, n_heads: int) -> None:
    """Refuse a model width that is not a multiple of the number of query heads."""
    require(
        dim % n_heads == 0,
        f"--model.decoder.dim {dim} is not a multiple of --model.decoder.attention.n_heads "
        f"{n_heads}: set dim to one, such as {nearest_multiple(dim, n_heads)}, or change n_heads, "
        "or set --model.decoder.attention.head_dim",
    )


def check_head_dim(head_dim: int) -> None:
    """Refuse a head_dim whose coordinates rope cannot pair."""
    require(
        head_dim % 2 == 0,
        f"--model.decoder.attention.head_dim {head_dim} is odd, and "
        "--model.decoder.position.kind rope turns pairs of coordinates: set head_dim to an even "
        f"number, such as {head_dim + 1}",
    )


def build_attention(
    config: AttentionConfig, dim: int, *, norm: NormConfig, dropout: float
) -> Attention:
    """Build the attention that ``config`` describes, for vectors of width ``dim``; ``norm`` is the
    norm that qk_norm uses.

    It is fused, which holds no scores in memory, unless a setting changes the scores.
    """
    holds_scores = config.softcap is not None or config.sinks
    layer: Callable[..., Attention] = Attention
    if holds_scores:
        layer = partial(ScoredAttention, cap=config.softcap, sinks=config.sinks)
    return layer(
        dim,
        config.n_heads,
        config.kv_heads,
        head_dim=config.head_dim,
        qkv_bias=config.qkv_bias,
        output_bias=config.output_bias,
        qk_norm=config.qk_norm,
        norm=norm,
        gate=config.gate,
        dropout=dropout,
    )
