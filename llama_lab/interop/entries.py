"""The lines that a family's table is made of: one or more keys of ``config.json``, both ways.

``read`` gives the parts that the keys stand for, ``write`` the keys that stand for the parts. A
line that cannot write a part leaves it: who writes a config reads it back and compares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llama_lab.interop.parts import Parts, head_dim_of, layer_windows, windows
from llama_lab.interop.values import LARGEST, LARGEST_COUNT, Values
from llama_lab.model.settings import shown


class Entry(ABC):
    """One line of a family's table."""

    @abstractmethod
    def read(self, values: Values, parts: Parts) -> Parts:
        """The parts that the config's keys stand for; ``parts`` are those of the lines above."""

    @abstractmethod
    def write(self, parts: Parts) -> dict[str, Any]:
        """The config's keys for ``parts``."""


@dataclass(frozen=True)
class Whole(Entry):
    """A whole number; ``default`` is what absent means, or gives it from the parts above."""

    key: str
    part: str
    default: int | Callable[[Parts], int] = Values.REQUIRED
    most: int = LARGEST

    def read(self, values: Values, parts: Parts) -> Parts:
        default = self.default(parts) if callable(self.default) else self.default
        return {self.part: values.whole(self.key, default, most=self.most)}

    def write(self, parts: Parts) -> dict[str, Any]:
        return {self.key: parts[self.part]}


@dataclass(frozen=True)
class Number(Entry):
    """A number above 0, or none."""

    key: str
    part: str
    default: float | None = None

    def read(self, values: Values, parts: Parts) -> Parts:
        return {self.part: values.number(self.key, self.default)}

    def write(self, parts: Parts) -> dict[str, Any]:
        return {self.key: parts.get(self.part)}


@dataclass(frozen=True)
class Switch(Entry):
    """True or false, for one part or for several that only go together."""

    key: str
    parts: tuple[str, ...]
    default: bool

    def read(self, values: Values, parts: Parts) -> Parts:
        return dict.fromkeys(self.parts, values.switch(self.key, self.default))

    def write(self, parts: Parts) -> dict[str, Any]:
        return {self.key: bool(parts.get(self.parts[0]))}


@dataclass(frozen=True)
class Word(Entry):
    """A word of theirs for a word of ours; the first of all is what absent means."""

    key: str
    part: str
    words: Mapping[str, str]

    def read(self, values: Values, parts: Parts) -> Parts:
        return {self.part: values.word(self.key, self.words, next(iter(self.words)))}

    def write(self, parts: Parts) -> dict[str, Any]:
        words = (theirs for theirs, ours in self.words.items() if ours == parts.get(self.part))
        return {self.key: next(words, next(iter(self.words)))}


@dataclass(frozen=True)
class Fixed(Entry):
    """A part that the family has whatever its config says."""

    part: str
    value: Any

    def read(self, values: Values, parts: Parts) -> Parts:
        return {self.part: self.value}

    def write(self, parts: Parts) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Same(Entry):
    """A part that always equals another."""

    part: str
    other: str

    def read(self, values: Values, parts: Parts) -> Parts:
        return {self.part: parts[self.other]}

    def write(self, parts: Parts) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Only(Entry):
    """A key of which one value alone is known here; absent means that one."""

    key: str
    value: Any

    def read(self, values: Values, parts: Parts) -> Parts:
        found = values.get(self.key)
        if found is not None and (
            found != self.value or isinstance(found, bool) != isinstance(self.value, bool)
        ):
            values.refuse(self.key, f"this version reads {shown(self.value)} alone")
        return {}

    def write(self, parts: Parts) -> dict[str, Any]:
        return {self.key: self.value}


@dataclass(frozen=True)
class Written(Entry):
    """A key that matters to their training alone: written, not read."""

    key: str
    value: Any

    def read(self, values: Values, parts: Parts) -> Parts:
        return {}

    def write(self, parts: Parts) -> dict[str, Any]:
        return {self.key: self.value}


@dataclass(frozen=True)
class KeyValueHeads(Entry):
    """Key/value heads: null means as many as query heads, and absent does unless there is a
    ``default``.
    """

    default: int | None = None

    def read(self, values: Values, parts: Parts) -> Parts:
        key = "num_key_value_heads"
        default = parts["attention.n_heads"]
        if self.default is not None and key not in values.content:
            default = self.default
        return {"attention.n_kv_heads": values.whole(key, default, most=LARGEST_COUNT)}

    def write(self, parts: Parts) -> dict[str, Any]:
        return {"num_key_value_heads": parts["attention.n_kv_heads"]}


@dataclass(frozen=True)
class HeadDim(Entry):
    """The width of a head.

    Args:
        default: What absent means; ``None`` is the model's width divided by the heads.
        always: Whether the key is written where that is so.
    """

    default: int | None = None
    always: bool = True

    def read(self, values: Values, parts: Parts) -> Parts:
        shared = parts["dim"] // parts["attention.n_heads"]
        width = values.whole("head_dim", self.default or shared or 1, most=LARGEST_COUNT)
        return {"attention.head_dim": None if width == shared else width}

    def write(self, parts: Parts) -> dict[str, Any]:
        is_usual = parts.get("attention.head_dim") is None
        return {} if is_usual and not self.always else {"head_dim": head_dim_of(parts)}


@dataclass(frozen=True)
class ScaleIsHeadDim(Entry):
    """A divisor of the scores, √key, which must be the √head_dim that every head has here."""

    key: str
    default: int

    def read(self, values: Values, parts: Parts) -> Parts:
        width = head_dim_of(parts)
        if values.number(self.key, self.default) != width:
            values.refuse(self.key, f"this version divides scores by the root of head_dim, {width}")
        return {}

    def write(self, parts: Parts) -> dict[str, Any]:
        return {self.key: head_dim_of(parts)}


@dataclass(frozen=True)
class NopeEvery(Entry):
    """Layers without a position: a list with 0 for them, or every n-th."""

    default: int

    def read(self, values: Values, parts: Parts) -> Parts:
        n_layers = parts["n_layers"]
        flags = values.items("no_rope_layers", (0, 1), n_layers)
        every = values.whole("no_rope_layer_interval", self.default)
        if flags is None:
            flags = _every(every, n_layers)
        if 0 not in flags:
            return {"position.nope_every": None}
        first = flags.index(0) + 1
        if flags != _every(first, n_layers):
            values.refuse("no_rope_layers", "this version knows every n-th layer alone")
        return {"position.nope_every": first}

    def write(self, parts: Parts) -> dict[str, Any]:
        every = parts.get("position.nope_every") or parts["n_layers"] + 1
        return {
            "no_rope_layers": _every(every, parts["n_layers"]),
            "no_rope_layer_interval": every,
        }


def _every(interval: int, n_layers: int) -> list[int]:
    return [int((layer + 1) % interval != 0) for layer in range(n_layers)]


@dataclass(frozen=True)
class WindowEverywhere(Entry):
    """One window for all layers, or none."""

    default: int | None

    def read(self, values: Values, parts: Parts) -> Parts:
        return _seen("L" * parts["n_layers"], _window(values, self.default), values, parts)

    def write(self, parts: Parts) -> dict[str, Any]:
        return {"sliding_window": parts.get("attention.window")}


def _window(values: Values, default: int | None) -> int | None:
    """Absent and null differ here: an old config leaves the key out and has the default."""
    key = "sliding_window"
    is_null = key in values.content and values.get(key) is None
    return None if is_null else values.whole(key, default)


def _seen(layers: str, size: int | None, values: Values, parts: Parts) -> Parts:
    """Windows of ``size``; none where the whole context fits into one."""
    fits = size is None or size >= parts["context_length"]
    if size == 1 and not fits and "L" in layers:
        values.refuse("sliding_window", "this version's windows show 2 tokens or more")
    return windows("G" * len(layers) if fits else layers, size)


LAYER_TYPES = {"sliding_attention": "L", "full_attention": "G"}


class WindowByLayer(Entry, ABC):
    """A window in some layers: ``layer_types`` names each layer's, older configs have a rule."""

    switch = True
    """Whether ``use_sliding_window`` turns windows on."""

    window: int | None = 4096
    """The window where none is said."""

    def read(self, values: Values, parts: Parts) -> Parts:
        n_layers = parts["n_layers"]
        kinds = values.items("layer_types", tuple(LAYER_TYPES), n_layers)
        layers = "".join(LAYER_TYPES[kind] for kind in kinds) if kinds else None
        if self.switch and not values.switch("use_sliding_window", False):
            if layers and "L" in layers:
                values.refuse("layer_types", "name a window, and use_sliding_window is not true")
            return windows("G" * n_layers, None)
        size = _window(values, self.window)
        if size is None and layers and "L" in layers:
            values.refuse("layer_types", "name a window, and sliding_window is null")
        return _seen(layers or self.rule(values, parts), size, values, parts)

    @abstractmethod
    def rule(self, values: Values, parts: Parts) -> str:
        """A letter a layer, where ``layer_types`` is absent."""

    def write(self, parts: Parts) -> dict[str, Any]:
        layers, window = layer_windows(parts), parts.get("attention.window")
        words = {letter: word for word, letter in LAYER_TYPES.items()}
        keys: dict[str, Any] = {
            "sliding_window": window,
            "layer_types": [words[letter] for letter in layers],
        }
        return {**keys, "use_sliding_window": window is not None} if self.switch else keys


@dataclass(frozen=True)
class WindowFromLayer(WindowByLayer):
    """By the older rule, windows from layer ``max_window_layers`` on."""

    default: int = 28

    def rule(self, values: Values, parts: Parts) -> str:
        full = min(values.whole("max_window_layers", self.default, least=0), parts["n_layers"])
        return "G" * full + "L" * (parts["n_layers"] - full)

    def write(self, parts: Parts) -> dict[str, Any]:
        layers = layer_windows(parts)
        full = len(layers) - len(layers.lstrip("G"))
        return {**super().write(parts), "max_window_layers": full}


@dataclass(frozen=True)
class WindowWhereNope(WindowByLayer):
    """By the older rule, windows in the layers that have no position."""

    window = None

    def rule(self, values: Values, parts: Parts) -> str:
        every = parts.get("position.nope_every") or parts["n_layers"] + 1
        return "".join("GL"[flag == 0] for flag in _every(every, parts["n_layers"]))


@dataclass(frozen=True)
class FullEvery(WindowByLayer):
    """By the older rule, a window in all layers but every n-th."""

    default: int = 6
    switch = False

    def rule(self, values: Values, parts: Parts) -> str:
        every = values.whole("sliding_window_pattern", self.default)
        return "".join("LG"[flag == 0] for flag in _every(every, parts["n_layers"]))

    def write(self, parts: Parts) -> dict[str, Any]:
        keys = super().write(parts)
        # Their config cannot say that there is no window, only that no layer looks through it.
        return {**keys, "sliding_window": keys["sliding_window"] or parts["context_length"]}
