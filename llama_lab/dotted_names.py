"""Nested settings as dotted names, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


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


def unflatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`flatten`."""
    tree: dict[str, Any] = {}
    for name, value in settings.items():
        *groups, leaf = name.split(".")
        node = tree
        for group in groups:
            node = node.setdefault(group, {})
        node[leaf] = value
    return tree
