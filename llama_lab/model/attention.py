"""Causal self-attention with as many key/value heads as the config says.

B batch, T time, P positions attended to, D model width, H query heads, K key/value heads,
E head width.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from llama_lab.model.cache import LayerCache
from llama_lab.model.places import Places
from llama_lab.model.settings import (
    nearest_multiple,
    refuse_idle,
    require,
    require_switch,
    require_whole,
)


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """The heads of every layer's attention."""

    n_heads: int = 4
    """Query heads; they share the model width, so it must be a multiple of this."""

    n_kv_heads: int | None = None
    """Key/value heads, each shared by n_heads / n_kv_heads query heads; null means n_heads
    (multi-head), 1 is multi-query attention."""

    qkv_bias: bool = False
    """Whether the projections to queries, keys and values have a bias."""

    output_bias: bool = False
    """Whether the projection back to the model width has a bias."""

    window: int | None = None
    """Tokens that a token sees in windowed layers, itself included: with 4, itself and the 3 before
    it (Mistral, Gemma 3); null means all up to itself. Below context_length."""

    window_pattern: str | None = None
    """Which layers are windowed, L (windowed, local) or G (global) for each, from the first layer
    on and over again, such as LLLLLG; null means all. Refused without a window."""

    def __post_init__(self) -> None:
        require_whole("model.decoder.attention.n_heads", self.n_heads)
        require_switch("model.decoder.attention.qkv_bias", self.qkv_bias)
        require_switch("model.decoder.attention.output_bias", self.output_bias)
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
        """Refuse a window that is none, and a pattern without a window or a windowed layer."""
        flag, pattern = "model.decoder.attention.window_pattern", self.window_pattern
        if self.window is None:
            refuse_idle(flag, pattern, because="attention.window null leaves every layer global")
            return
        require_whole("model.decoder.attention.window", self.window)
        require(
            pattern is None
            or (isinstance(pattern, str) and set(pattern) <= {"L", "G"} and "L" in pattern),
            f"--{flag} {pattern} is impossible: give letters L (windowed) and G (global), at least "
            f"one of them L, or set --model.decoder.attention.window null",
        )

    def window_of(self, layer: int) -> int | None:
        """The window of a layer, counted from 0; ``None`` where it sees all up to itself."""
        pattern = self.window_pattern or "L"
        return self.window if pattern[layer % len(pattern)] == "L" else None

    @property
    def kv_heads(self) -> int:
        """Key/value heads, with the default resolved."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads


class Attention(nn.Module):
    """softmax(q kᵀ / √E + causal mask) v, head by head, and projected back to the model width.

    K = H is multi-head attention (Vaswani et al. 2017, arXiv:1706.03762), K = 1 multi-query
    (Shazeer 2019, arXiv:1911.02150), between them grouped-query (Ainslie et al. 2023,
    arXiv:2305.13245): query head h reads key/value head h // (H/K).
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
    ) -> None:
        super().__init__()
        self.head_dim = dim // n_heads
        self.is_grouped = n_kv_heads < n_heads
        self.dropout = dropout
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=qkv_bias)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=qkv_bias)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=qkv_bias)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=output_bias)

    def forward(self, x: Tensor, places: Places, cache: LayerCache | None = None) -> Tensor:
        """``[B, T, D]`` to ``[B, T, D]``; a cache gives the positions before, and keeps these."""
        q = places.rotate(self.heads(self.wq(x)))
        k = places.rotate(self.heads(self.wk(x)))
        v = self.heads(self.wv(x))
        q, k, v = (h.transpose(1, 2) for h in (q, k, v))
        if cache is not None:
            k, v = cache.update(k, v)
        mixed = places.attend(self.mix, q, k, v).transpose(1, 2).flatten(2)
        return self.wo(mixed)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool) -> Tensor:
        """softmax(q kᵀ / √E + mask) v: ``[B, H, T, E]`` and twice ``[B, K, P, E]`` to the first.

        Args:
            q: Queries.
            k: Keys.
            v: Values.
            mask: Fits ``[B, H, T, P]``; true where a token may look, or what scores are added to.
            is_causal: In place of a mask: token t sees 0 to t.
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

    def heads(self, projected: Tensor) -> Tensor:
        """``[B, T, heads · E]`` to ``[B, T, heads, E]``."""
        return projected.unflatten(-1, (-1, self.head_dim))


def check_heads(dim: int, n_heads: int) -> None:
    """Refuse a model width that the query heads do not share evenly."""
    require(
        dim % n_heads == 0,
        f"--model.decoder.dim {dim} is not a multiple of --model.decoder.attention.n_heads "
        f"{n_heads}: set dim to one, such as {nearest_multiple(dim, n_heads)}, or change n_heads",
    )


def build_attention(config: AttentionConfig, dim: int, *, dropout: float) -> Attention:
    """The attention of vectors of width ``dim`` that ``config`` describes."""
    return Attention(
        dim,
        config.n_heads,
        config.kv_heads,
        qkv_bias=config.qkv_bias,
        output_bias=config.output_bias,
        dropout=dropout,
    )
