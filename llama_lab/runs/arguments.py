"""The order in which settings win: configs, presets, the environment, the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from llama_lab.configs import find_config, find_decoder, nearest, read_yaml, settings_in
from llama_lab.dotted_names import flatten
from llama_lab.errors import UserError
from llama_lab.model.decoder import DecoderConfig
from llama_lab.model.settings import SettingError
from llama_lab.parsing import kinds_of, whole_numbers
from llama_lab.runs.lists import Listed, lists_among, lists_in
from llama_lab.yaml_text import as_text, dump_yaml, parse_yaml

PREFIX = "LLAMA_LAB_"
# Read by the program and its tests themselves; no settings of a run.
NOT_SETTINGS = frozenset({"DEBUG", "TEST_DATA", "TEST_THREADS"})
# Lightning reads settings from these.
LIGHTNING_PREFIX, GLOBAL_SEED = "PL_TRAINER_", "PL_GLOBAL_SEED"
# Settings of `fit` that the other verbs have no use for.
FIT_ALONE = ("--checkpoint_every", "--keep_every", "--diagnostics_every")
DECODER_FLAG = "--model.decoder"
# YAML 1.1 reads these so, and configs for it are about.
TRUTH_WORDS = {"yes": True, "on": True, "no": False, "off": False}


class Arranged(NamedTuple):
    """Arguments in the order in which they win, the last most.

    Attributes:
        args: Configs, then presets of the command line, then the environment, then the rest.
        name: Name of the first config file, without folder and ending.
        lists: Every list that was given on the way.
    """

    args: list[str]
    name: str | None
    lists: list[Listed]


def arrange(parser: Any, args: list[str] | None) -> Arranged:
    """Put the arguments in order, with config files and presets found by name.

    ``LLAMA_LAB_MODEL__DECODER__DIM=64`` in the environment is ``--model.decoder.dim 64``. A preset
    (``--model.decoder NAME_OR_FILE``) is a whole decoder: it replaces what configs say of one, and
    single flags change it wherever they stand.

    Raises:
        UserError: A config or preset is not found, or a variable names no setting.
    """
    presets, words = presets_first([*from_environment(parser), *(args or [])])
    given, rest = _take(words, "--config", "-c")
    paths = [config if is_inline(config) else find_config(config) for config in given]
    contents = [_content(parser, path) for path in paths]
    names = [path.stem for path in paths if isinstance(path, Path)]
    read = zip(contents, map(_source, paths), strict=True)
    lists = [each for content, source in read for each in lists_in(content, source)]
    return Arranged(
        [
            *(f"--config={dump_yaml(content)}" for content in contents),
            *presets,
            *whole_numbers(parser, rest),
        ],
        names[0] if names else None,
        [*lists, *lists_among(rest)],
    )


def presets_first(args: list[str]) -> tuple[list[str], list[str]]:
    """The arguments that give a whole decoder, each with all its settings, and the others.

    Raises:
        UserError: A preset is not found, or no decoder file.
    """
    given, rest = _take(args, DECODER_FLAG)
    return [f"{DECODER_FLAG}={whole_decoder(value)}" for value in given], rest


def _take(args: list[str], *flags: str) -> tuple[list[str], list[str]]:
    """The values of one flag among the arguments, under any of its names, and the rest."""
    values: list[str] = []
    rest: list[str] = []
    words = iter(args)
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in flags:
            rest.append(word)
        elif equals:
            values.append(value)
        elif (following := next(words, None)) is not None:
            values.append(following)
        else:
            raise UserError(f"{flags[0]}: its value is missing; give a name or a file")
    return values, rest


def _content(parser: Any, config: str | Path) -> dict[str, Any]:
    """The settings of a config, with the preset that it names in the place of the name."""
    source = _source(config)
    read = read_yaml(config) if isinstance(config, Path) else settings_in(config, source)
    content = _as_typed(parser, read, source)
    flags = [flag for flag in parser._option_string_actions if not flag.endswith(".help")]
    for name, value in flatten(content).items():
        # Null in the place of a group would take away the defaults of all that is in it.
        if value is None and any(flag.startswith(f"--{name}.") for flag in flags):
            raise UserError(f"{config}: {name} is null, but a group of settings; leave it out")
    model = content.get("model")
    if isinstance(model, Mapping) and isinstance(model.get("decoder"), str):
        beside = config.parent if isinstance(config, Path) else None
        decoder = json.loads(whole_decoder(model["decoder"], beside))
        return {**content, "model": {**model, "decoder": decoder}}
    return content


def _source(config: str | Path) -> str:
    """What a config is called in messages."""
    return str(config) if isinstance(config, Path) else "--config"


def _as_typed(parser: Any, content: dict[str, Any], source: str) -> dict[str, Any]:
    """Settings with a name such as 1e3 as text, and 1e4 as 10000 where a whole number is due."""
    names: set[str] = set()

    def typed(values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        return {key: one(value, f"{prefix}{key}") for key, value in values.items()}

    def one(value: Any, name: str) -> Any:
        if isinstance(value, Mapping) and value:
            return typed(value, f"{name}.")
        if name in names:
            raise UserError(f"{source}: {name} stands twice, once with its group; keep one")
        names.add(name)
        kinds = kinds_of(parser, f"--{name}")
        if str in kinds and not {int, float, bool} & kinds:
            return as_text(value)
        if int in kinds and float not in kinds and isinstance(value, float):
            return int(value) if value.is_integer() else value
        if bool in kinds and isinstance(value, str):
            return TRUTH_WORDS.get(value.lower(), value)
        return value

    return typed(content, "")


def whole_decoder(name: str, beside: Path | None = None) -> str:
    """Every setting of the decoder that a preset, a file or inline text describes, as JSON.

    Args:
        name: Name of a preset, path of a decoder file, or settings as text.
        beside: Folder of the config that names it.

    Raises:
        UserError: The preset is not found, or its settings are refused.
    """
    if is_inline(name):  # it changes single settings, as flags do; a file is a whole decoder
        return json.dumps(parse_yaml(name, DECODER_FLAG))
    path = find_decoder(name, beside)
    try:
        return json.dumps(asdict(DecoderConfig.from_dict(read_yaml(path))))
    except SettingError as error:
        raise UserError(f"{path}: {error}") from error


def is_inline(config: str) -> bool:
    """Whether a config is given as text instead of a file."""
    return config.lstrip().startswith("{") or "\n" in config


def from_environment(parser: Any) -> list[str]:
    """Settings from ``LLAMA_LAB_…`` variables, as arguments.

    Raises:
        UserError: A variable names no setting, or is one that only Lightning reads.
    """
    flags = parser._option_string_actions
    arguments = []
    for variable, value in sorted(os.environ.items()):
        refuse_lightnings(variable, value)
        name = variable.removeprefix(PREFIX)
        if name == variable or name in NOT_SETTINGS:
            continue
        flag = "--" + name.lower().replace("__", ".")
        if flag in FIT_ALONE and flag not in flags:
            continue
        if flag not in flags or flag == "--config":
            guess = nearest(flag, flags)
            hint = f"; the nearest is {guess}" if guess else ""
            raise UserError(f"environment variable {variable}: no setting {flag}{hint}; unset it")
        arguments.append(f"{flag}={value}")
    return arguments


def refuse_lightnings(variable: str, value: str) -> None:
    """Refuse a variable that Lightning takes for a setting: here it would do nothing."""
    if variable == GLOBAL_SEED:
        remedy = f"set --seed_everything {value}"
    elif variable.startswith(LIGHTNING_PREFIX):
        name = variable.removeprefix(LIGHTNING_PREFIX)
        remedy = f"set --trainer.{name.lower()} {value}, or {PREFIX}TRAINER__{name}"
    else:
        return
    raise UserError(f"environment variable {variable}: not read by llama-lab; {remedy}; unset it")


def without_print_config(args: list[str]) -> list[str]:
    """The arguments without the one that prints the config and exits."""
    return [word for word in args if not word.startswith("--print_config")]
