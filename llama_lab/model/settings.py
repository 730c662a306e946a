"""Checks of settings: each error names the rule, the value that arrived and the remedy."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_type_hints

Config = TypeVar("Config")


class SettingError(ValueError):
    """A setting, or two settings together, that the model refuses. One line."""


def refuse_idle(flag: str, value: Any, *, because: str) -> None:
    """Refuse a setting that would do nothing; ``None`` means the default, and passes.

    Args:
        flag: Full name of the setting, such as ``model.decoder.norm.bias``.
        value: The value that arrived.
        because: The reason why it does nothing, such as ``norm.kind rmsnorm has no bias``.

    Raises:
        SettingError: ``value`` is not ``None``.
    """
    if value is not None:
        raise SettingError(
            f"--{flag} {shown(value)} would do nothing: {because}; set --{flag} null"
        )


def require(condition: bool, message: str) -> None:
    """Raise :class:`SettingError` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise SettingError(message)


def require_choice(flag: str, value: Any, kinds: Any) -> None:
    """Refuse a ``value`` that is not one of the words of the ``Literal`` type ``kinds``."""
    choices = get_args(kinds)
    require(
        value in choices,
        f"--{flag} {shown(value)} is unknown: choose one of {', '.join(choices)}",
    )


def require_whole(flag: str, value: Any) -> None:
    """Refuse anything but a whole number of at least 1."""
    require(
        isinstance(value, int) and not isinstance(value, bool) and value >= 1,
        f"--{flag} {shown(value)} is impossible: give a whole number of at least 1",
    )


def require_positive(flag: str, value: Any) -> None:
    """Refuse anything but a finite number above 0."""
    require(
        is_number(value) and 0 < value <= sys.float_info.max,
        f"--{flag} {shown(value)} is impossible: give a finite number above 0",
    )


def require_fraction(flag: str, value: Any) -> None:
    """Refuse anything but a number in [0, 1)."""
    require(
        is_number(value) and 0 <= value < 1,
        f"--{flag} {shown(value)} is impossible: give a number of at least 0 and below 1",
    )


def require_switch(flag: str, value: Any) -> None:
    """Refuse anything but true and false."""
    require(
        isinstance(value, bool),
        f"--{flag} {shown(value)} is impossible: give true or false",
    )


def from_mapping(config_class: type[Config], values: Mapping[str, Any], *, flag: str) -> Config:
    """The inverse of ``dataclasses.asdict``; a missing key keeps its default.

    Args:
        config_class: A config dataclass whose fields may be config dataclasses themselves.
        values: Plain values by field name.
        flag: Full name of the setting that ``values`` belong to, for the errors.

    Raises:
        SettingError: A key is not a field, or a plain value is given where a group is expected.
    """
    require(
        isinstance(values, Mapping),
        f"--{flag} {shown(values)} is impossible: give its settings by name",
    )
    types = get_type_hints(config_class)
    arguments = {}
    for name, value in values.items():
        if name not in types:
            near = difflib.get_close_matches(str(name), types, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"it has {', '.join(types)}"
            raise SettingError(f"--{flag}.{name} {shown(value)}: no such setting; {remedy}")
        is_group = dataclasses.is_dataclass(types[name]) and not isinstance(value, types[name])
        arguments[name] = (
            from_mapping(types[name], value, flag=f"{flag}.{name}") if is_group else value
        )
    return config_class(**arguments)


def is_number(value: Any) -> bool:
    """Whether ``value`` is an int or a float; true and false do not count."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def nearest_multiple(value: int, step: int) -> int:
    """The multiple of ``step`` that is nearest to ``value``, and at least ``step``, for a
    remedy.
    """
    return max(1, round(value / step)) * step


def shown(value: Any) -> str:
    """``value`` as it is written on the command line."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
