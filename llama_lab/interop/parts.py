"""A decoder's settings as a flat list of parts, in which two that mean the same are equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from llama_lab.dotted_names import flatten, unflatten
from llama_lab.errors import UserError
from llama_lab.interop.scalings import SCALING, with_defaults
from llama_lab.model.decoder import DecoderConfig
from llama_lab.model.settings import SettingError

Parts = dict[str, Any]
"""Values by dotted name under ``model.decoder``, such as ``norm.kind``, nulls resolved. What does
not change what a model computes (its initial weights, dropout, the pairing of rope, which is an
order of rows) is not among them."""

NOT_PARTS = (
    "dropout",
    "init.",
    "position.rope_pairing",
    "feed_forward.multiple_of",
    "feed_forward.dim_multiplier",
)
# What null means, for settings where both are said.
USUAL = {"position.rope_fraction": 1, "feed_forward.swish_beta": "fixed"}
# What a setting is that says nothing.
NEUTRAL = (None, False, "none")


def parts_of(config: DecoderConfig) -> Parts:
    """The parts of a decoder."""
    parts = {
        name: value
        for name, value in flatten(dataclasses.asdict(config)).items()
        if not name.startswith(NOT_PARTS)
    }
    parts["attention.n_kv_heads"] = config.attention.kv_heads
    parts["feed_forward.hidden_dim"] = config.feed_forward.width(config.dim)
    parts["norm.eps"] = 1e-5 if config.norm.eps is None else config.norm.eps
    if config.norm.kind == "layernorm":
        parts["norm.bias"] = config.norm.bias is not False
    if config.position.kind == "rope" and config.position.rope_theta is None:
        parts["position.rope_theta"] = 10000.0
    return resolved(parts)


def resolved(parts: Parts) -> Parts:
    """One form for settings that can be written in several."""
    parts = {**parts, **with_defaults(parts)}
    if parts.get("attention.head_dim") == parts["dim"] // parts["attention.n_heads"]:
        parts["attention.head_dim"] = None
    for name, usual in USUAL.items():
        if parts.get(name) == usual:
            parts[name] = None
    parts |= windows(layer_windows(parts), parts.get("attention.window"))
    return {**parts, **_bases(parts)}


def _bases(parts: Parts) -> Parts:
    """Rope's base, and the one of windowed layers where it is another."""
    theta, local = parts.get("position.rope_theta"), parts.get("position.rope_local_theta")
    if local is not None and "G" not in layer_windows(parts):
        # Nor is any layer stretched: those with a base of their own are left alone.
        unscaled: Parts = {name: None for name in parts if name.startswith(f"{SCALING}.")}
        unscaled[f"{SCALING}.kind"] = "none"
        return {"position.rope_theta": local, "position.rope_local_theta": None, **unscaled}
    # Windowed layers with a base of their own are not stretched with the others.
    if local == theta and parts.get(f"{SCALING}.kind") in NEUTRAL:
        return {"position.rope_local_theta": None}
    return {}


def differing(parts: Mapping[str, Any], others: Mapping[str, Any]) -> list[str]:
    """The names of the settings in which two decoders differ."""
    names = sorted(parts.keys() | others.keys())
    return [name for name in names if not _same(parts.get(name), others.get(name))]


def _same(value: Any, other: Any) -> bool:
    return value == other or (value in NEUTRAL and other in NEUTRAL)


def head_dim_of(parts: Mapping[str, Any]) -> int:
    """The width of one head."""
    return parts.get("attention.head_dim") or parts["dim"] // parts["attention.n_heads"]


def layer_windows(parts: Mapping[str, Any]) -> str:
    """A letter a layer: L where it looks through a window, G where it sees everything."""
    if parts.get("attention.window") is None:
        return "G" * parts["n_layers"]
    pattern = parts.get("attention.window_pattern") or "L"
    return (pattern * parts["n_layers"])[: parts["n_layers"]]


def windows(layers: str, window: int | None) -> Parts:
    """The settings that give each layer its letter, the pattern as short as can be."""
    if "L" not in layers:
        return {"attention.window": None, "attention.window_pattern": None}
    period = next(n for n in range(1, len(layers) + 1) if _repeats(layers, n))
    pattern = None if "G" not in layers else layers[:period]
    return {"attention.window": window, "attention.window_pattern": pattern}


def _repeats(layers: str, period: int) -> bool:
    return all(letter == layers[i % period] for i, letter in enumerate(layers))


def config_of(parts: Mapping[str, Any], where: str) -> DecoderConfig:
    """The decoder that ``parts`` describe.

    Args:
        parts: Values by dotted name.
        where: What the error begins with, such as the folder.

    Raises:
        UserError: The decoder has no such value of a setting, or refuses them together.
    """
    try:
        return DecoderConfig.from_dict(unflatten(parts))
    except SettingError as error:
        raise UserError(f"{where}: this version cannot express the model: {error}") from error
