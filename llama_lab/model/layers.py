"""The properties in which layers of one decoder can differ."""

from __future__ import annotations

from typing import NamedTuple


class LayerKind(NamedTuple):
    """The window and the positions of a layer's attention; layers of one kind share both."""

    window: int | None
    """Number of tokens that a token sees, itself included; ``None`` means all up to itself."""

    has_position: bool
    """Whether the layer's attention gets positions, if the position's kind gives any. Some layers
    may be without: Yang et al. 2025, arXiv:2501.18795."""
