"""``llama-lab describe``: what a decoder is made of and costs, without allocating its weights."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llama_lab.checkpoints import read_record
from llama_lab.commands.describe_accounts import JSON_NAMES, AccountOptions, account_for
from llama_lab.commands.describe_devices import JSON_NAMES as NAMES_OF_DEVICES
from llama_lab.commands.describe_devices import device_tables, devices_for
from llama_lab.commands.describe_tables import print_tables
from llama_lab.commands.output import print_json
from llama_lab.configs import find_checkpoint, find_config, find_decoder, logs_folder, read_yaml
from llama_lab.errors import UserError
from llama_lab.parsing import Parser

if TYPE_CHECKING:
    from jsonargparse import Namespace

    from llama_lab.inspect.causality import Causality
    from llama_lab.model.decoder import DecoderConfig

DESCRIPTION = (
    "Counts a decoder's parameters, FLOPs, KV cache and memory without allocating its weights. "
    + f"{JSON_NAMES} {NAMES_OF_DEVICES}"
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
    name = options.NAME_OR_FILE
    probed = _probe(name, source, config) if options.probe else None
    if config.vocab_size is None:
        raise UserError(
            f"{DECODER_FLAG}.vocab_size null: the vocabulary comes from a tokenizer, which is not "
            f"known here; give {DECODER_FLAG}.vocab_size N"
        )
    at = AccountOptions(**{f.name: getattr(options, f.name) for f in fields(AccountOptions)})
    account = account_for(name, config, at) | {"fault": source.fault}
    account |= probed._asdict() if probed else {}
    account |= devices_for(config, at)
    if options.format == "json":
        print_json(account)
    else:
        print_tables(config, account, device_tables(account))
    sys.stdout.flush()
    return 0


def build_parser(prog: str) -> Parser:
    """The command's flags, every decoder setting among them."""
    from llama_lab.model.decoder import DecoderConfig

    parser = Parser(prog=prog, description=DESCRIPTION)
    parser.add_argument(
        "NAME_OR_FILE",
        type=str,
        help="A config or preset (its name or its file), a decoder file, a checkpoint, a run "
        "folder, `best` or `last`, or a Hugging Face folder.",
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
        help="Load a checkpoint's weights and test that a change of a later token leaves all "
        "earlier logits as they were.",
    )
    parser.add_class_arguments(AccountOptions)
    parser.add_class_arguments(DecoderConfig, DECODER_FLAG.lstrip("-"))
    return parser


def _read_arguments(argv: list[str], prog: str) -> tuple[Namespace, Source, DecoderConfig]:
    """The options, the file, and the decoder: the file's settings, overridden by a preset, which
    replaces them all, and by single flags, wherever they stand."""
    from llama_lab.model.decoder import DecoderConfig
    from llama_lab.runs.arguments import presets_first

    parser = build_parser(prog)
    presets, flags = presets_first(argv)
    overrides = [*presets, *flags]
    # The flags are checked first, so that a misspelt one is not blamed on the file.
    name = parser.parse_args(overrides).NAME_OR_FILE
    source = _find(name)
    # The file's settings go through the very flags that override them: one set of rules, one kind
    # of error. Its defaults are the dataclasses'.
    settings = [f"{flag}={value}" for flag, value in _as_flags(DECODER_FLAG, source.decoder)]
    settings += [f"--{group}={kind}" for group, kind in source.training.items()]
    try:
        parser.parse_args([name, *settings])
    except UserError as error:
        raise UserError(f"{source.path}: {error}") from error
    options = parser.parse_args([*settings, *overrides])
    return options, source, DecoderConfig.from_dict(options.model.decoder.as_dict())


@dataclass(frozen=True)
class Source:
    """A file, the decoder settings in it (those left out have their defaults), and the kinds of
    optimiser and averaging that it names."""

    path: Path
    decoder: Mapping[str, Any]
    fault: str | None = None
    has_weights: bool = False
    training: Mapping[str, object] = field(default_factory=dict)


def _find(name: str) -> Source:
    """The decoder settings that NAME_OR_FILE stands for."""
    if name in ("best", "last") or name.endswith(".ckpt") or (Path(name) / "checkpoints").is_dir():
        try:
            path = find_checkpoint(name, logs_folder(None))
        except UserError as error:
            raise UserError(str(error).removeprefix("--ckpt_path ")) from error
        record = read_record(path)
        kinds = _kinds(record.settings["model"])
        return Source(path, record.decoder, record.fault, has_weights=True, training=kinds)
    if (Path(name) / "config.json").is_file():
        from llama_lab.interop.huggingface import read_decoder

        return Source(Path(name) / "config.json", asdict(read_decoder(Path(name))))
    path = _config_file(name)
    content = read_yaml(path)
    if not any(section in content for section in CONFIG_SECTIONS):
        return Source(path, content)
    model = content.get("model")
    decoder = model.get("decoder") if isinstance(model, Mapping) else None
    kinds = _kinds(model)
    if decoder is None:
        return Source(path, {}, training=kinds)
    if isinstance(decoder, str):
        from llama_lab.runs.arguments import whole_decoder

        settings = json.loads(whole_decoder(decoder, path.parent))
        return Source(path, settings, training=kinds)
    if not isinstance(decoder, Mapping):
        raise UserError(f"{path}: model.decoder {decoder}: must be settings, or a preset's name")
    return Source(path, decoder, training=kinds)


def _kinds(model: object) -> dict[str, object]:
    """The kinds of optimiser and averaging that the model settings of a config or a checkpoint
    name."""
    groups = model if isinstance(model, Mapping) else {}
    return {
        name: kind
        for name in ("optimizer", "averaging")
        if isinstance(group := groups.get(name), Mapping)
        and (kind := group.get("kind")) is not None
    }


def _config_file(name: str) -> Path:
    """A config or a preset."""
    try:
        return find_config(name, flag="")
    except UserError as error:
        try:
            return find_decoder(name)
        except UserError:
            raise error from None


def _as_flags(prefix: str, settings: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Nested settings as flag and value, each as it is written on the command line."""
    for key, value in settings.items():
        flag = f"{prefix}.{key}"
        if isinstance(value, Mapping):
            yield from _as_flags(flag, value)
        else:
            yield flag, value if isinstance(value, str) else json.dumps(value, default=str)


def _probe(name: str, source: Source, config: DecoderConfig) -> Causality:
    """Whether a checkpoint's decoder, as it is, is causal."""
    if not source.has_weights:
        raise UserError(f"--probe true: {name} is a config, without weights; give a checkpoint")
    from llama_lab.generation.generate import load_model
    from llama_lab.inspect.causality import probe_causality

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
