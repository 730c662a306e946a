"""How a config states rope: its base and how it is stretched, in the old dialect and the new.

Old (transformers 4): ``rope_theta`` at the top, ``rope_scaling`` beside it with ``type`` or
``rope_type``. New (5): both in ``rope_parameters``, by kind of layer where a family has two kinds.
What is written says it in both; what is read may, and must then agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llama_lab.interop.entries import Entry
from llama_lab.interop.parts import Parts
from llama_lab.interop.values import Values

SCALING = "position.rope_scaling"
GLOBAL_LAYERS, WINDOWED_LAYERS = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Factor:
    """One number of a kind of scaling: their key, our setting, and what absent means."""

    key: str
    setting: str
    is_required: bool = True
    is_whole: bool = False


FACTOR = Factor("factor", "factor")
SCALINGS: Mapping[str, tuple[Factor, ...]] = {
    "default": (),
    "linear": (FACTOR,),
    "dynamic": (FACTOR,),
    "llama3": (
        FACTOR,
        Factor("low_freq_factor", "low_freq_factor"),
        Factor("high_freq_factor", "high_freq_factor"),
        Factor("original_max_position_embeddings", "original_context_length", is_whole=True),
    ),
    "yarn": (
        FACTOR,
        Factor(
            "original_max_position_embeddings",
            "original_context_length",
            is_required=False,
            is_whole=True,
        ),
        Factor("attention_factor", "attention_factor", is_required=False),
        Factor("beta_fast", "beta_fast", is_required=False),
        Factor("beta_slow", "beta_slow", is_required=False),
    ),
}
# Keys that change what a scaling computes, in a way that no setting here has.
UNKNOWN_FACTORS = ("mscale", "mscale_all_dim", "truncate", "short_factor", "long_factor")


@dataclass(frozen=True)
class Rope(Entry):
    """Rope with a base, maybe stretched; with ``local_theta`` also the base of windowed layers."""

    theta: float
    local_theta: float | None = None

    def read(self, values: Values, parts: Parts) -> Parts:
        new = values.group("rope_parameters")
        by_layer = new is not None and (
            GLOBAL_LAYERS in new.content or WINDOWED_LAYERS in new.content
        )
        whole = new.group(GLOBAL_LAYERS) if new is not None and by_layer else new
        found: Parts = {"position.rope_theta": _theta(values, whole, "rope_theta", self.theta)}
        old = values.group("rope_scaling")
        stretched = [_scaling(group) for group in (old, whole) if group is not None]
        stretched = [scaling for scaling in stretched if scaling] or [{}]
        if stretched[0] != stretched[-1]:
            values.refuse("rope_scaling", "contradicts rope_parameters; keep one of the two")
        found |= stretched[0]
        for group in (values, new, whole):
            if group is not None and (part := group.number("partial_rotary_factor", 1.0)) != 1.0:
                found["position.rope_fraction"] = part
        if self.local_theta is not None:
            local = new.group(WINDOWED_LAYERS) if new is not None and by_layer else None
            found |= self._local(values, local, found["position.rope_theta"])
        elif by_layer:
            values.refuse("rope_parameters", "this family has one kind of rope for all layers")
        return found

    def _local(self, values: Values, local: Values | None, theta: float) -> Parts:
        if local is not None and _scaling(local):
            local.refuse("rope_type", "this version stretches no windowed layer's rope")
        assert self.local_theta is not None
        base = _theta(values, local, "rope_local_base_freq", self.local_theta)
        return {"position.rope_local_theta": None if base == theta else base}

    def write(self, parts: Parts) -> dict[str, Any]:
        theta = parts.get("position.rope_theta")
        scaling = _written(parts)
        main = {"rope_type": "default", **scaling, "rope_theta": theta}
        keys = {"rope_theta": theta, "rope_scaling": scaling or None, "rope_parameters": main}
        if self.local_theta is None:
            return keys
        local = parts.get("position.rope_local_theta", theta)
        return {
            **keys,
            "rope_local_base_freq": local,
            "rope_parameters": {
                GLOBAL_LAYERS: main,
                WINDOWED_LAYERS: {"rope_type": "default", "rope_theta": local},
            },
        }


def _theta(values: Values, new: Values | None, old_key: str, default: float) -> float:
    """The base, from either place."""
    old = values.number(old_key, None)
    nested = new.number("rope_theta", None) if new is not None else None
    if None not in (old, nested) and old != nested:
        values.refuse(
            old_key, f"contradicts rope_parameters, which says {nested}; keep one of them"
        )
    return nested or old or default


def _scaling(group: Values) -> Parts:
    """The settings of a scaling; none for the kind ``default``."""
    key = "rope_type" if group.get("rope_type") is not None else "type"
    kind = group.word(key, {name: name for name in SCALINGS}, "default")
    for unknown in UNKNOWN_FACTORS:
        if group.get(unknown) is not None:
            group.refuse(unknown, "this version does not know it")
    if kind == "default":
        return {}
    found: Parts = {f"{SCALING}.kind": kind}
    for factor in SCALINGS[kind]:
        read = group.whole if factor.is_whole else group.number
        value = read(factor.key) if factor.is_required else read(factor.key, None)
        if value is not None:
            found[f"{SCALING}.{factor.setting}"] = value
    return found


def _written(parts: Parts) -> dict[str, Any]:
    """A scaling in their words; nothing where there is none, or one that they have not."""
    kind = parts.get(f"{SCALING}.kind", "default")
    factors = SCALINGS.get(kind, ())
    keys = {factor.key: parts.get(f"{SCALING}.{factor.setting}") for factor in factors}
    return {"rope_type": kind, **_without_none(keys)} if factors else {}


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
