"""The ways to stretch rope that Hugging Face's configs know: their keys, our settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SCALING = "position.rope_scaling"


@dataclass(frozen=True)
class Factor:
    """One number of a kind of scaling.

    Attributes:
        setting: Our name under ``position.rope_scaling``.
        key: Theirs; ``None`` where theirs always is the default.
        default: What null means here; ``CONTEXT`` is the context length, ``None`` a formula.
        is_required: Whether their configs must have it.
        is_whole: Whether it counts something.
    """

    setting: str
    key: str | None
    default: Any
    is_required: bool = False
    is_whole: bool = False


CONTEXT = "context_length"
ORIGINAL = "original_max_position_embeddings"
SCALINGS: Mapping[str, tuple[Factor, ...]] = {
    "linear": (Factor("factor", "factor", 4.0, is_required=True),),
    "dynamic": (
        Factor("factor", "factor", 4.0, is_required=True),
        Factor("original_context_length", None, CONTEXT),
    ),
    "llama3": (
        Factor("factor", "factor", 8.0, is_required=True),
        Factor("low_freq_factor", "low_freq_factor", 1.0, is_required=True),
        Factor("high_freq_factor", "high_freq_factor", 4.0, is_required=True),
        Factor("original_context_length", ORIGINAL, CONTEXT, is_required=True, is_whole=True),
    ),
    "yarn": (
        Factor("factor", "factor", 4.0, is_required=True),
        Factor("original_context_length", ORIGINAL, CONTEXT, is_whole=True),
        Factor("attention_factor", "attention_factor", None),
        Factor("beta_fast", "beta_fast", 32.0),
        Factor("beta_slow", "beta_slow", 1.0),
    ),
}
NO_SCALING = "default"  # their word for none


def with_defaults(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of ``parts``'s scaling, nulls resolved; nothing where there is none."""
    factors = SCALINGS.get(parts.get(f"{SCALING}.kind", ""), ())
    resolved: dict[str, Any] = {}
    for factor in factors:
        name = f"{SCALING}.{factor.setting}"
        default = parts["context_length"] if factor.default == CONTEXT else factor.default
        given = parts.get(name)
        resolved[name] = default if given is None else given
    return resolved
