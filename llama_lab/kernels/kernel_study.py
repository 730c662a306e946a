"""The file of a study of parts: which pairs of writings to time, at which sizes, in how many turns.

It trains nothing, so it has neither base nor arms nor seeds; ``parts`` tells it from a study of
arms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_args

from llama_lab.configs import check_run_name, find_study, nearest, read_yaml
from llama_lab.errors import UserError
from llama_lab.inspect.memory import Precision
from llama_lab.model.attention import AttentionConfig
from llama_lab.model.config import DecoderConfig
from llama_lab.model.feed_forward import FeedForwardConfig
from llama_lab.model.settings import SettingError
from llama_lab.studies.statistics import FEWEST_TURNS
from llama_lab.studies.study import choice, is_whole, one_text, refuse_unknown, require

EVERY = "all"


@dataclass(frozen=True, kw_only=True)
class KernelSizes:
    """What a part is given, in the decoder's own names."""

    batch_size: int
    """Sequences at once."""
    context_length: int
    """Tokens of each."""
    dim: int
    n_heads: int
    n_kv_heads: int
    hidden_dim: int
    """Of SwiGLU; a plain feed-forward is half as wide again, which makes as many weights."""
    vocab_size: int
    n_layers: int = 4
    """Of the model whose weights an optimiser steps; all else is timed in one layer."""

    def decoder(self, n_layers: int) -> DecoderConfig:
        """LLaMA of these sizes.

        Raises:
            SettingError: No model has them.
        """
        return DecoderConfig(
            dim=self.dim,
            n_layers=n_layers,
            context_length=self.context_length,
            vocab_size=self.vocab_size,
            attention=AttentionConfig(n_heads=self.n_heads, n_kv_heads=self.n_kv_heads),
            feed_forward=FeedForwardConfig(hidden_dim=self.hidden_dim),
        )

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.dim // self.n_heads


@dataclass(frozen=True, kw_only=True)
class PartStudy:
    """A study of parts as its file states it."""

    name: str
    description: str
    expectation: str
    parts: tuple[str, ...]
    """Names of pairs, in the order of ``parts.PARTS``."""
    sizes: dict[str, KernelSizes]
    """By a name of the author's choice."""
    turns: int
    """How often both writings of a pair are timed, one after the other."""
    seconds: float
    """That a writing is run in a turn, at least; a short one is run many times."""
    backward: bool
    """Whether the backward pass is timed with the forward."""
    precision: Precision


def read_part_study(name: str, known: tuple[str, ...]) -> PartStudy | None:
    """The study of parts in a file, or None where the file is a study of arms.

    Args:
        name: A path, or the name of a file in a folder ``studies/`` of the configs.
        known: The parts that there are.

    Raises:
        UserError: The file is not there, or not a study.
    """
    path = find_study(name)
    content = read_yaml(path)
    return parse_part_study(path.stem, content, known) if "parts" in content else None


def parse_part_study(stem: str, content: Mapping[str, Any], known: tuple[str, ...]) -> PartStudy:
    """A study of parts from the plain content of its file.

    Raises:
        UserError: A key or a value cannot be.
    """
    refuse_unknown(content, [field.name for field in fields(PartStudy)], "study")
    turns, seconds = content.get("turns", 21), content.get("seconds", 0.02)
    backward = content.get("backward", True)
    remedy = f"give a whole number from {FEWEST_TURNS}: fewer turns bound no 95 % interval"
    require(is_whole(turns) and turns >= FEWEST_TURNS, "turns", turns, remedy)
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    require(is_number and 0 < seconds <= 60, "seconds", seconds, "give a number above 0, up to 60")
    require(isinstance(backward, bool), "backward", backward, "give true or false")
    return PartStudy(
        name=check_run_name(str(content.get("name", stem))),
        description=one_text(content, "description"),
        expectation=one_text(content, "expectation"),
        parts=_parts(content["parts"], known),
        sizes=_all_sizes(content.get("sizes")),
        turns=turns,
        seconds=float(seconds),
        backward=backward,
        precision=choice(content, "precision", Precision, get_args(Precision)[0]),
    )


def _parts(value: Any, known: tuple[str, ...]) -> tuple[str, ...]:
    if value == EVERY:
        return known
    remedy = f"give {EVERY}, or a list of {', '.join(known)}"
    require(isinstance(value, list) and bool(value), "parts", value, remedy)
    for name in value:
        if name not in known:
            guess = nearest(str(name), known)
            hint = f"did you mean {guess}? " if guess else ""
            raise UserError(
                f"study: parts {name!r}: no such part; {hint}there are {', '.join(known)}"
            )
    return tuple(name for name in known if name in value)


def _all_sizes(value: Any) -> dict[str, KernelSizes]:
    names = ", ".join(field.name for field in fields(KernelSizes))
    fits = isinstance(value, Mapping) and bool(value)
    require(fits, "sizes", value, f"give `name: {{…}}` lines with {names}")
    return {str(name): _sizes(str(name), sizes) for name, sizes in value.items()}


def _sizes(name: str, value: Any) -> KernelSizes:
    where = f"sizes.{name}"
    require(isinstance(value, Mapping), where, value, "give settings: `name: value`")
    refuse_unknown(value, [field.name for field in fields(KernelSizes)], f"study: {where}")
    for field in fields(KernelSizes):
        given = value.get(field.name, field.default)
        require(given is not MISSING, f"{where}.{field.name}", None, "it is missing; give it")
        fits = is_whole(given) and given >= 1
        require(fits, f"{where}.{field.name}", given, "give a whole number of at least 1")
    sizes = KernelSizes(**value)
    even = sizes.hidden_dim % 2 == 0
    remedy = "give an even number: a plain feed-forward is half as wide again"
    require(even, f"{where}.hidden_dim", sizes.hidden_dim, remedy)
    try:
        sizes.decoder(sizes.n_layers)
    except SettingError as error:
        raise UserError(f"study: {where}: {error}") from error
    return sizes
