"""``llama-lab bench``: training and decoding speed of a config on this machine."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from llama_lab.commands.describe_tables import in_bytes, in_flops
from llama_lab.commands.output import print_json
from llama_lab.configs import find_config
from llama_lab.errors import UserError
from llama_lab.parsing import OF_FIT, Flag, Parser, split_flags

if TYPE_CHECKING:
    from llama_lab.bench.config_speed import BenchResult

DESCRIPTION = (
    "Measures how fast this machine trains the model of `fit --config CONFIG` on one device, and "
    "how fast it generates text with it. It compares both with the fastest matrix product and the "
    "highest memory bandwidth that it measures here. Flags of "
    "`fit` under --model, --data and --trainer (--data.batch_size 8, --model.compile true, …) "
    "override the config. The steps are those of a run, without validations and checkpoints; "
    "nothing is written under logs/. JSON output: name, device, device_name, threads, precision, "
    "compiled, "
    "compiled_whole, compiled_because; parameters, flops_per_token (of training, as `describe` "
    "counts them), "
    "batch_size, context, tokens_per_step, steps (timed); tokens_per_second, flops_per_second, mfu "
    "(of matmul_ceiling_flops_per_second: the fastest product of square matrices at the run's "
    "precision); memory_bandwidth_bytes_per_second (reading 256 MiB); peak_memory_bytes (the "
    "allocator's on CUDA, else by how much the process grew; null where the system does not say); "
    "step_ms.median, .min, .max; share.data, .forward, .backward, .optimizer (clipping included), "
    ".other (Trainer, callbacks, logging), which sum to 1, on CUDA of steps whose phases wait for "
    "the device; decoding.tokens_per_second (one text, with the KV cache), .context, "
    ".bytes_per_token (weights and cache), .bandwidth_share; limit (what limits training, and what "
    "to set); versions."
)
WIDTH, INDENT = 80, 13
# What a run leaves and says, and the bench does not.
IDLE = (
    "--trainer.val_check_interval",
    "--trainer.default_root_dir",
    "--trainer.enable_progress_bar",
    "--trainer.logger",
    "--trainer.profiler",
)


def main(argv: list[str], prog: str) -> int:
    """Run the command; 0 where it succeeds.

    Raises:
        UserError: The config or a flag is refused.
        SettingError: The same, of the model's settings.
    """
    own, flags = split_flags(argv, OF_FIT)
    options = build_parser(prog).parse_args(own)
    refuse_idle(flags)
    find_config(options.CONFIG, flag="")
    # torch and Lightning take seconds to import, and neither --help nor a slip needs them.
    from llama_lab.bench.config_speed import bench
    from llama_lab.runs.automatic import work_alone
    from llama_lab.runs.command_line import quiet

    quiet()
    work_alone("llama-lab bench")
    result = bench(options.CONFIG, [f"{flag}={value}" for flag, value in flags], _say)
    if options.format == "json":
        print_json(asdict(result))
    else:
        print_table(result)
    sys.stdout.flush()
    return 0


def build_parser(prog: str) -> Parser:
    """The command's own flags."""
    parser = Parser(prog=prog, description=DESCRIPTION)
    parser.add_argument("CONFIG", type=str, help="A config: its name or its file.")
    parser.add_argument(
        "--format",
        type=Literal["table", "json"],
        default="table",
        help="A table to read, or JSON for programs.",
    )
    return parser


def refuse_idle(flags: list[Flag]) -> None:
    """Refuse settings of a run that change nothing here.

    Raises:
        UserError: One is given.
    """
    for flag, value in flags:
        if flag in IDLE:
            raise UserError(
                f"{flag} {value} would do nothing: the bench neither validates, nor leaves or "
                "profiles a run; leave it out"
            )


def print_table(result: BenchResult) -> None:
    """Write the numbers to standard output, within 80 columns."""
    for name, text in rows(result):
        first, *more = textwrap.wrap(text, WIDTH - INDENT) or [""]
        print(f"{name:<{INDENT}}{first}".rstrip())
        for line in more:
            print(" " * INDENT + line)


def rows(result: BenchResult) -> list[tuple[str, str]]:
    """Names and sentences."""
    step, decoding = result.step_ms, result.decoding
    peak = result.peak_memory_bytes
    words = {"optimizer": "optimiser", "other": "Trainer and logging"}
    shares = [f"{words.get(phase, phase)} {part:.1%}" for phase, part in result.share.items()]
    pieces = "in one piece" if result.compiled_whole else "block by block"
    compiled = pieces if result.compiled else "no"
    bandwidth = in_bytes(result.memory_bandwidth_bytes_per_second)
    spread = (
        "the only one that was timed"
        if result.steps == 1
        else f"{_ms(step.min)} to {_ms(step.max)} in {result.steps:,} steps"
    )
    return [
        ("config", f"{result.name}: {result.parameters:,} parameters"),
        ("device", f"{result.device} ({result.device_name}), {result.threads} thread(s)"),
        ("precision", result.precision),
        ("compiled", f"{compiled}: {result.compiled_because}"),
        ("", ""),
        ("training", f"{result.tokens_per_second:,.0f} tokens/s"),
        (
            "MFU",
            f"{result.mfu:.1%}: {in_flops(result.flops_per_second)}/s of the "
            f"{in_flops(result.matmul_ceiling_flops_per_second)}/s that a product of matrices "
            "was measured to reach",
        ),
        (
            "step",
            f"{_ms(step.median)} ms ({spread}), {result.batch_size:,} x {result.context:,} tokens",
        ),
        ("of a step", ", ".join(shares)),
        ("peak memory", "not known here" if peak is None else in_bytes(peak)),
        ("", ""),
        ("decoding", f"{decoding.tokens_per_second:,.0f} tokens/s, one text, with the KV cache"),
        (
            "bandwidth",
            f"{decoding.bandwidth_share:.1%}: a token reads {in_bytes(decoding.bytes_per_token)} "
            f"of weights and cache; memory was measured to give {bandwidth}/s",
        ),
        ("", ""),
        ("limit", result.limit),
    ]


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.2f}" if milliseconds < 100 else f"{milliseconds:,.0f}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
