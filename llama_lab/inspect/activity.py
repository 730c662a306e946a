"""Activity of a decoder's layers on a text: size of the stream, entropy of attention, dead units.

B batch, T time, P positions attended to, D model width, H query heads, K key/value heads,
E head width, F hidden width.

The model's own code knows nothing of it: hooks hang on the blocks for one forward. One of them
exchanges the :class:`TokenPositions` that attention is given, as a planted fault does.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.feed_forward import FEED_FORWARDS, relu_squared
from llama_lab.model.masks import DotProductAttention, TokenPositions

Record = Callable[[str, Tensor], None]


class LayerActivity(NamedTuple):
    """One layer's, each a float32 scalar on the decoder's device."""

    activation_rms: Tensor
    """sqrt(mean(x²)) of the residual stream as it leaves the layer."""

    attention_entropy: Tensor
    """-Σ p log p of a query's attention weights, in nats, mean over texts, heads and queries: log t
    for a query that spreads evenly over t keys. A sink counts as one more key."""

    dead_units: Tensor | None
    """Share of the F hidden units that are 0 for every token; ``None`` where the activation does
    not rest on a relu, which is what switches units off."""


@torch.no_grad()
def observe(
    decoder: Decoder, tokens: Tensor, documents: Tensor | None = None
) -> list[LayerActivity]:
    """Read ``tokens`` ``[B, T]``, without dropout, and say what each layer did, first to last.

    The decoder is afterwards as it was, and no random number is drawn. A compiled one is run as
    plain Python: compiled code would not call the hooks.
    """
    was_training = decoder.training
    found: list[dict[str, Tensor]] = [{} for _ in decoder.blocks]
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for block, values in zip(decoder.blocks, found, strict=True):
            watch(block, values.__setitem__, stack)
        stack.callback(decoder.train, was_training)
        decoder.eval()(tokens, documents=documents)
    dies = has_relu(decoder.config)
    return [
        LayerActivity(v["stream"], v["attention"], v["hidden"] if dies else None) for v in found
    ]


def has_relu(config: DecoderConfig) -> bool:
    """Whether the feed-forward's activation rests on a relu."""
    return FEED_FORWARDS[config.feed_forward.kind].activation in (F.relu, relu_squared)


def watch(block: Any, record: Record, stack: ExitStack) -> None:
    """Hang hooks on a block that record what it does; they fall when ``stack`` is left."""

    def stream(block: nn.Module, arguments: Any, x: Tensor) -> None:
        record("stream", x.float().square().mean().sqrt())

    def attention(attention: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        x, positions, *others = arguments
        return (x, Watched(positions.mask, positions, partial(record, "attention")), *others)

    def hidden(down: nn.Module, arguments: tuple[Any, ...]) -> None:
        record("hidden", (arguments[0] == 0).flatten(0, -2).all(dim=0).float().mean())

    stack.enter_context(block.register_forward_hook(stream))
    stack.enter_context(block.attention.register_forward_pre_hook(attention))
    stack.enter_context(block.feed_forward.down.register_forward_pre_hook(hidden))


@dataclass(frozen=True)
class Watched(TokenPositions):
    """Attention does what it does; the entropy of its weights is recorded beside it."""

    sound: TokenPositions
    record: Callable[[Tensor], None]

    def rotate(self, heads: Tensor) -> Tensor:
        return self.sound.rotate(heads)

    def attend(self, attention: DotProductAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            full = (h.float() for h in (q, k, v))
            self.record(self.sound.attend(Entropy(attention), *full).mean())
        return self.sound.attend(attention, q, k, v)


@dataclass(frozen=True)
class Entropy:
    """Entropy of the weights that ``attention`` gives to the keys, in nats: ``[B, H, T, 1]``.

    Fused attention shows no weights. But what it mixes of one-hot values is the weights, of E keys
    at a time, and so they hold whatever mask, bias, cap or sink the layer has. What the keys do not
    get, a sink does.
    """

    attention: DotProductAttention

    def dot_product(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """Where :meth:`Attention.dot_product` gives what is mixed."""
        return self.of(
            lambda one_hot: self.attention.dot_product(q, k, one_hot, mask, is_causal), q, v
        )

    def dot_product_in_tiles(self, q: Tensor, k: Tensor, v: Tensor, tiles: BlockMask) -> Tensor:
        """Where :meth:`Attention.dot_product_in_tiles` gives what is mixed."""
        return self.of(
            lambda one_hot: self.attention.dot_product_in_tiles(q, k, one_hot, tiles), q, v
        )

    def of(self, mixed: Callable[[Tensor], Tensor], q: Tensor, v: Tensor) -> Tensor:
        """Of the weights by which ``mixed`` mixes values."""
        width, keys = v.size(-1), torch.arange(v.size(2), device=v.device)
        total, given = (q.new_zeros(*q.shape[:3], 1) for _ in range(2))
        for start in range(0, v.size(2), width):
            columns = torch.arange(start, start + width, device=v.device)
            weights = mixed((keys[:, None] == columns).to(v.dtype).expand_as(v))
            total -= torch.xlogy(weights, weights).sum(dim=-1, keepdim=True)
            given += weights.sum(dim=-1, keepdim=True)
        rest = (1 - given).clamp_min(0)
        return total - torch.xlogy(rest, rest)
