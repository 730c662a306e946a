"""``llama-lab runs``: list every run under ``logs/`` and the settings in which they differ."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from llama_lab.commands.output import print_json
from llama_lab.configs import logs_folder
from llama_lab.errors import UserError
from llama_lab.parsing import Parser

DESCRIPTION = (
    "Lists the runs under ./logs, including those of studies: their state, steps, best validation "
    "loss (nats per token), the settings in which a run differs from most others, and folder."
)
JSON_NAMES = (
    "JSON output: a list of runs, each with folder, name, state (running, finished, stopped, "
    "failed, interrupted), steps, max_steps, best_loss, best_step, bits_per_byte (of the last "
    "validation), seed, parameters, tokens, seconds, differs (setting to value)."
)
# A run writes at every log interval; one that has not for so long was killed.
SECONDS_OF_SILENCE = 900.0
# Where a run was done or written says nothing of what it is.
NO_DIFFERENCE = (
    "name",
    "seed_everything",
    "ckpt_path",
    "checkpoint_every",
    "data.cache_dir",
    "data.num_workers",
    "trainer.default_root_dir",
    "trainer.enable_progress_bar",
    "trainer.log_every_n_steps",
)
SHORTER = ("model.decoder.", "model.", "trainer.")


def main(argv: list[str], prog: str) -> int:
    """Run the command; 0 where it succeeds.

    Raises:
        UserError: A flag is refused, or there is no run.
    """
    options = build_parser(prog).parse_args(argv)
    logs = logs_folder(options.root)
    runs = find_runs(logs, options.name)
    if not runs:
        where = logs / options.name if options.name else logs
        raise UserError(f"no run under {where}; train one with `llama-lab fit --config llama.yaml`")
    if options.sort == "best_loss":
        runs.sort(key=lambda run: (run["best_loss"] is None, run["best_loss"]))
    if options.format == "json":
        print_json(runs)
    else:
        print_table(runs, logs)
    return 0


def build_parser(prog: str) -> Parser:
    """The command's flags."""
    parser = Parser(prog=prog, description=f"{DESCRIPTION} {JSON_NAMES}")
    parser.add_argument(
        "--name",
        type=str | None,
        default=None,
        help="List only the runs in this folder of logs/, such as studies/swap-five.",
    )
    parser.add_argument(
        "--root",
        type=str | None,
        default=None,
        help="Folder that logs/ is in; null means the current folder.",
    )
    parser.add_argument(
        "--sort",
        type=Literal["started", "best_loss"],
        default="started",
        help="Order of the list: oldest run first, or lowest loss first.",
    )
    parser.add_argument(
        "--format",
        type=Literal["table", "json"],
        default="table",
        help="A table to read, or JSON for programs.",
    )
    return parser


def find_runs(logs: Path, name: str | None = None) -> list[dict[str, Any]]:
    """Every run under ``logs``, oldest first, under the names of the JSON output."""
    from llama_lab.runs.receipts import read_receipt

    found: list[tuple[float, Path, dict[str, Any]]] = []
    for path in (logs / name if name else logs).rglob("receipt.json"):
        try:
            receipt = read_receipt(path.parent)
        except (OSError, ValueError):  # no receipt of ours
            continue
        if receipt is not None and "config" in receipt:
            started = (path.parent / "config.yaml").stat().st_mtime
            found.append((started, path.parent, receipt))
    found.sort(key=lambda entry: (entry[0], str(entry[1])))
    differing = differences([receipt["config"] for _, _, receipt in found])
    return [
        {
            "folder": str(folder),
            "name": str(folder.relative_to(logs).parent),
            "state": state_of(folder, receipt),
            "steps": receipt["steps"],
            "max_steps": receipt["config"]["trainer"]["max_steps"],
            "best_loss": receipt["best"]["val_loss"],
            "best_step": receipt["best"]["step"],
            "bits_per_byte": receipt["last"].get("val_bits_per_byte"),
            "seed": receipt["config"]["seed_everything"],
            "parameters": receipt["parameters"]["total"],
            "tokens": receipt["tokens"],
            "seconds": receipt["wall_seconds"],
            "differs": differs,
        }
        for (_, folder, receipt), differs in zip(found, differing, strict=True)
    ]


def state_of(folder: Path, receipt: Mapping[str, Any]) -> str:
    """What the receipt says; a run that has gone silent was interrupted."""
    state = str(receipt["state"])
    if state != "running":
        return state
    written = [
        p.stat().st_mtime for p in (folder / "metrics.csv", folder / "receipt.json") if p.exists()
    ]
    return state if time.time() - max(written) < SECONDS_OF_SILENCE else "interrupted"


def differences(configs: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each run the settings that most of the runs have otherwise."""
    from llama_lab.dotted_names import flatten

    flat = [
        {k: v for k, v in flatten(config).items() if k not in NO_DIFFERENCE} for config in configs
    ]
    usual: dict[str, Any] = {}
    for key in {key for settings in flat for key in settings}:
        counts = Counter(json.dumps(settings.get(key), default=str) for settings in flat)
        usual[key] = counts.most_common(1)[0][0]
    return [
        {
            key: settings.get(key)
            for key in sorted(usual)
            if json.dumps(settings.get(key), default=str) != usual[key]
        }
        for settings in flat
    ]


def print_table(runs: list[dict[str, Any]], logs: Path) -> None:
    """The runs as a table for people."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (
        ("run", "left"),
        ("state", "left"),
        ("steps", "right"),
        ("best loss", "right"),
        ("seed", "right"),
        ("differs in", "left"),
    ):
        table.add_column(title, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for run in runs:
        best = run["best_loss"]
        table.add_row(
            str(Path(run["folder"]).relative_to(logs)),
            run["state"],
            f"{run['steps']:,}/{run['max_steps']:,}",
            "" if best is None else f"{best:.4f}",
            str(run["seed"]),
            ", ".join(f"{shorter(key)} {value}" for key, value in run["differs"].items()),
        )
    Console(highlight=False, markup=False).print(table)


def shorter(key: str) -> str:
    """A setting without the beginning that says nothing."""
    prefix = next((p for p in SHORTER if key.startswith(p)), "")
    return key.removeprefix(prefix)
