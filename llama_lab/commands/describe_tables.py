"""``llama-lab describe`` for people: the account as tables that fit 80 columns."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from llama_lab.model.decoder import DecoderConfig


def print_tables(
    config: DecoderConfig, account: Mapping[str, Any], more: Iterable[Table | str] = ()
) -> None:
    """Write the account to standard output, and ``more`` behind it."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)
    planted = f", with --model.fault {account['fault']}" if account["fault"] else ""
    console.print(Text(f"{account['name']}: {_summary(config)}{planted}"))
    for line in (
        _parts(account),
        Text(_flops(account)),
        _caches(account),
        *_memory(account),
        *(Text(sentence) for sentence in _verdicts(account)),
        *(Text(each) if isinstance(each, str) else each for each in more),
    ):
        console.print(line)
    if "causal" in account:
        yes, most = str(account["causal"]).lower(), account["max_difference"]
        console.print(Text(f"causal: {yes}; a later token changes earlier logits by {most:.3g}"))


def in_bytes(size: float) -> str:
    """A size in the largest unit of 1024 that leaves at least 1, such as ``12.6 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"


def in_flops(flops: float) -> str:
    """A number of operations in the largest unit of 1000 that leaves at least 1."""
    for unit in ("FLOPs", "kFLOPs", "MFLOPs", "GFLOPs", "TFLOPs"):
        if flops < 1000 or unit == "TFLOPs":
            break
        flops /= 1000
    return f"{flops:,.2f} {unit}"


def _summary(config: DecoderConfig) -> str:
    attention, feed_forward = config.attention, config.feed_forward
    return (
        f"{config.n_layers} layers of width {config.dim}, {attention.n_heads} heads "
        f"({attention.kv_heads} for keys and values), {feed_forward.kind}, {config.norm.kind} "
        f"({config.norm.placement}), {config.position.kind}, context {config.context_length}, "
        f"vocabulary {config.vocab_size}"
    )


def table_of(first: str, *columns: str, total: Sequence[str] = ()) -> Table:
    """A table of one column of names and others of numbers; ``total`` is its last line."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, show_footer=bool(total), padding=(0, 1, 0, 0))
    footers = total or ("",) * (1 + len(columns))
    table.add_column(first, footers[0])
    for column, footer in zip(columns, footers[1:], strict=True):
        table.add_column(column, footer, justify="right")
    return table


def _parts(account: Mapping[str, Any]) -> Table:
    count, sizes = account["parameters"], account["bytes"]
    total = ("total", f"{count['total']:,}", "100.0 %", in_bytes(sizes["total"]))
    weights = f"weights ({account['precision']})"
    table = table_of("part", "parameters", "share", weights, total=total)
    for part, parameters in count["by_part"].items():
        share = f"{100 * parameters / count['total']:.1f} %"
        table.add_row(part, f"{parameters:,}", share, in_bytes(sizes["by_part"][part]))
    return table


def _flops(account: Mapping[str, Any]) -> str:
    flops = account["flops_per_token"]
    return (
        f"A token among {account['context']:,}: {in_flops(flops['forward'])} forward, "
        f"{in_flops(flops['training'])} in training"
    )


def _caches(account: Mapping[str, Any]) -> Table:
    texts = f"{account['batch_size']:,} x {account['context']:,} tokens"
    table = table_of(f"KV cache ({account['cache_precision']} bits)", "kv heads", "a token", texts)
    names = {"mha": "multi-head", "gqa": "as configured", "mqa": "multi-query"}
    for kind, cache in account["kv_cache"].items():
        sizes = (in_bytes(cache["bytes_per_token"]), in_bytes(cache["bytes"]))
        table.add_row(names[kind], f"{cache['n_kv_heads']:,}", *sizes)
    return table


def _memory(account: Mapping[str, Any]) -> Iterator[Table]:
    """Memory of training by precision, and of generation, whose activations come on top."""
    parts = {
        "weights": "weights",
        "gradients": "gradients",
        "optimizer_states": "optimiser",
        "activations": "activations*",
        "total": "total",
    }
    if any(memory["averaged_weights"] for memory in account["training_memory"].values()):
        parts = {"averaged_weights": "average", **parts}
    table = table_of("training", *parts.values())
    for precision, memory in account["training_memory"].items():
        sizes = (in_bytes(memory[name]) for name in parts)
        table.add_row(f"{memory['optimizer']}, {precision}", *sizes)
    yield table
    table = table_of("generation", "weights", "KV cache", "total**")
    sizes = (in_bytes(account["generation_memory"][n]) for n in ("weights", "kv_cache", "total"))
    table.add_row(account["precision"], *sizes)
    yield table


def _verdicts(account: Mapping[str, Any]) -> Iterator[str]:
    texts = f"{account['batch_size']:,} x {account['context']:,} tokens"
    yield f"* kept of {texts} for the backward; fused attention, no dropout"
    yield "** without activations, which come on top"
    fits = account["fits"]
    if fits is None:
        return
    device = in_bytes(account["device_memory"])
    for use in ("training", "generation"):
        verb = "fits" if fits[use] else "does not fit"
        yield f"{use} in {account['precision']}: {verb} in {device}"
