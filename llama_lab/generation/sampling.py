"""Sampling of the next id from a row of logits.

Shapes: B batch, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from llama_lab.errors import RunError, UserError
from llama_lab.model.settings import refuse_idle


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How random the continuation is.

    Raises:
        UserError: A value has no meaning (negative temperature, ``top_k`` 0, …).
        SettingError: ``top_k`` or ``top_p`` would do nothing, as temperature 0 is greedy.
    """

    temperature: float = 0.8
    """Divides the logits: below 1 is safer, above 1 is wilder, 0 always takes the likeliest id."""
    top_k: int | None = None
    """Keep the k likeliest ids only (null: all of them)."""
    top_p: float | None = None
    """Keep the smallest set of ids whose probability reaches p (null: all of them)."""

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
        if self.temperature == 0:
            greedy = "--temperature 0 always takes the likeliest id"
            refuse_idle("top_k", self.top_k, because=greedy)
            refuse_idle("top_p", self.top_p, because=greedy)


def choose(logits: Tensor, config: SamplingConfig, generator: torch.Generator) -> Tensor:
    """The next id of each row.

    Temperature 0 is ``argmax``, ties going to the lowest id. Otherwise an id is drawn from
    ``softmax(logits / temperature)`` over the ids that :func:`keep_likely` leaves. The arithmetic
    is float32 on the generator's device, so a CPU generator draws alike for every accelerator.

    Args:
        logits: ``[B, V]``, any float dtype and device.
        config: The settings.
        generator: The only source of randomness; greedy choice leaves it alone.

    Returns:
        ``[B]`` int64, on the generator's device.

    Raises:
        RunError: A row holds NaN or nothing but infinities.
    """
    logits = logits.detach().to(generator.device, torch.float32)
    highest = logits.amax(dim=-1, keepdim=True)
    if not bool(torch.isfinite(highest).all()):
        raise RunError(
            "the model's logits are not finite: its weights have diverged; "
            "take an earlier checkpoint, or train with a lower --model.optimizer.lr"
        )
    if config.temperature == 0:
        return logits.argmax(dim=-1)
    # The maximum goes first, so that a tiny temperature turns the others into exp(-inf) = 0 and
    # never the maximum into inf. Below float32's smallest normal number the divisor would be 0.
    temperature = max(config.temperature, torch.finfo(torch.float32).tiny)
    scaled = keep_likely((logits - highest) / temperature, config.top_k, config.top_p)
    return torch.multinomial(scaled.softmax(dim=-1), 1, generator=generator).squeeze(-1)


def keep_likely(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Set the logits of unlikely ids to -inf.

    First the k largest stay (Fan et al. 2018, "Hierarchical Neural Story Generation"; a k above V
    keeps all). Of what is left, renormalised, the smallest set of likeliest ids whose probability
    reaches p stays (nucleus sampling, Holtzman et al. 2020, "The Curious Case of Neural Text
    Degeneration"): the likeliest id always does. Among equals the lower id ranks first.

    Args:
        logits: ``[B, V]`` float32, already divided by the temperature.
        top_k: Ids to keep, or None for all.
        top_p: Probability to keep, or None for all of it.

    Returns:
        ``[B, V]`` with -inf where an id was dropped.
    """
    if top_k is None and (top_p is None or top_p == 1):
        return logits
    ranked, ids = logits.sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        ranked[..., top_k:] = -math.inf
    # With p = 1 rounding could bring the sum to 1 too early and cut off the tail.
    if top_p is not None and top_p < 1:
        probability = ranked.softmax(dim=-1)
        of_likelier = probability.cumsum(dim=-1) - probability
        drops = of_likelier >= top_p
        drops[..., 0] = False  # also where p is too small for float32
        ranked = ranked.masked_fill(drops, -math.inf)
    return torch.empty_like(ranked).scatter_(-1, ids, ranked)
