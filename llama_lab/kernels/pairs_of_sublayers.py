"""Norms, feed-forwards and positions in two writings each; see :mod:`llama_lab.kernels.pairs`."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from llama_lab.kernels.inputs import Bench, Pair, Writing
from llama_lab.model.feed_forward import GatedFeedForward, PlainFeedForward
from llama_lab.model.masks import TokenPositions
from llama_lab.model.norms import LayerNorm, RMSNorm
from llama_lab.model.positions import LearnedPosition
from llama_lab.model.rope.rotation import HalfPairs, InterleavedPairs, RopePairing, RotaryPosition

EPS = 1e-5
THETA = 10000.0


# ---- norms ---------------------------------------------------------------------------------------


def rms_by_hand(x: Tensor, weight: Tensor) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def layernorm_by_hand(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + EPS) * weight + bias


def rmsnorm(bench: Bench) -> Pair:
    x, norm = bench.stream(), bench.own(RMSNorm(bench.sizes.dim, eps=EPS))
    leaves = (x, *norm.parameters())
    return Pair(
        Writing("by hand", lambda: rms_by_hand(*leaves), leaves),
        Writing("F.rms_norm", lambda: norm(x), leaves),
    )


def layernorm(bench: Bench) -> Pair:
    x, norm = bench.stream(), bench.own(LayerNorm(bench.sizes.dim, eps=EPS, bias=True))
    leaves = (x, *norm.parameters())
    return Pair(
        Writing("by hand", lambda: layernorm_by_hand(*leaves), leaves),
        Writing("F.layer_norm", lambda: norm(x), leaves),
    )


def norms(bench: Bench) -> Pair:
    return Pair(layernorm(bench).second, rmsnorm(bench).second)


# ---- feed-forward --------------------------------------------------------------------------------


def gelu_by_hand(x: Tensor) -> Tensor:
    """x · Φ(x)."""
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def gelu(bench: Bench) -> Pair:
    """F here is half as wide again as SwiGLU's: two matrices then weigh what three do there."""
    s, x = bench.sizes, bench.stream()
    fused = bench.own(PlainFeedForward(s.dim, 3 * s.hidden_dim // 2, activation=F.gelu, bias=False))

    def by_hand() -> Tensor:
        return fused.down(gelu_by_hand(fused.up(x)))

    leaves = (x, *fused.parameters())
    return Pair(
        Writing("GELU by hand", by_hand, leaves), Writing("F.gelu", lambda: fused(x), leaves)
    )


def gated(bench: Bench) -> GatedFeedForward:
    s = bench.sizes
    return bench.own(GatedFeedForward(s.dim, s.hidden_dim, activation=F.silu, bias=False))


def swiglu(bench: Bench) -> Pair:
    x = bench.stream()
    layer = gated(bench)

    def by_hand() -> Tensor:
        gate = layer.gate(x)
        return layer.down(gate * torch.sigmoid(gate) * layer.up(x))

    leaves = (x, *layer.parameters())
    return Pair(
        Writing("SiLU by hand", by_hand, leaves), Writing("F.silu", lambda: layer(x), leaves)
    )


def gate_and_up(bench: Bench) -> Pair:
    x = bench.stream()
    layer = gated(bench)
    gate, up, down = (m.weight for m in (layer.gate, layer.up, layer.down))
    both = torch.cat((gate, up)).detach().requires_grad_()

    def one_matrix() -> Tensor:
        gate, up = F.linear(x, both).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, down)

    def stacked(gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        of_x, of_gate, of_up, of_down = gradients
        return of_x, torch.cat((of_gate, of_up)), of_down

    return Pair(
        Writing("two matrices", lambda: layer(x), (x, gate, up, down), stacked),
        Writing("gate and up in one", one_matrix, (x, both, down)),
    )


def feed_forwards(bench: Bench) -> Pair:
    older, newer = gelu(bench).second, swiglu(bench).second
    return Pair(
        Writing("GELU", older.run, older.leaves), Writing("SwiGLU", newer.run, newer.leaves)
    )


# ---- positions -----------------------------------------------------------------------------------


def rotary(bench: Bench, pairing: RopePairing) -> HalfPairs:
    s = bench.sizes
    position = RotaryPosition(s.context_length, s.head_dim, theta=THETA, pairing=pairing)
    positions = position.at(0, s.context_length, bench.device)
    assert isinstance(positions, HalfPairs)
    return positions


def queries_and_keys(bench: Bench) -> tuple[Tensor, Tensor]:
    s = bench.sizes
    return bench.projected("q", s.n_heads), bench.projected("k", s.n_kv_heads)


def turned(positions: TokenPositions, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    return positions.rotate(q), positions.rotate(k)


def rope(bench: Bench) -> Pair:
    q, k = queries_and_keys(bench)
    positions = rotary(bench, "half")
    sine = positions.sin.chunk(2, dim=-1)[1]  # the first half carries the minus sign
    sines = torch.cat((sine, sine), dim=-1)

    def by_concatenation(heads: Tensor) -> Tensor:
        x = heads.float()
        first, second = x.chunk(2, dim=-1)
        return (x * positions.cos + torch.cat((-second, first), -1) * sines).to(heads.dtype)

    return Pair(
        Writing("by concatenation", lambda: (by_concatenation(q), by_concatenation(k)), (q, k)),
        Writing("addcmul", lambda: turned(positions, q, k), (q, k)),
    )


def rope_interleaved(bench: Bench) -> Pair:
    q, k = queries_and_keys(bench)
    positions = rotary(bench, "interleaved")
    assert isinstance(positions, InterleavedPairs)
    angles = torch.complex(positions.cos[..., ::2], positions.sin[..., 1::2])

    def complex_product(heads: Tensor) -> Tensor:
        x = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(x * angles).flatten(-2).to(heads.dtype)

    return Pair(
        Writing("complex product", lambda: (complex_product(q), complex_product(k)), (q, k)),
        Writing("addcmul", lambda: turned(positions, q, k), (q, k)),
    )


def positions(bench: Bench) -> Pair:
    s, x = bench.sizes, bench.stream()
    learned = bench.own(LearnedPosition(s.context_length, s.dim))
    q, k = queries_and_keys(bench)
    positions = rotary(bench, "half")
    return Pair(
        Writing("learned", lambda: learned.embed(x, 0), (x, *learned.parameters())),
        Writing("rope", lambda: turned(positions, q, k), (q, k)),
    )
