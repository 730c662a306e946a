"""The order in which settings win: config files, then the environment, then the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from llama_lab.configs import find_config, nearest, read_yaml
from llama_lab.errors import UserError

PREFIX = "LLAMA_LAB_"
# Read by the program and its tests themselves; no settings of a run.
NOT_SETTINGS = frozenset({"DEBUG", "TEST_DATA"})
# Settings of `fit` that the other verbs have no use for.
FIT_ALONE = ("--checkpoint_every",)
CONFIG_FLAGS = ("--config", "-c")


def arrange(parser: Any, args: list[str] | None) -> list[str]:
    """The arguments with their config files first, found by name, and the environment behind them.

    ``LLAMA_LAB_MODEL__DECODER__DIM=64`` in the environment is ``--model.decoder.dim 64``.

    Raises:
        UserError: A config is not found, or a variable names no setting.
    """
    configs: list[str] = []
    rest: list[str] = []
    pending = list(args or [])
    while pending:
        word = pending.pop(0)
        flag, equals, value = word.partition("=")
        if flag not in CONFIG_FLAGS:
            rest.append(word)
        elif equals:
            configs.append(value)
        elif pending:
            configs.append(pending.pop(0))
        else:
            raise UserError(f"{flag}: its value is missing; name a config file")
    found = [_config(parser, config) for config in configs]
    return [*found, *from_environment(parser), *rest]


def _config(parser: Any, config: str) -> str:
    """The argument for a config, which is a name, a path, or settings as text."""
    path = config if is_inline(config) else str(find_config(config))
    content = yaml.safe_load(config) if is_inline(config) else read_yaml(Path(path))
    flags = [flag for flag in parser._option_string_actions if not flag.endswith(".help")]
    for name, value in flatten(content).items():
        # Null in the place of a group would take away the defaults of all that is in it.
        if value is None and any(flag.startswith(f"--{name}.") for flag in flags):
            raise UserError(f"{path}: {name} is null, but it is a group of settings; leave it out")
    return f"--config={path}"


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted names; lists and empty groups are leaves."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            leaves |= flatten(value, f"{name}.")
        else:
            leaves[name] = value
    return leaves


def is_inline(config: str) -> bool:
    """Whether a config is given as text instead of a file."""
    return config.lstrip().startswith("{") or "\n" in config


def from_environment(parser: Any) -> list[str]:
    """Settings from ``LLAMA_LAB_…`` variables, as arguments."""
    flags = parser._option_string_actions
    arguments = []
    for variable, value in sorted(os.environ.items()):
        name = variable.removeprefix(PREFIX)
        if name == variable or name in NOT_SETTINGS:
            continue
        flag = "--" + name.lower().replace("__", ".")
        if flag in FIT_ALONE and flag not in flags:
            continue
        if flag not in flags or flag in CONFIG_FLAGS:
            guess = nearest(flag, flags)
            hint = f"; the nearest is {guess}" if guess else ""
            raise UserError(f"environment variable {variable}: no setting {flag}{hint}; unset it")
        arguments.append(f"{flag}={value}")
    return arguments


def first_config_stem(arranged: list[str]) -> str | None:
    """The name of the first config file, without folder and ending."""
    for word in arranged:
        if word.startswith("--config=") and not is_inline(word.removeprefix("--config=")):
            return Path(word.removeprefix("--config=")).stem
    return None


def without_print_config(args: list[str]) -> list[str]:
    """The arguments without the one that prints the config and exits."""
    return [word for word in args if not word.startswith("--print_config")]
