"""The parts of a model in two writings each: plain against fused, older against newer.

Plain is the formula, an operation at a time, as a text that explains it writes it. Fused is what
this package's models run, taken from their own classes, unless the label says otherwise.

B batch, T time, N = B · T, D model width, H query heads, K key/value heads, E head width,
F hidden width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llama_lab.inspect.memory import PRECISIONS
from llama_lab.kernels.inputs import Bench, Pair, Part, Skipped, Writing
from llama_lab.kernels.pairs_of_sublayers import (
    feed_forwards,
    gate_and_up,
    gelu,
    layernorm,
    norms,
    positions,
    rmsnorm,
    rope,
    rope_interleaved,
    swiglu,
)
from llama_lab.model.attention import Attention
from llama_lab.model.decoder import Decoder
from llama_lab.model.initialise import initialise, seeded_generator
from llama_lab.model.loss import ChunkedLoss, next_token_loss
from llama_lab.model.masks import AttentionMask, TokenPositions
from llama_lab.training.compiling import Work, compile_regions, missing_compiler, try_out
from llama_lab.training.optimizers import OptimizerConfig, build_optimizer, parameter_groups

CHUNKS = 8
"""Into how many pieces the chunked loss is cut here."""


# ---- attention -----------------------------------------------------------------------------------


def attention_of(bench: Bench, n_kv_heads: int) -> Attention:
    s = bench.sizes
    return bench.own(
        Attention(s.dim, s.n_heads, n_kv_heads, qkv_bias=False, output_bias=False, dropout=0.0)
    )


def attention(bench: Bench) -> Pair:
    s = bench.sizes
    q, k, v = (bench.heads(name, s.n_heads) for name in "qkv")
    layer = attention_of(bench, s.n_heads)
    unseen = torch.ones(
        s.context_length, s.context_length, dtype=torch.bool, device=bench.device
    ).triu(1)

    def scores_held() -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(s.head_dim)
        return scores.masked_fill(unseen, float("-inf")).softmax(dim=-1).to(v.dtype) @ v

    return Pair(
        Writing("scores held", scores_held, (q, k, v)),
        Writing("fused", lambda: layer.dot_product(q, k, v, None, True), (q, k, v)),
    )


def grouped_queries(bench: Bench) -> Pair:
    s = bench.sizes
    group = bench.group()
    q, k, v = (bench.heads(n, s.n_heads if n == "q" else s.n_kv_heads) for n in "qkv")
    layer = attention_of(bench, s.n_kv_heads)

    def repeated() -> Tensor:
        keys, values = (h.repeat_interleave(group, dim=1) for h in (k, v))
        return F.scaled_dot_product_attention(q, keys, values, is_causal=True)

    return Pair(
        Writing("keys repeated", repeated, (q, k, v)),
        Writing("enable_gqa", lambda: layer.dot_product(q, k, v, None, True), (q, k, v)),
    )


def sublayers(bench: Bench) -> Pair:
    s, x = bench.sizes, bench.stream()
    bench.group()
    positions = TokenPositions(AttentionMask(None, is_causal=True))
    writings = []
    for label, n_kv_heads in (("multi-head", s.n_heads), ("grouped-query", s.n_kv_heads)):
        layer = attention_of(bench, n_kv_heads)
        writings.append(Writing(label, partial(layer, x, positions), (x, *layer.parameters())))
    return Pair(*writings)


# ---- loss and optimiser --------------------------------------------------------------------------


def scored(bench: Bench) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states ``[N, D]``, the head's weight ``[V, D]``, targets ``[N]``."""
    s = bench.sizes
    rows = s.batch_size * s.context_length
    targets = torch.randint(s.vocab_size, (rows,), generator=seeded_generator(0, "targets"))
    head = bench.weight("head", s.vocab_size, s.dim)
    return bench.draw("hidden", rows, s.dim), head, targets.to(bench.device)


def loss(bench: Bench) -> Pair:
    hidden, head, targets = scored(bench)

    def by_hand() -> Tensor:
        logits = F.linear(hidden, head).float()
        highest = logits.max(dim=-1, keepdim=True).values
        shifted = logits - highest.detach()
        log_probs = shifted - shifted.exp().sum(dim=-1, keepdim=True).log()
        return -log_probs.gather(1, targets[:, None]).mean()

    return Pair(
        Writing("by hand", by_hand, (hidden, head)),
        Writing(
            "next_token_loss",
            lambda: next_token_loss(hidden, head, targets, reduction="mean"),
            (hidden, head),
        ),
    )


def chunked_loss(bench: Bench) -> Pair:
    hidden, head, targets = scored(bench)
    rows = -(-len(targets) // CHUNKS)

    def chunked() -> Tensor:
        needs_gradient = torch.is_grad_enabled()
        total = ChunkedLoss.apply(hidden, head, targets, rows, needs_gradient, None, 0.0)
        return total / len(targets)

    return Pair(
        Writing(
            "all logits",
            lambda: F.cross_entropy(F.linear(hidden, head).float(), targets),
            (hidden, head),
        ),
        Writing(f"{CHUNKS} chunks", chunked, (hidden, head)),
    )


def adamw(bench: Bench) -> Pair:
    config = OptimizerConfig()

    def stepping(label: str, build: Callable[[nn.Module], torch.optim.Optimizer]) -> Writing:
        model = bench.own(Decoder(bench.sizes.decoder(bench.sizes.n_layers)))
        for name, parameter in model.named_parameters():
            parameter.grad = bench.draw(f"{name}.grad", *parameter.shape).detach()
        optimizer = build(model)

        def step() -> tuple[Tensor, ...]:
            optimizer.step()
            return tuple(model.parameters())

        return Writing(label, step, ())

    def loop(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            parameter_groups(model, config),
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            foreach=False,
            fused=False,
        )

    return Pair(
        stepping("a tensor at a time", loop),
        stepping("fused", lambda model: build_optimizer(model, config)),
    )


# ---- a whole layer -------------------------------------------------------------------------------


def block(bench: Bench) -> Pair:
    s = bench.sizes
    if because := missing_compiler(bench.device.type):
        raise Skipped(because)
    decoders = [Decoder(s.decoder(1)) for _ in range(2)]
    for decoder in decoders:
        initialise(decoder, 0)
        decoder.to(bench.device, PRECISIONS[bench.precision].weights)
    compile_regions(decoders[1], training=True, with_loss=False)
    work = Work(bench.device.type, 1, 1, s.batch_size, s.context_length)

    def score(tokens: Tensor, targets: Tensor) -> Tensor:
        with bench.autocast():
            return decoders[1].score(tokens, targets, reduction="mean")

    if because := try_out(decoders[1], work, training=True, score=score):
        raise Skipped(because)
    x = bench.stream()
    writings = []
    for label, decoder in zip(("eager", "compiled"), decoders, strict=True):
        (positions,) = decoder.layer_positions.at(0, s.context_length, bench.device)
        layer = decoder.blocks[0]
        writings.append(Writing(label, partial(layer, x, positions), (x, *layer.parameters())))
    return Pair(*writings)


PARTS: dict[str, Part] = {
    "rmsnorm": Part(True, rmsnorm),
    "layernorm": Part(True, layernorm),
    "rope": Part(True, rope, "Queries and keys of one layer, coordinate i with i + E/2."),
    "rope-interleaved": Part(True, rope_interleaved, "The same, coordinate 2i with 2i + 1."),
    "attention": Part(True, attention, "Attention proper, without its projections."),
    "grouped-queries": Part(True, grouped_queries, "Attention proper; fewer keys than queries."),
    "gelu": Part(True, gelu, "The whole feed-forward, its matrices included."),
    "swiglu": Part(True, swiglu, "The whole feed-forward, its matrices included."),
    "gate-and-up": Part(
        True, gate_and_up, "Here the first is this package's: it keeps gate and up apart."
    ),
    "loss": Part(True, loss, "The head's matrix and the cross-entropy."),
    "chunked-loss": Part(
        True, chunked_loss, "For memory, not for time: what large vocabularies are scored by."
    ),
    "adamw": Part(True, adamw, "One step of the whole model's weights; no backward."),
    "block": Part(True, block, "A whole LLaMA layer; what compiling took is not in the time."),
    "layernorm-to-rmsnorm": Part(False, norms, "Each in the one call that torch has for it."),
    "learned-to-rope": Part(
        False, positions, "Learned positions are added once a model, rope turns in every layer."
    ),
    "gelu-to-swiglu": Part(False, feed_forwards, "Equally many weights."),
    "multi-head-to-grouped": Part(
        False, sublayers, "The whole sublayer with its projections, which are fewer when grouped."
    ),
}
