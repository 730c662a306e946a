"""Train, resume, sample and compare small decoder-only language models, part by part.

``from llama_lab import load, generate`` is the Python API; see :mod:`llama_lab.api`.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "generate", "load"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import, and `llama-lab --help` needs it not.
    if name in ("generate", "load"):
        import importlib

        return getattr(importlib.import_module("llama_lab.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
