"""``llama-lab describe``: what a decoder is made of, counted without allocating its weights."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llama_lab.checkpoints import read_record
from llama_lab.configs import find_checkpoint, find_config, logs_folder, read_yaml
from llama_lab.errors import UserError
from llama_lab.parsing import Parser

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from llama_lab.model.accounting import ParameterCount
    from llama_lab.model.causality import Causality
    from llama_lab.model.decoder import DecoderConfig

DESCRIPTION = (
    "Counts a decoder's parameters, part by part, without allocating its weights. "
    "JSON output: name, decoder (every setting), fault, parameters.total, parameters.by_part, and "
    "of a probe causal and max_difference."
)
DECODER_FLAG = "--model.decoder"
# Top-level keys of a whole config; a file with none of them is a bare decoder file.
CONFIG_SECTIONS = ("model", "data", "trainer")


def main(argv: list[str], prog: str) -> int:
    """Run the command; 0 where it succeeds.

    Raises:
        UserError: A name, a file or a flag is refused.
        SettingError: The decoder's settings are refused.
    """
    options, source, config = _read_arguments(argv, prog)
    from llama_lab.model.accounting import count_parameters

    probed = _probe(options.NAME_OR_FILE, source, config) if options.probe else None
    if config.vocab_size is None:
        raise UserError(
            f"{DECODER_FLAG}.vocab_size null: the vocabulary comes from a tokenizer, which is not "
            f"known here; give {DECODER_FLAG}.vocab_size N"
        )
    count = count_parameters(config)
    shown = Described(options.NAME_OR_FILE, config, source.fault, count, probed)
    if options.format == "json":
        _print_json(shown)
    else:
        _print_table(shown)
    sys.stdout.flush()
    return 0


def build_parser(prog: str) -> Parser:
    """The command's flags, every decoder setting among them."""
    from llama_lab.model.decoder import DecoderConfig

    parser = Parser(prog=prog, description=DESCRIPTION)
    parser.add_argument(
        "NAME_OR_FILE",
        type=str,
        help="A config or preset by name or file, a decoder file, a checkpoint, a run folder, "
        "`best` or `last`.",
    )
    parser.add_argument(
        "--format",
        type=Literal["table", "json"],
        default="table",
        help="A table to read, or JSON for programs.",
    )
    parser.add_argument(
        "--probe",
        type=bool,
        default=False,
        help="Load a checkpoint's weights and ask whether changing a later token changes earlier "
        "logits, which it must not.",
    )
    parser.add_class_arguments(DecoderConfig, DECODER_FLAG.lstrip("-"))
    return parser


def _read_arguments(argv: list[str], prog: str) -> tuple[Namespace, Source, DecoderConfig]:
    """The options, the file, and the decoder: the file's settings, overridden by flags."""
    from llama_lab.model.decoder import DecoderConfig

    parser = build_parser(prog)
    overrides = list(_expand_presets(argv))
    # The flags are checked first, so that a misspelt one is not blamed on the file.
    name = parser.parse_args(overrides).NAME_OR_FILE
    source = _find(name)
    # The file's settings go through the very flags that override them: one set of rules, one kind
    # of error. Its defaults are the dataclasses'.
    settings = [f"{flag}={value}" for flag, value in _as_flags(DECODER_FLAG, source.decoder)]
    try:
        parser.parse_args([name, *settings])
    except UserError as error:
        raise UserError(f"{source.path}: {error}") from error
    options = parser.parse_args([*settings, *overrides])
    return options, source, DecoderConfig.from_dict(options.model.decoder.as_dict())


@dataclass(frozen=True)
class Source:
    """A file and the decoder settings in it (those left out have their defaults)."""

    path: Path
    decoder: Mapping[str, Any]
    fault: str | None = None
    has_weights: bool = False


def _find(name: str) -> Source:
    """The decoder settings that NAME_OR_FILE stands for."""
    if name in ("best", "last") or name.endswith(".ckpt") or (Path(name) / "checkpoints").is_dir():
        try:
            path = find_checkpoint(name, logs_folder(None))
        except UserError as error:
            raise UserError(str(error).removeprefix("--ckpt_path ")) from error
        record = read_record(path)
        return Source(path, record.decoder, record.fault, has_weights=True)
    path = _config_file(name)
    content = read_yaml(path)
    if not any(section in content for section in CONFIG_SECTIONS):
        return Source(path, content)
    model = content.get("model")
    decoder = model.get("decoder") if isinstance(model, Mapping) else None
    if decoder is None:
        return Source(path, {})
    if isinstance(decoder, str):
        preset = _config_file(decoder, beside=path.parent)
        return Source(preset, read_yaml(preset))
    if not isinstance(decoder, Mapping):
        raise UserError(f"{path}: model.decoder {decoder}: must be settings, or a preset's name")
    return Source(path, decoder)


def _config_file(name: str, beside: Path | None = None) -> Path:
    """A config or, under ``decoders/``, a preset; first of all a file beside the naming one."""
    if beside is not None and (beside / name).is_file():
        return beside / name
    try:
        return find_config(name)
    except UserError as error:
        try:
            return find_config(f"decoders/{name}")
        except UserError:
            raise UserError(str(error).removeprefix("--config ")) from error


def _as_flags(prefix: str, settings: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Nested settings as flag and value, each as it is written on the command line."""
    for key, value in settings.items():
        flag = f"{prefix}.{key}"
        if isinstance(value, Mapping):
            yield from _as_flags(flag, value)
        else:
            yield flag, value if isinstance(value, str) else json.dumps(value, default=str)


def _expand_presets(argv: list[str]) -> Iterator[str]:
    """``--model.decoder NAME`` becomes the preset's settings; what follows overrides them."""
    words = iter(argv)
    for word in words:
        flag, equals, name = word.partition("=")
        if flag != DECODER_FLAG:
            yield word
            continue
        name = name if equals else next(words, "")
        if not name or name.startswith("{"):
            yield from (flag, name) if name else (flag,)
            continue
        for setting, value in _as_flags(DECODER_FLAG, _find(name).decoder):
            yield f"{setting}={value}"


def _probe(name: str, source: Source, config: DecoderConfig) -> Causality:
    """Whether a checkpoint's decoder, as it is, is causal."""
    if not source.has_weights:
        raise UserError(f"--probe true: {name} is a config, without weights; give a checkpoint")
    from llama_lab.generation.generate import load_model
    from llama_lab.model.causality import probe_causality

    decoder = load_model(source.path).decoder
    if decoder.config != config:
        raise UserError(
            f"--probe true takes {name} as it was trained: leave out {DECODER_FLAG} and what is "
            "under it"
        )
    found = probe_causality(decoder)
    if not math.isfinite(found.max_difference):
        raise UserError(f"--probe true: {name} gives logits that are not finite; take another one")
    return found


@dataclass(frozen=True)
class Described:
    """All that is said."""

    name: str
    config: DecoderConfig
    fault: str | None
    count: ParameterCount
    probed: Causality | None


def _print_json(shown: Described) -> None:
    content = {
        "name": shown.name,
        "decoder": asdict(shown.config),
        "fault": shown.fault,
        "parameters": {"total": shown.count.total, "by_part": dict(shown.count.by_part)},
        **(shown.probed._asdict() if shown.probed else {}),
    }
    print(json.dumps(content, indent=2))


def _print_table(shown: Described) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    config, count = shown.config, shown.count
    attention, feed_forward = config.attention, config.feed_forward
    summary = (
        f"{config.n_layers} layers of width {config.dim}, {attention.n_heads} heads "
        f"({attention.kv_heads} for keys and values), {feed_forward.kind}, {config.norm.kind} "
        f"({config.norm.placement}), {config.position.kind}, context {config.context_length}, "
        f"vocabulary {config.vocab_size}"
        + (f", with --model.fault {shown.fault}" if shown.fault else "")
    )
    table = Table(box=box.SIMPLE, show_footer=True)
    table.add_column("part", "total")
    table.add_column("parameters", f"{count.total:,}", justify="right")
    table.add_column("share", "100.0 %", justify="right")
    for part, parameters in count.by_part.items():
        table.add_row(part, f"{parameters:,}", f"{100 * parameters / count.total:.1f} %")
    console = Console(file=sys.stdout, highlight=False)
    console.print(Text(f"{shown.name}: {summary}"))
    console.print(table)
    if shown.probed is not None:
        yes, most = str(shown.probed.causal).lower(), shown.probed.max_difference
        console.print(Text(f"causal: {yes}; a later token changes earlier logits by {most:.3g}"))
