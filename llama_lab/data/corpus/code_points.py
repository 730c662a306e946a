"""Characters as numbers: the code points of a text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

CODE_POINTS = 0x110000
"""How many Unicode has."""


def code_points(text: str) -> NDArray[np.uint32]:
    """The code point of each character of ``text``."""
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
