"""Optimisers, the parameters they decay, and the learning rate at each step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from llama_lab.model.positions import LearnedPosition
from llama_lab.model.settings import require

OptimizerKind = Literal["adamw"]
ScheduleKind = Literal["cosine"]

# What is looked up by a token or a place, not multiplied by an activation.
TABLES = (nn.Embedding, LearnedPosition)
FUSED_DEVICES = ("cpu", "cuda", "mps")


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How gradients become weights."""

    kind: OptimizerKind = "adamw"
    """adamw: Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    lr: float = 1e-3
    """Peak learning rate, reached at the end of the warmup."""

    weight_decay: float = 0.1
    """Decay of matrices per step, times the learning rate; never of norms, biases or embeddings."""

    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of Adam's running means of the gradient and of its square."""

    eps: float = 1e-8
    """Added to Adam's denominator."""

    def __post_init__(self) -> None:
        flag = "--model.optimizer"
        require(0 < self.lr < math.inf, f"{flag}.lr {self.lr}: must be above 0; 0.001 is usual")
        require(
            0 <= self.weight_decay < math.inf,
            f"{flag}.weight_decay {self.weight_decay}: must be 0 or more; 0.1 is usual",
        )
        require(
            all(0 <= beta < 1 for beta in self.betas),
            f"{flag}.betas {list(self.betas)}: each must be in [0, 1); [0.9, 0.95] is usual",
        )
        require(0 < self.eps < 1, f"{flag}.eps {self.eps}: must be in (0, 1); 1e-8 is usual")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over the run, in optimiser steps."""

    kind: ScheduleKind = "cosine"
    """cosine: warmup, then half a cosine down to min_lr_ratio (Loshchilov & Hutter 2017)."""

    warmup_steps: int = 100
    """Optimiser steps over which the learning rate rises linearly to its peak."""

    min_lr_ratio: float = 0.1
    """Learning rate at the end of the run, as a fraction of the peak."""

    def __post_init__(self) -> None:
        flag = "--model.schedule"
        require(
            self.warmup_steps >= 0,
            f"{flag}.warmup_steps {self.warmup_steps}: must be 0 (no warmup) or more",
        )
        require(
            0 <= self.min_lr_ratio <= 1,
            f"{flag}.min_lr_ratio {self.min_lr_ratio}: must be in [0, 1]; 0.1 is usual",
        )


def cosine(progress: float) -> float:
    """Half a cosine: 1 at progress 0, 0 at progress 1 (SGDR, Loshchilov & Hutter 2017)."""
    return 0.5 * (1 + math.cos(math.pi * progress))


SCHEDULES: dict[str, Callable[[float], float]] = {"cosine": cosine}


def lr_factor(config: ScheduleConfig, max_steps: int) -> Callable[[int], float]:
    """The learning rate of optimiser step ``s`` (0 for the first), as a fraction of the peak.

    Warmup gives ``(s + 1) / warmup_steps``; after it the schedule's shape falls from 1 to
    ``min_lr_ratio``, which the step after the last would reach. A warmup longer than the run is
    cut off by its end.
    """
    shape = SCHEDULES[config.kind]

    def factor(step: int) -> float:
        if step < config.warmup_steps:
            return (step + 1) / config.warmup_steps
        progress = (step - config.warmup_steps) / max(1, max_steps - config.warmup_steps)
        return config.min_lr_ratio + (1 - config.min_lr_ratio) * shape(min(progress, 1.0))

    return factor


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Every parameter in exactly one of two groups, a tied tensor once.

    ``decay`` holds the matrices that activations are multiplied by, the untied head among them.
    ``no_decay`` holds what is no matrix (norms, biases, sinks, β) and embedding tables: decay would
    shrink the rows of rare tokens, which few gradients push back. A tied table is an embedding.
    """
    tables = {id(m.weight) for m in module.modules() if isinstance(m, TABLES)}
    parameters = [p for p in module.parameters() if p.requires_grad]
    decays = [p.ndim >= 2 and id(p) not in tables for p in parameters]
    groups = {
        "decay": ([p for p, d in zip(parameters, decays, strict=True) if d], weight_decay),
        "no_decay": ([p for p, d in zip(parameters, decays, strict=True) if not d], 0.0),
    }
    return [
        {"name": name, "params": members, "weight_decay": decay}
        for name, (members, decay) in groups.items()
        if members
    ]


def build_adamw(module: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019), fused into one kernel where the device has it."""
    device = next(module.parameters()).device.type
    return torch.optim.AdamW(
        parameter_groups(module, config.weight_decay),
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=device in FUSED_DEVICES,
    )


OPTIMIZERS: dict[str, Callable[[nn.Module, OptimizerConfig], torch.optim.Optimizer]] = {
    "adamw": build_adamw
}


def build_optimizer(module: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimiser of ``config.kind`` over ``module``'s parameters."""
    return OPTIMIZERS[config.kind](module, config)
