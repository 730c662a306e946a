"""The part of ``llama-lab describe`` that is about several devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from llama_lab.commands.describe_accounts import AccountOptions, optimizer_states, parse_bytes
from llama_lab.commands.describe_tables import in_bytes, table_of
from llama_lab.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from llama_lab.model.decoder import DecoderConfig
    from llama_lab.parallel.costs import Division, Work

JSON_NAMES = (
    "With --devices: devices.marked (computed, not measured), .bandwidth (bytes a second), .asked "
    "and .table, a list; each has strategy, devices, tensor_parallel, memory (bytes of one device: "
    "weights, gradients, optimizer_states, activations, gathered), total, fits, sent (bytes that a "
    "device sends in a step of one microbatch) and seconds (that this takes)."
)


def devices_for(config: DecoderConfig, options: AccountOptions) -> dict[str, Any]:
    """Memory and traffic of each device, under the names of the JSON output.

    Raises:
        UserError: The devices cannot share this decoder so.
    """
    if options.devices is None:
        return {}
    from llama_lab.parallel.costs import Division, Work, divisions
    from llama_lab.parallel.tensor_plan import check_tensor_parallel

    n = options.tensor_parallel
    if options.devices % n:
        raise UserError(
            f"--tensor_parallel {n} does not divide --devices {options.devices}: take a multiple"
        )
    if n > 1 and options.strategy != "fsdp":
        raise UserError(f"--tensor_parallel {n} needs --strategy fsdp; set it")
    try:
        check_tensor_parallel(config, n)
    except UserError as error:
        raise UserError(str(error).replace("--trainer.tensor", "--tensor")) from error
    work = Work(
        config,
        options.precision,
        optimizer_states(options),
        options.batch_size,
        config.context_length if options.context is None else options.context,
        options.checkpoint_activations == "block",
    )
    asked = Division(options.strategy, options.devices, n)
    return {
        "devices": {
            "marked": "computed, not measured",
            "bandwidth": parse_bytes("--bandwidth", options.bandwidth),
            "asked": _row(work, asked, options),
            "table": [_row(work, each, options) for each in divisions(config)],
        }
    }


def _row(work: Work, division: Division, options: AccountOptions) -> dict[str, Any]:
    from llama_lab.parallel.costs import memory_of, sent_bytes

    memory, sent = memory_of(work, division), sent_bytes(work, division)
    room = options.device_memory and parse_bytes("--device_memory", options.device_memory)
    return {
        **division._asdict(),
        "memory": asdict(memory),
        "total": memory.total,
        "fits": None if not room else memory.total <= room,
        "sent": sent,
        "seconds": sent / parse_bytes("--bandwidth", options.bandwidth),
    }


def device_tables(account: Mapping[str, Any]) -> Iterator[Table | str]:
    """The same for people."""
    if "devices" not in account:
        return
    devices = account["devices"]
    asked = devices["asked"]
    yield f"{_name(asked)} on {asked['devices']:,} devices, per device ({devices['marked']}):"
    table = table_of("held by one device", "bytes", total=("total", in_bytes(asked["total"])))
    for part, size in asked["memory"].items():
        table.add_row(part.replace("_", " "), in_bytes(size))
    yield table
    if asked["fits"] is not None:
        verb = "fits" if asked["fits"] else "does not fit"
        yield f"it {verb} in {in_bytes(account['device_memory'])}"
    rate = in_bytes(devices["bandwidth"])
    sent, seconds = in_bytes(asked["sent"]), asked["seconds"]
    yield f"a step sends {sent} from each device: {seconds:.3f} s at {rate} a second"
    table = table_of("devices, computed", "strategy", "memory each", "fits", "sent a step", "s")
    for row in devices["table"]:
        fits = {None: "", True: "yes", False: "no"}[row["fits"]]
        table.add_row(
            f"{row['devices']:,}",
            _name(row),
            in_bytes(row["total"]),
            fits,
            in_bytes(row["sent"]),
            f"{row['seconds']:.3f}",
        )
    yield table


def _name(row: Mapping[str, Any]) -> str:
    shared = row["tensor_parallel"]
    return row["strategy"] + (f" x tensor {shared}" if shared > 1 else "")
