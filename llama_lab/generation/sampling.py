"""Sampling of the next id from a row of logits.

Shapes: B batch, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from llama_lab.errors import RunError, UserError
from llama_lab.model.settings import refuse_idle


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How random the continuation is.

    The settings act in this order, which is that of transformers: repetition_penalty, temperature,
    top_k, top_p, min_p.

    Raises:
        UserError: A value has no meaning (negative temperature, ``top_k`` 0, …).
        SettingError: ``top_k``, ``top_p`` or ``min_p`` would do nothing, as temperature 0 is
            greedy.
    """

    temperature: float = 0.8
    """Divides the logits: below 1 is safer, above 1 is wilder, 0 always takes the likeliest id."""
    top_k: int | None = None
    """Keep the k likeliest ids only (null: all of them)."""
    top_p: float | None = None
    """Keep the smallest set of ids whose probability reaches p (null: all of them)."""
    min_p: float | None = None
    """Keep the ids with at least p times the likeliest id's probability (null: all of them)."""
    repetition_penalty: float | None = None
    """Divides the positive logits of ids that the prompt or the text has, and multiplies the
    negative ones: above 1 they become less likely (null: no penalty)."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UserError(
                f"--temperature {self.temperature}: must be a finite number of 0 or more; "
                "0 is greedy, 1 samples what the model says"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UserError(
                f"--top_k {self.top_k}: must keep 1 id or more; set --top_k null to keep them all"
            )
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(
                f"--top_p {self.top_p}: must be above 0 and at most 1; "
                "set --top_p null to keep every id"
            )
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise UserError(
                f"--min_p {self.min_p}: must be from 0 to 1; set --min_p null to keep every id"
            )
        penalty = self.repetition_penalty
        if penalty is not None and not (math.isfinite(penalty) and penalty > 0):
            raise UserError(
                f"--repetition_penalty {penalty}: must be a finite number above 0; "
                "set --repetition_penalty null for no penalty"
            )
        if self.temperature == 0:
            greedy = "--temperature 0 always takes the likeliest id"
            for name in ("top_k", "top_p", "min_p"):
                refuse_idle(name, getattr(self, name), because=greedy)


def choose(
    logits: Tensor,
    config: SamplingConfig,
    generator: torch.Generator | Sequence[torch.Generator],
    seen: Tensor | None = None,
) -> Tensor:
    """The next id of each row.

    Temperature 0 is ``argmax``, ties going to the lowest id. Otherwise an id is drawn from the
    softmax of what :func:`adjust` makes of the logits. The arithmetic is float32 on the
    generator's device, so a CPU generator draws alike for every accelerator.

    Args:
        logits: ``[B, V]``, any float dtype and device.
        config: The settings.
        generator: The only source of randomness; greedy choice leaves it alone. One for all rows,
            or one a row: then a row's draws do not depend on the other rows.
        seen: ``[B, V]`` bool on the generator's device: ids that the penalty of repetitions is for.

    Returns:
        ``[B]`` int64, on the generator's device.

    Raises:
        RunError: A row holds NaN or nothing but infinities.
    """
    generators = [generator] if isinstance(generator, torch.Generator) else list(generator)
    adjusted = adjust(logits.detach().to(generators[0].device, torch.float32), config, seen)
    if config.temperature == 0:
        return adjusted.argmax(dim=-1)
    probabilities = adjusted.softmax(dim=-1)
    if isinstance(generator, torch.Generator):
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(-1)
    rows = zip(probabilities, generators, strict=True)
    return torch.cat([torch.multinomial(row, 1, generator=own) for row, own in rows])


def adjust(logits: Tensor, config: SamplingConfig, seen: Tensor | None = None) -> Tensor:
    """The logits whose softmax is drawn from; at temperature 0 those whose largest is taken.

    Args:
        logits: ``[B, V]`` float32.
        config: The settings.
        seen: ``[B, V]`` bool; see :func:`choose`.

    Raises:
        RunError: A row holds NaN or nothing but infinities.
    """
    if config.repetition_penalty is not None and seen is not None:
        logits = penalise(logits, seen, config.repetition_penalty)
    highest = logits.amax(dim=-1, keepdim=True)
    if not bool(torch.isfinite(highest).all()):
        raise RunError(
            "the model's logits are not finite: its weights have diverged; "
            "take an earlier checkpoint, or train with a lower --model.optimizer.lr"
        )
    if config.temperature == 0:
        return logits
    # The maximum goes first, so that a tiny temperature turns the others into exp(-inf) = 0 and
    # never the maximum into inf. Below float32's smallest normal number the divisor would be 0.
    temperature = max(config.temperature, torch.finfo(torch.float32).tiny)
    return keep_likely((logits - highest) / temperature, config.top_k, config.top_p, config.min_p)


def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Divide positive logits of ``seen`` ids by the penalty, and multiply negative ones.

    Source: Keskar et al. 2019 (CTRL), arXiv:1909.05858, section 4.1; the two cases are those of
    transformers.

    Args:
        logits: ``[B, V]``.
        seen: ``[B, V]`` bool.
        penalty: Above 0.
    """
    penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, penalised, logits)


def keep_likely(
    logits: Tensor, top_k: int | None, top_p: float | None, min_p: float | None = None
) -> Tensor:
    """Set the logits of unlikely ids to -inf.

    First the k largest stay (Fan et al. 2018, "Hierarchical Neural Story Generation"; a k above V
    keeps all). Of what is left, renormalised, the smallest set of likeliest ids whose probability
    reaches p stays (nucleus sampling, Holtzman et al. 2020, "The Curious Case of Neural Text
    Degeneration"): the likeliest id always does. Of these, ids stay whose probability is at least
    ``min_p`` times that of the likeliest (Nguyen et al. 2024, arXiv:2407.01082). Among equals the
    lower id ranks first.

    Args:
        logits: ``[B, V]`` float32, already divided by the temperature.
        top_k: Ids to keep, or None for all.
        top_p: Probability to keep, or None for all of it.
        min_p: Share of the largest probability that an id needs, or None for none.

    Returns:
        ``[B, V]`` with -inf where an id was dropped.
    """
    if top_k is not None and top_k < logits.size(-1):
        logits = keep_largest(logits, top_k)
    # With p = 1 rounding could bring the sum to 1 too early and cut off the tail.
    if top_p is not None and top_p < 1:
        ranked, ids = logits.sort(dim=-1, descending=True, stable=True)
        probability = ranked.softmax(dim=-1)
        of_likelier = probability.cumsum(dim=-1) - probability
        drops = of_likelier >= top_p
        drops[..., 0] = False  # also where p is too small for float32
        logits = torch.empty_like(ranked).scatter_(-1, ids, ranked.masked_fill(drops, -math.inf))
    if min_p:
        share = (logits - logits.amax(dim=-1, keepdim=True)).exp()
        logits = logits.masked_fill(share < min_p, -math.inf)
    return logits


def keep_largest(logits: Tensor, k: int) -> Tensor:
    """Set all but the k largest logits ``[B, V]`` to -inf; of equals the lower ids stay."""
    least = logits.topk(k, dim=-1).values[..., -1:]
    larger, equal = logits > least, logits == least
    room = k - larger.sum(dim=-1, keepdim=True)
    return logits.masked_fill(~(larger | (equal & (equal.cumsum(dim=-1) <= room))), -math.inf)
