"""The counts of ``llama-lab describe``, in the form of its JSON output."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from llama_lab.errors import UserError

if TYPE_CHECKING:
    from llama_lab.inspect.accounting import CacheBytes
    from llama_lab.inspect.memory import StateSizes
    from llama_lab.model.decoder import DecoderConfig

JSON_NAMES = (
    "JSON output, sizes in bytes: name, decoder (every setting), context, batch_size, precision, "
    "cache_precision; parameters.total, parameters.by_part; bytes.total, bytes.by_part (the "
    "weights at --precision); flops_per_token.forward, flops_per_token.training (at --context, "
    "without causal discount; training is 3 forward); kv_cache_bytes_per_token; "
    "kv_cache.mha, kv_cache.gqa (as configured), kv_cache.mqa, of each n_kv_heads, "
    "bytes_per_token, bytes (at --context and --batch_size; a windowed layer keeps its window); "
    "training_memory.32-true, .bf16-mixed, .bf16-true, of each optimizer, weights, gradients, "
    "optimizer_states (two numbers of the weights' type a parameter, one for muon's matrices), "
    "activations (what a step of --batch_size texts of --context tokens keeps for its backward, "
    "fused attention and no dropout assumed), averaged_weights (with --averaging), total; "
    "generation_memory.weights, .kv_cache (as `generate` allocates it: an eighth of a window more "
    "in windowed layers), .total (without activations); device_memory; fits.training, "
    "fits.generation (at --precision; null without --device_memory); fault; of a probe causal and "
    "max_difference."
)
CachePrecision = Literal["16", "32"]
LARGEST = 1 << 24  # positions or texts: what is beyond is a slip, and overflows a tensor's size
UNITS = {"B": 1} | {
    f"{letter}{ending}": base ** (power + 1)
    for ending, base in (("B", 1000), ("iB", 1024))
    for power, letter in enumerate("KMGT")
}


@dataclass(frozen=True, kw_only=True)
class AccountOptions:
    """The conditions under which the decoder is counted."""

    context: int | None = None
    """Number of tokens that attention and the KV cache span; null means the decoder's
    context_length."""

    batch_size: int = 1
    """Number of texts that are generated at once, each with its own KV cache, or that one
    microbatch of training holds."""

    precision: Literal["32-true", "bf16-mixed", "bf16-true"] = "32-true"
    """Precision of the weights, with the names of --trainer.precision: bf16-mixed keeps them in
    float32."""

    optimizer: str | None = None
    """Optimiser whose state training keeps, with the names of --model.optimizer.kind; null means
    the one in the config or checkpoint, or adamw."""

    averaging: Literal["none", "ema", "tail"] | None = None
    """Average of the weights that training keeps, with the names of --model.averaging.kind; null
    means the one in the config or checkpoint, or none."""

    cache_precision: CachePrecision = "16"
    """Number of bits of each number in the KV cache."""

    device_memory: str | None = None
    """Memory of one device, such as 24GiB or 80GB, to see what fits into it; null skips this."""

    devices: int | None = None
    """Devices that train together, to be told what each holds and sends; null does not ask."""

    strategy: Literal["ddp", "fsdp"] = "fsdp"
    """How they share the training, as --trainer.strategy says it. Serves --devices alone."""

    tensor_parallel: int = 1
    """Devices that share every layer, as --trainer.tensor_parallel says it. Serves --devices
    alone."""

    checkpoint_activations: Literal["none", "block"] = "none"
    """What is computed a second time in the backward, as --model.checkpoint_activations says it.
    Serves --devices alone."""

    bandwidth: str = "50GB"
    """Bytes a second that a device sends, such as 50GB (400 Gbit/s). Serves --devices alone."""

    def __post_init__(self) -> None:
        for name in ("context", "batch_size", "devices", "tensor_parallel"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= LARGEST:
                raise UserError(f"--{name} {value}: must be a whole number from 1 to {LARGEST:,}")
        if self.device_memory is not None:
            parse_bytes("--device_memory", self.device_memory)
        parse_bytes("--bandwidth", self.bandwidth)


def parse_bytes(flag: str, text: str) -> int:
    """``24GiB`` (1024³) or ``80GB`` (1000³) as bytes.

    Raises:
        UserError: It is no number above 0 with a unit.
    """
    units = {unit.lower(): size for unit, size in UNITS.items()}
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?) ?([a-z]+)", text.strip().lower(), re.ASCII)
    size = int(float(found[1]) * units.get(found[2], 0)) if found else 0
    if size < 1:
        raise UserError(
            f"{flag} {text}: must be a number above 0 and a unit ({', '.join(UNITS)}), "
            "such as 24GiB"
        )
    return size


def account_for(name: str, config: DecoderConfig, options: AccountOptions) -> dict[str, Any]:
    """Everything that is counted, under the names of the JSON output.

    Raises:
        UserError: The context is one that the decoder cannot reach over.
    """
    from llama_lab.inspect.accounting import flops_per_token, on_meta, parameters_of
    from llama_lab.inspect.memory import PRECISIONS

    context = config.context_length if options.context is None else options.context
    _check_reach(config, context)
    try:
        decoder = on_meta(config)
    except RuntimeError as error:
        raise UserError(f"{name}: the sizes are impossible ({error})") from error
    count = parameters_of(decoder)
    itemsize = PRECISIONS[options.precision].weights.itemsize
    flops = flops_per_token(decoder, context)
    caches = _caches(config, context, options)
    memory = _training_memory(config, context, options)
    weights, storage = count.total * itemsize, options.batch_size * caches["gqa"].storage
    generation = {"weights": weights, "kv_cache": storage, "total": weights + storage}
    return {
        "name": name,
        "decoder": asdict(config),
        "context": context,
        "batch_size": options.batch_size,
        "precision": options.precision,
        "cache_precision": options.cache_precision,
        "parameters": {"total": count.total, "by_part": count.by_part},
        "bytes": {
            "total": weights,
            "by_part": {part: n * itemsize for part, n in count.by_part.items()},
        },
        "flops_per_token": {"forward": flops.forward, "training": flops.training},
        "kv_cache_bytes_per_token": caches["gqa"].per_token,
        "kv_cache": {
            kind: {
                "n_kv_heads": n_kv_heads,
                "bytes_per_token": caches[kind].per_token,
                "bytes": options.batch_size * caches[kind].seen,
            }
            for kind, n_kv_heads in _kv_heads(config)
        },
        "training_memory": memory,
        "generation_memory": generation,
        **_fits(options.device_memory, memory[options.precision]["total"], generation["total"]),
    }


def _check_reach(config: DecoderConfig, context: int) -> None:
    """Learned positions end where they were learned."""
    if config.position.kind == "learned" and context > config.context_length:
        raise UserError(
            f"--context {context}: --model.decoder.position.kind learned reaches "
            f"{config.context_length} tokens; set --model.decoder.context_length {context} as well"
        )


def _kv_heads(config: DecoderConfig) -> Iterable[tuple[str, int]]:
    """Multi-head, as configured, and multi-query attention."""
    attention = config.attention
    return (("mha", attention.n_heads), ("gqa", attention.kv_heads), ("mqa", 1))


def _caches(config: DecoderConfig, context: int, options: AccountOptions) -> dict[str, CacheBytes]:
    import torch

    from llama_lab.inspect.accounting import cache_bytes

    dtype = {"16": torch.bfloat16, "32": torch.float32}[options.cache_precision]
    return {
        kind: cache_bytes(
            replace(config, attention=replace(config.attention, n_kv_heads=n_kv_heads)),
            context,
            dtype,
        )
        for kind, n_kv_heads in _kv_heads(config)
    }


def optimizer_states(options: AccountOptions) -> StateSizes:
    """Numbers that the optimiser asked for keeps for each parameter."""
    from llama_lab.model.settings import require_choice
    from llama_lab.training.optimizers import OPTIMIZERS, OptimizerKind

    optimizer = options.optimizer or "adamw"
    require_choice("optimizer", optimizer, OptimizerKind)
    return OPTIMIZERS[cast("OptimizerKind", optimizer)].states


def _training_memory(
    config: DecoderConfig, context: int, options: AccountOptions
) -> dict[str, dict[str, Any]]:
    from llama_lab.inspect.memory import PRECISIONS, training_memory

    batch_size, optimizer = options.batch_size, options.optimizer or "adamw"
    states = optimizer_states(options)
    averages = options.averaging not in (None, "none")
    count = partial(
        training_memory, config, batch_size=batch_size, context=context, averages=averages
    )
    try:
        memory = {precision: count(precision, states) for precision in PRECISIONS}
    except RuntimeError as error:
        raise UserError(
            f"--batch_size {batch_size} and --context {context}: the sizes are impossible ({error})"
        ) from error
    return {p: {"optimizer": optimizer, **asdict(m), "total": m.total} for p, m in memory.items()}


def _fits(device_memory: str | None, training: int, generation: int) -> dict[str, Any]:
    if device_memory is None:
        return {"device_memory": None, "fits": None}
    size = parse_bytes("--device_memory", device_memory)
    return {
        "device_memory": size,
        "fits": {"training": training <= size, "generation": generation <= size},
    }
