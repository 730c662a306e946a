"""Memory and traffic of a training that several devices share, computed and not measured.

B batch (texts in a device's microbatch), T time, D model width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, replace
from math import ceil, prod
from typing import Literal, NamedTuple

from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from llama_lab.inspect.accounting import on_meta
from llama_lab.inspect.memory import PRECISIONS, Precision, StateSizes, activation_bytes
from llama_lab.model.config import DecoderConfig
from llama_lab.model.decoder import Decoder
from llama_lab.parallel.tensor_plan import plan_of

StrategyName = Literal["ddp", "fsdp"]
COUNTS = (8, 64, 512, 4096)
"""Numbers of devices that a table shows."""


class Division(NamedTuple):
    """How devices share a training."""

    strategy: StrategyName
    devices: int
    tensor_parallel: int = 1

    @property
    def replicas(self) -> int:
        """Groups of devices that read different sequences."""
        return self.devices // self.tensor_parallel

    @property
    def words(self) -> str:
        """Such as ``fsdp x 8``."""
        shared = f" x {self.tensor_parallel}" if self.tensor_parallel > 1 else ""
        return f"{self.strategy}{shared}"


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes that one device holds at the end of a forward."""

    weights: int
    gradients: int
    optimizer_states: int
    activations: int
    gathered: int
    """Weights that are gathered at once: embeddings and head, the block that runs and the next, and
    the whole gradient of one block."""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(astuple(self))


@dataclass(frozen=True)
class Work:
    """What each device does in a step.

    Attributes:
        config: The decoder.
        precision: In what it trains.
        states: Numbers that the optimiser keeps for each parameter.
        batch_size: Texts in a device's microbatch, of which a step has one.
        context: Tokens in a text.
        recomputes: Whether activations of blocks are computed again in the backward.
    """

    config: DecoderConfig
    precision: Precision
    states: StateSizes
    batch_size: int
    context: int
    recomputes: bool = False


def memory_of(work: Work, division: Division) -> DeviceMemory:
    """What the device holds that holds the most.

    Rows of a tensor that do not divide are rounded up, as the first process holds them.
    """
    size = PRECISIONS[work.precision].weights.itemsize
    decoder, n = on_meta(work.config), division.tensor_parallel
    shards = division.replicas if division.strategy == "fsdp" else 1
    held = {name: rows_held(shape, shards) for name, shape in shapes(decoder, n)}
    matrices = {name for name, p in decoder.named_parameters() if is_block_matrix(name, p)}
    per = {name: work.states.matrices if name in matrices else work.states.rest for name in held}
    weights = sum(held.values()) * size
    return DeviceMemory(
        weights=weights,
        gradients=weights,
        optimizer_states=sum(held[name] * per[name] for name in held) * size,
        activations=activations_of(work, n),
        gathered=gathered_bytes(decoder, work.precision, n) if division.strategy == "fsdp" else 0,
    )


def sent_bytes(work: Work, division: Division) -> int:
    """Bytes that each device sends in a step, by ring algorithms.

    An all-reduce of S bytes among n devices sends 2 S (n - 1) / n, a gathering or a scattered sum
    half of that (Patarasuk & Yuan 2009). ddp sums all gradients. fsdp gathers every block for the
    forward and for the backward, embeddings and head once, and sums gradients in float32. Tensor
    parallelism sums each sublayer's result in the forward and its input's gradient in the backward,
    ``[B, T, D]`` each.
    """
    parts, decoder = PRECISIONS[work.precision], on_meta(work.config)
    n, groups = division.tensor_parallel, division.replicas
    of_blocks, of_root = (sum(sizes) for sizes in grouped(decoder, n))
    if division.strategy == "ddp":
        total = 2 * (of_blocks + of_root) * parts.weights.itemsize * (groups - 1) / groups
    else:
        gathered = (2 * of_blocks + of_root) * parts.products.itemsize
        total = (gathered + (of_blocks + of_root) * 4) * (groups - 1) / groups
    sums = work.config.n_layers * (6 if work.recomputes else 4)
    row = work.batch_size * work.context * work.config.dim * parts.products.itemsize
    return round(total + sums * row * 2 * (n - 1) / n)


def activations_of(work: Work, n: int) -> int:
    """Bytes that a device keeps for its backward: of its share of the heads and hidden units."""
    config = share_of_config(work.config, n)
    args = (work.precision, work.batch_size, work.context)
    if not work.recomputes:
        return activation_bytes(config, *args)
    # One block at a time is computed again; of the others the input is kept.
    one = activation_bytes(replace_layers(config, 1), *args)
    row = work.batch_size * work.context * config.dim
    return one + config.n_layers * row * PRECISIONS[work.precision].products.itemsize


def replace_layers(config: DecoderConfig, n_layers: int) -> DecoderConfig:
    """A decoder of fewer layers, without what names more of them."""
    attention = replace(config.attention, window=None, window_pattern=None)
    position = replace(config.position, nope_every=None, rope_local_theta=None)
    return replace(config, n_layers=n_layers, attention=attention, position=position)


def share_of_config(config: DecoderConfig, n: int) -> DecoderConfig:
    """The decoder whose layers are one process's of ``n``: fewer heads and hidden units."""
    if n == 1:
        return config
    attention, feed_forward = config.attention, config.feed_forward
    return replace(
        config,
        attention=replace(
            attention,
            n_heads=attention.n_heads // n,
            n_kv_heads=attention.kv_heads // n,
            head_dim=config.head_dim,
        ),
        feed_forward=replace(
            feed_forward,
            hidden_dim=feed_forward.width(config.dim) // n,
            multiple_of=None,
            dim_multiplier=None,
        ),
    )


def shapes(decoder: Decoder, n: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Shape of each parameter in one process of ``n`` that share the layers, by its name."""
    of_blocks = {
        f"{path}.{name}": parameter
        for path, block in decoder.named_modules()
        if block in list(decoder.blocks)
        for name, parameter in shapes_in_block(block, n)
    }
    for name, parameter in decoder.named_parameters():
        yield name, of_blocks.get(name, tuple(parameter.shape))


def shapes_in_block(block: nn.Module, n: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The same of a block, by the very plan that divides it."""
    plan = plan_of(block)
    for name, parameter in block.named_parameters():
        module, _, leaf = name.rpartition(".")
        style, shape = plan.get(module), tuple(parameter.shape)
        if isinstance(style, ColwiseParallel):
            shape = (shape[0] // n, *shape[1:])
        elif isinstance(style, RowwiseParallel) and leaf == "weight":
            shape = (shape[0], shape[1] // n)
        yield name, shape


def grouped(decoder: Decoder, n: int) -> tuple[list[int], list[int]]:
    """Parameters of each block, and of all that is in none, in one process of ``n``."""
    blocks: dict[str, int] = {}
    rest = 0
    for name, shape in shapes(decoder, n):
        words = name.split(".")
        if words[0] == "blocks":
            blocks[words[1]] = blocks.get(words[1], 0) + prod(shape)
        else:
            rest += prod(shape)
    return list(blocks.values()), [rest]


def gathered_bytes(decoder: Decoder, precision: Precision, n: int) -> int:
    """Bytes that are gathered at once, at most."""
    blocks, rest = grouped(decoder, n)
    largest, itemsize = max(blocks), PRECISIONS[precision].products.itemsize
    return (sum(rest) + 2 * largest) * itemsize + largest * itemsize


def rows_held(shape: tuple[int, ...], shards: int) -> int:
    """Numbers of a tensor in the first of ``shards`` processes, which divide its rows."""
    return ceil(shape[0] / shards) * prod(shape[1:])


def is_block_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Whether muon takes it."""
    return name.startswith("blocks.") and parameter.ndim == 2


def divisions(config: DecoderConfig, counts: Iterable[int] = COUNTS) -> Iterator[Division]:
    """What a table shows: ddp, fsdp, and fsdp with as much tensor parallelism as 8 devices of a
    machine and the heads allow."""
    sizes = (
        config.attention.n_heads,
        config.attention.kv_heads,
        config.feed_forward.width(config.dim),
    )
    shared = next((n for n in (8, 4, 2) if all(size % n == 0 for size in sizes)), 1)
    for count in counts:
        yield Division("ddp", count)
        yield Division("fsdp", count)
        if shared > 1 and count % shared == 0:
            yield Division("fsdp", count, shared)
