"""Entries for RoPE: the base and its scaling in the old and in the new config format.

Old (transformers 4): ``rope_theta`` at the top, ``rope_scaling`` beside it with ``type`` or
``rope_type``; some files have the base in ``rope_scaling`` too. New (5): both in
``rope_parameters``, by kind of layer where a family has two kinds. What is written says it in
both; what is read may, and must then agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from llama_lab.errors import UserError
from llama_lab.interop.entries import Entry
from llama_lab.interop.parts import Parts, differing, layer_windows
from llama_lab.interop.scalings import NO_SCALING, ORIGINAL, SCALING, SCALINGS
from llama_lab.interop.values import Values, agreed
from llama_lab.model.settings import shown

LAYER_KINDS = GLOBAL_LAYERS, WINDOWED_LAYERS = "full_attention", "sliding_attention"
# The base's names in other families' configs. transformers does not read them for ours, so one of
# them may only repeat what ``rope_theta`` says.
OTHER_NAMES = ("rotary_emb_base", "rotary_base", "rope_base")

# Keys that change what a scaling computes, in a way that no setting here has, and the value that
# leaves it as it is.
UNKNOWN_FACTORS = {
    "mscale": None,
    "mscale_all_dim": None,
    "truncate": True,
    "short_factor": None,
    "long_factor": None,
}


class RopeKeys(NamedTuple):
    """Where a config may say each thing about rope.

    Attributes:
        bases: Groups with a base, and its key there.
        local_bases: The same for the base of windowed layers.
        scalings: Groups with a scaling.
        local: Groups of windowed layers alone.
        groups: All groups.
    """

    bases: list[tuple[Values, str]]
    local_bases: list[tuple[Values, str]]
    scalings: list[Values]
    local: list[Values]
    groups: list[Values]


@dataclass(frozen=True)
class Rope(Entry):
    """Rope with a base, maybe stretched; with ``local_theta`` also the base of windowed layers."""

    theta: float
    local_theta: float | None = None

    def read(self, values: Values, parts: Parts) -> Parts:
        places = self._places(values)
        found: Parts = {"position.rope_theta": _base(places.bases, values, self.theta)}
        found |= _agreed_scaling(places.scalings)
        found |= _original(values, found)
        for group in (values, *places.groups):
            if group.number("partial_rotary_factor", 1.0) != 1.0:
                group.refuse("partial_rotary_factor", "this family turns all coordinates of a head")
        if self.local_theta is not None:
            for group in places.local:
                if _scaling(group):
                    group.refuse("rope_type", "this version stretches no windowed layer's rope")
            local = _base(places.local_bases, values, self.local_theta)
            is_used = "L" in layer_windows(parts)
            found["position.rope_local_theta"] = local if is_used else None
        return found

    def _places(self, values: Values) -> RopeKeys:
        """Every place of a config where rope is said; one that the family has not is refused."""
        old, new = values.group("rope_scaling"), values.group("rope_parameters")
        by_layer = [
            (group, kind)
            for group in (old, new)
            for kind in LAYER_KINDS
            if group is not None and kind in group.content
        ]
        for group, kind in by_layer:
            if self.local_theta is None:
                group.refuse(kind, "this family has one kind of rope for all layers")
            if group is old:
                group.refuse(kind, "each kind of layer has its place in rope_parameters alone")
        if new is not None and self.local_theta is not None:
            for key in new.content:
                if key not in LAYER_KINDS and new.get(key) is not None:
                    new.refuse(key, f"must stand in {' or '.join(LAYER_KINDS)}")
            full, local = new.group(GLOBAL_LAYERS), new.group(WINDOWED_LAYERS)
        else:
            full, local = new, None
        return RopeKeys(
            bases=[*_inside(full, old), (values, "rope_theta")],
            local_bases=[*_inside(local), (values, "rope_local_base_freq")],
            scalings=[group for group in (full, old) if group is not None and group.content],
            local=[] if local is None else [local],
            groups=[group for group in (old, full, local) if group is not None],
        )

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


def _inside(*groups: Values | None) -> list[tuple[Values, str]]:
    return [(group, "rope_theta") for group in groups if group is not None]


def _base(places: list[tuple[Values, str]], values: Values, default: float) -> float:
    """The base that all places say which say one."""
    base: float = agreed(places) or default
    for key in OTHER_NAMES:
        if values.number(key, base) != base:
            values.refuse(key, f"this family's base is rope_theta, here {base}; keep that one")
    return base


def _agreed_scaling(groups: list[Values]) -> Parts:
    """The scaling that each group says, as transformers takes either group whole."""
    found: Parts | None = None
    for group in groups:
        scaling = _scaling(group)
        if found is not None and scaling != found:
            name = next(iter(differing(found, scaling)))
            one, other = shown(found.get(name)), shown(scaling.get(name))
            raise UserError(
                f"{group.where}{name.rpartition('.')[2]} {other}: contradicts "
                f"{groups[0].place}, which says {one}; keep one of the two"
            )
        found = scaling
    return found or {}


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
    if group.get("type") not in (None, group.get(key)):
        group.refuse("type", f"contradicts rope_type {group.get(key)}; keep one of the two")
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
