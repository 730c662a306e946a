"""RoPE scaling: frequencies for texts longer than the training context.

w width: the number of coordinates that rope turns in a head. Frequency i, of pair i < w/2, is the
angle in radians by which the pair turns from one position to the next.
"""

import math
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch
from torch import Tensor

from llama_lab.model.rope.frequencies import wave_frequencies
from llama_lab.model.settings import (
    refuse_idle,
    require,
    require_choice,
    require_positive,
    require_whole,
    shown,
)

RopeScalingKind = Literal["none", "linear", "ntk", "dynamic", "yarn", "llama3"]
FLAG = "model.decoder.position.rope_scaling"


@dataclass(frozen=True, kw_only=True)
class RopeScalingConfig:
    """The scaling of rope's frequencies for texts longer than the training context."""

    kind: RopeScalingKind = "none"
    """none, linear (all frequencies are divided), ntk (a larger base), dynamic (a base that grows
    with the text), yarn (slow frequencies are divided, fast ones are kept) or llama3 (like yarn,
    with other bounds)."""

    factor: float | None = None
    """How many times longer than the training context a text may be: above 1; null means 8 for
    llama3 and 4 for the other kinds. Refused with none."""

    original_context_length: int | None = None
    """Number of tokens of the context that the model was first trained on; null means
    context_length. For dynamic, yarn and llama3 only."""

    low_freq_factor: float | None = None
    """Frequencies with fewer turns than this in the original context are divided; null means 1.
    For llama3 only."""

    high_freq_factor: float | None = None
    """Frequencies with more turns than this in the original context are kept; null means 4. For
    llama3 only."""

    beta_fast: float | None = None
    """Frequencies with more turns than this in the original context are kept; null means 32. For
    yarn only."""

    beta_slow: float | None = None
    """Frequencies with fewer turns than this in the original context are divided; null means 1.
    For yarn only."""

    attention_factor: float | None = None
    """Factor that rotated queries and rotated keys are multiplied by; null means 0.1 ln(factor) +
    1. For yarn only."""

    def __post_init__(self) -> None:
        require_choice(f"{FLAG}.kind", self.kind, RopeScalingKind)
        used = ROPE_SCALINGS[self.kind].settings
        for name in (field.name for field in fields(self) if field.name != "kind"):
            value = getattr(self, name)
            if name not in used:
                because = f"rope_scaling.kind {self.kind} does not use it"
                refuse_idle(f"{FLAG}.{name}", value, because=because)
            elif name == "original_context_length" and value is not None:
                require_whole(f"{FLAG}.{name}", value)
            elif value is not None:
                require_positive(f"{FLAG}.{name}", value)
        # dynamic's factor grows with the text: a factor of 1 becomes text length / original length.
        least = "1 or more" if self.kind == "dynamic" else "a number above 1"
        require(
            self.factor is None or self.factor > 1 or (self.kind, self.factor) == ("dynamic", 1),
            f"--{FLAG}.factor {shown(self.factor)} stretches nothing: give {least}, or "
            f"set --{FLAG}.kind none",
        )
        for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
            if low in used:
                self.check_order(low, high)

    def check_order(self, low: str, high: str) -> None:
        """Refuse two bounds of a range of frequencies if they are in the wrong order."""
        below, above = self.value(low), self.value(high)
        require(
            below < above,
            f"--{FLAG}.{low} {below:g} is not below --{FLAG}.{high} {above:g}, so there is nothing "
            "between them: lower the first, or raise the second",
        )

    def value(self, name: str) -> float:
        """A factor that the kind uses, with the kind's default resolved."""
        given = getattr(self, name)
        return ROPE_SCALINGS[self.kind].settings[name] if given is None else given


class RopeScaling:
    """Unscaled: pair i turns by theta^(-2i/w) a place. Su et al. 2021, arXiv:2104.09864."""

    settings: ClassVar[dict[str, float]] = {}
    """The settings that the kind uses, with their defaults; nan if the default follows from
    others."""

    amplitude = 1.0
    """Factor that rotated queries and rotated keys are multiplied by."""

    def __init__(self, config: RopeScalingConfig, context_length: int) -> None:
        self.original = config.original_context_length or context_length

    def span(self, length: int) -> int:
        """The length that the frequencies for a text of ``length`` tokens depend on."""
        return self.original

    def frequencies(self, theta: float, width: int, span: int, device: torch.device) -> Tensor:
        """The frequencies, float64 ``[w/2]``, in radians per position."""
        return wave_frequencies(width, theta, device)


class LinearScaling(RopeScaling):
    """Every frequency is divided by the factor, so that positions are interpolated.

    Source: Chen et al. 2023, arXiv:2306.15595.
    """

    settings: ClassVar[dict[str, float]] = {"factor": 4.0}

    def __init__(self, config: RopeScalingConfig, context_length: int) -> None:
        super().__init__(config, context_length)
        self.factor = config.value("factor")

    def frequencies(self, theta: float, width: int, span: int, device: torch.device) -> Tensor:
        return super().frequencies(theta, width, span, device) / self.factor


class NtkScaling(LinearScaling):
    """A larger base, theta · factor^(w/(w-2)): the slowest frequency is divided by the factor, the
    fastest is kept.

    Source: bloc97 2023, "NTK-Aware Scaled RoPE"; Peng et al. 2023, arXiv:2309.00071, section 3.1.
    """

    def stretch(self, span: int) -> float:
        """The number that the slowest frequency is divided by."""
        return self.factor

    def frequencies(self, theta: float, width: int, span: int, device: torch.device) -> Tensor:
        base = theta * self.stretch(span) ** (width / (width - 2))
        return wave_frequencies(width, base, device)


class DynamicScaling(NtkScaling):
    """As ntk, with factor · n/original - (factor - 1) for n tokens; unscaled up to the original
    length.

    All tokens of a text are turned with the frequencies for its present length. A longer text
    therefore changes what every layer computed from the earlier tokens, not only their keys.
    """

    settings: ClassVar[dict[str, float]] = {"factor": 4.0, "original_context_length": math.nan}

    def span(self, length: int) -> int:
        return max(length, self.original)

    def stretch(self, span: int) -> float:
        return self.factor * span / self.original - (self.factor - 1)


class YarnScaling(LinearScaling):
    """Frequencies that turn more than beta_fast times in the original context are kept, those below
    beta_slow turns are divided by the factor, and a ramp over the pairs blends between them.

    Source: Peng et al. 2023, arXiv:2309.00071, section 3.2 and its released code, which rounds the
    ramp's ends outwards to whole pairs.
    """

    settings: ClassVar[dict[str, float]] = {
        "factor": 4.0,
        "original_context_length": math.nan,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "attention_factor": math.nan,
    }

    def __init__(self, config: RopeScalingConfig, context_length: int) -> None:
        super().__init__(config, context_length)
        self.beta_fast, self.beta_slow = config.value("beta_fast"), config.value("beta_slow")
        self.amplitude = config.attention_factor or 0.1 * math.log(self.factor) + 1

    def frequencies(self, theta: float, width: int, span: int, device: torch.device) -> Tensor:
        def pair_that_turns(times: float) -> float:
            circumference = self.original / (times * 2 * math.pi)
            return width * math.log(circumference) / (2 * math.log(theta))

        kept = wave_frequencies(width, theta, device)
        low = max(math.floor(pair_that_turns(self.beta_fast)), 0)
        high = min(math.ceil(pair_that_turns(self.beta_slow)), width - 1)
        positions = torch.arange(width // 2, dtype=kept.dtype, device=device)
        # The released code does this too, so that a ramp of length 0 still works.
        ramp = ((positions - low) / (high - low if high != low else 1e-3)).clamp(0, 1)
        return kept * (1 - ramp) + kept / self.factor * ramp


class Llama3Scaling(LinearScaling):
    """Frequencies that turn more than high_freq_factor times in the original context are kept,
    those below low_freq_factor turns are divided by the factor, and in between both are blended by
    the number of turns.

    Source: the Llama 3 herd (Grattafiori et al. 2024, arXiv:2407.21783) and Meta's released code.
    """

    settings: ClassVar[dict[str, float]] = {
        "factor": 8.0,
        "original_context_length": math.nan,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }

    def __init__(self, config: RopeScalingConfig, context_length: int) -> None:
        super().__init__(config, context_length)
        self.low, self.high = config.value("low_freq_factor"), config.value("high_freq_factor")

    def frequencies(self, theta: float, width: int, span: int, device: torch.device) -> Tensor:
        kept = wave_frequencies(width, theta, device)
        turns = kept * self.original / (2 * math.pi)
        share = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return kept * share + kept / self.factor * (1 - share)


ROPE_SCALINGS: dict[RopeScalingKind, type[RopeScaling]] = {
    "none": RopeScaling,
    "linear": LinearScaling,
    "ntk": NtkScaling,
    "dynamic": DynamicScaling,
    "yarn": YarnScaling,
    "llama3": Llama3Scaling,
}


def build_rope_scaling(config: RopeScalingConfig, context_length: int) -> RopeScaling:
    """Build the scaling that ``config`` describes, for a model that sees ``context_length``
    tokens.
    """
    return ROPE_SCALINGS[config.kind](config, context_length)


def check_rope_scaling(config: RopeScalingConfig, width: int, theta: float) -> None:
    """Refuse a scaling that has no meaning for ``width`` rotated coordinates of base ``theta``."""
    require(
        width > 2 or config.kind not in ("ntk", "dynamic"),
        f"--{FLAG}.kind {config.kind} would do nothing: it keeps the fastest frequency, and a "
        f"head's {width} rotated coordinates have no other; set --{FLAG}.kind none",
    )
    require(
        theta > 1 or config.kind != "yarn",
        f"--{FLAG}.kind yarn needs frequencies that fall from pair to pair: set "
        "--model.decoder.position.rope_theta above 1",
    )
