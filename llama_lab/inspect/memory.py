"""Memory that training a config needs, counted on the model built on ``meta``.

B batch, T time, H query heads, E head width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from llama_lab.inspect.accounting import on_meta, parameters_of
from llama_lab.model.config import DecoderConfig, layer_kinds
from llama_lab.model.decoder import Decoder
from llama_lab.model.layers import LayerKind
from llama_lab.model.masks import TabledPosition

Precision = Literal["32-true", "bf16-mixed", "bf16-true"]


class PrecisionParts(NamedTuple):
    """In what a precision keeps and multiplies numbers."""

    weights: torch.dtype
    """Gradients and what torch's optimisers remember are of the same type."""

    products: torch.dtype


# bf16-mixed keeps float32 and casts for each product (Micikevicius et al. 2018, arXiv:1710.03740).
PRECISIONS: dict[Precision, PrecisionParts] = {
    "32-true": PrecisionParts(torch.float32, torch.float32),
    "bf16-mixed": PrecisionParts(torch.float32, torch.bfloat16),
    "bf16-true": PrecisionParts(torch.bfloat16, torch.bfloat16),
}


class StateSizes(NamedTuple):
    """Numbers that an optimiser remembers for each parameter."""

    matrices: int
    """Of the blocks."""

    rest: int


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes that training holds at the end of a forward, before its activations are used up."""

    weights: int
    gradients: int
    optimizer_states: int
    activations: int
    averaged_weights: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(astuple(self))


def training_memory(
    config: DecoderConfig,
    precision: Precision,
    states: StateSizes,
    *,
    batch_size: int,
    context: int,
    averages: bool = False,
) -> TrainingMemory:
    """What one device holds that trains all parameters on ``batch_size`` texts at a time.

    Args:
        config: The decoder.
        precision: In what it trains.
        states: Numbers that the optimiser keeps for each parameter.
        batch_size: Texts in a microbatch.
        context: Tokens in a text.
        averages: Whether an average of the weights is kept beside them.

    Raises:
        RuntimeError: The sizes are beyond what a tensor can have.
    """
    decoder = on_meta(config)
    size = PRECISIONS[precision].weights.itemsize
    n_parameters = parameters_of(decoder).total
    n_matrices = sum(p.numel() for p in decoder.blocks.parameters() if p.ndim == 2)
    return TrainingMemory(
        weights=n_parameters * size,
        gradients=n_parameters * size,
        optimizer_states=size
        * (states.matrices * n_matrices + states.rest * (n_parameters - n_matrices)),
        activations=activation_bytes(config, precision, batch_size, context),
        averaged_weights=n_parameters * size if averages else 0,
    )


def activation_bytes(
    config: DecoderConfig, precision: Precision, batch_size: int, context: int
) -> int:
    """Bytes that autograd keeps of one training step's forward until the backward reads them.

    Every storage counts once. Parameters and the tables of positions, which are there before the
    step, do not count; the casts of a mixed precision do, those of weights among them. Attention
    that holds no scores counts as fused attention keeps it: queries, keys, values, the result, a
    logarithm of a sum for each row, and the mask where there is one. Norms count as they run on
    the CPU, which is at least what a fused kernel keeps; short-lived buffers are not counted.

    Raises:
        RuntimeError: The sizes are beyond what a tensor can have.
    """
    kinds = layer_kinds(config)
    n_run = enough_layers(kinds)
    weights, products = PRECISIONS[precision]
    decoder = on_meta(replace(config, n_layers=n_run)).to(weights)
    tokens = torch.empty((batch_size, context), dtype=torch.long, device="meta")
    with OnDevice(products):
        saved = saved_bytes(decoder, tokens)
    again = {kind: saved[i] for i, kind in enumerate(kinds[:n_run])}
    return saved.total() + sum(again[kind] for kind in kinds[n_run:])


def enough_layers(kinds: Sequence[LayerKind]) -> int:
    """How many layers have to be run to know what all of them keep.

    Of each kind the first may keep what the others share with it, a mask; the second is like all
    that follow.
    """
    left = Counter(kinds)
    seen: Counter[LayerKind] = Counter()
    for n_run, kind in enumerate(kinds):
        if all(seen[other] >= 2 for other in left):
            return n_run
        seen[kind] += 1
        left -= Counter([kind])
    return len(kinds)


def saved_bytes(decoder: Decoder, tokens: Tensor) -> Counter[int]:
    """Bytes of each storage that a training step on ``tokens`` ``[B, T]`` keeps for its backward,
    by the layer that kept it first; -1 is what no layer did.
    """
    layer = -1
    found: dict[int, tuple[int, torch.UntypedStorage]] = {}

    def enter(i: int, *_: Any) -> None:
        nonlocal layer
        layer = i

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found.setdefault(storage._cdata, (layer, storage))
        return tensor

    for i, block in enumerate(decoder.blocks):
        block.register_forward_pre_hook(partial(enter, i))
        block.register_forward_hook(partial(enter, -1))
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        decoder.score(tokens, tokens, reduction="mean")
    known = {tensor.untyped_storage()._cdata for tensor in held_before(decoder)}
    saved: Counter[int] = Counter()
    for key, (i, storage) in found.items():
        saved[i] += 0 if key in known else storage.nbytes()
    return saved


def held_before(decoder: Decoder) -> Iterable[Tensor]:
    """Parameters, and the tables of positions."""
    yield from decoder.parameters()
    yield from (m.table for m in decoder.modules() if isinstance(m, TabledPosition))


class OnDevice(TorchFunctionMode):
    """Has ``meta`` do as a device does, where the two differ in what is kept.

    Products cast their factors to ``dtype``, as under autocast, which knows no ``meta``; attention
    is fused, where torch would compose it from products and keep all scores.
    """

    PRODUCTS = (F.linear, F.scaled_dot_product_attention, Tensor.matmul, Tensor.__matmul__)

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in self.PRODUCTS:
            args = tuple(self.cast(value) for value in args)
            kwargs = {name: self.cast(value) for name, value in (kwargs or {}).items()}
        if func is F.scaled_dot_product_attention:
            return self.attend(*args, mask=kwargs["attn_mask"], is_causal=kwargs["is_causal"])
        return func(*args, **(kwargs or {}))

    def cast(self, value: Any) -> Any:
        """A floating-point tensor in the type of products, and all else as it is."""
        is_number = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(self.dtype) if is_number else value

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """``[B, H, T, E]``; a mask of booleans becomes numbers, as before every fused kernel."""
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.empty_like(mask, dtype=q.dtype)
        fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        mixed: Tensor = fused(q, k, v, 0.0, is_causal, attn_mask=mask)[0]
        return mixed
