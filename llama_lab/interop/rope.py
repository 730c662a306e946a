"""How a config states rope: its base and how it is stretched, in the old dialect and the new.

Old (transformers 4): ``rope_theta`` at the top, ``rope_scaling`` beside it with ``type`` or
``rope_type``. New (5): both in ``rope_parameters``, by kind of layer where a family has two kinds.
What is written says it in both; what is read may, and must then agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llama_lab.interop.entries import Entry
from llama_lab.interop.parts import Parts, layer_windows
from llama_lab.interop.scalings import NO_SCALING, ORIGINAL, SCALING, SCALINGS
from llama_lab.interop.values import Values

GLOBAL_LAYERS, WINDOWED_LAYERS = "full_attention", "sliding_attention"

# Keys that change what a scaling computes, in a way that no setting here has, and the value that
# leaves it as it is.
UNKNOWN_FACTORS = {
    "mscale": None,
    "mscale_all_dim": None,
    "truncate": True,
    "short_factor": None,
    "long_factor": None,
}


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
        found |= _original(values, found)
        for group in (values, new, old, whole):
            if group is not None and group.number("partial_rotary_factor", 1.0) != 1.0:
                group.refuse("partial_rotary_factor", "this family turns all coordinates of a head")
        if self.local_theta is not None:
            local = new.group(WINDOWED_LAYERS) if new is not None and by_layer else None
            found |= self._local(values, local, parts)
        elif by_layer:
            values.refuse("rope_parameters", "this family has one kind of rope for all layers")
        return found

    def _local(self, values: Values, local: Values | None, parts: Parts) -> Parts:
        if local is not None and _scaling(local):
            local.refuse("rope_type", "this version stretches no windowed layer's rope")
        assert self.local_theta is not None
        base = _theta(values, local, "rope_local_base_freq", self.local_theta)
        return {"position.rope_local_theta": base if "L" in layer_windows(parts) else None}

    def write(self, parts: Parts) -> dict[str, Any]:
        theta = parts.get("position.rope_theta")
        scaling = _written(parts)
        main = {"rope_type": NO_SCALING, **scaling, "rope_theta": theta}
        keys = {"rope_theta": theta, "rope_scaling": scaling or None, "rope_parameters": main}
        if self.local_theta is None:
            return keys
        local = parts.get("position.rope_local_theta") or theta
        return {
            **keys,
            "rope_local_base_freq": local,
            "rope_parameters": {
                GLOBAL_LAYERS: main,
                WINDOWED_LAYERS: {"rope_type": NO_SCALING, "rope_theta": local},
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


def _original(values: Values, found: Parts) -> Parts:
    """The original context length where a config has it at the top, beside the scaling."""
    name = f"{SCALING}.original_context_length"
    original = values.whole(ORIGINAL, None)
    factors = SCALINGS.get(found.get(f"{SCALING}.kind", ""), ())
    if original is None or ORIGINAL not in [factor.key for factor in factors]:
        return {}
    if found.get(name, original) != original:
        values.refuse(ORIGINAL, f"contradicts the scaling, which says {found[name]}")
    return {name: original}


def _scaling(group: Values) -> Parts:
    """The settings of a scaling; none for the kind ``default``."""
    key = "rope_type" if group.get("rope_type") is not None else "type"
    kinds = {name: name for name in (NO_SCALING, *SCALINGS)}
    kind = group.word(key, kinds, NO_SCALING)
    for unknown, neutral in UNKNOWN_FACTORS.items():
        if group.get(unknown) not in (None, neutral):
            group.refuse(unknown, "this version does not know it")
    if kind == NO_SCALING:
        return {}
    found: Parts = {f"{SCALING}.kind": kind}
    for factor in SCALINGS[kind]:
        if factor.key is None:
            continue
        read = group.whole if factor.is_whole else group.number
        value = read(factor.key) if factor.is_required else read(factor.key, None)
        if value is not None:
            found[f"{SCALING}.{factor.setting}"] = value
    return found


def _written(parts: Parts) -> dict[str, Any]:
    """A scaling in their words; nothing where there is none, or one that they have not."""
    kind = parts.get(f"{SCALING}.kind")
    factors = SCALINGS.get(str(kind), ())
    values = {f.key: parts.get(f"{SCALING}.{f.setting}") for f in factors if f.key is not None}
    known = {key: value for key, value in values.items() if value is not None}
    return {"rope_type": kind, **known} if factors else {}
