"""The properties in which the layers of one decoder differ."""

from __future__ import annotations

from typing import NamedTuple


class LayerKind(NamedTuple):
    """How a layer's attention looks at the text; layers of one kind share what they know of it."""

    window: int | None
    """Tokens that a token sees, itself included; ``None`` means all up to itself."""

    has_position: bool
    """Whether the layer's attention is told positions, where the position's kind does so. Layers
    without between layers with: Yang et al. 2025, arXiv:2501.18795."""
