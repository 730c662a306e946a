"""Optimisers, the parameters that each is for, and those that decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import nn

from llama_lab.inspect.memory import StateSizes
from llama_lab.model.decoder import Decoder
from llama_lab.model.devices import fuses_adamw
from llama_lab.model.positions import LearnedPosition
from llama_lab.model.settings import refuse_idle, require
from llama_lab.training.muon import Combined, Muon

OptimizerKind = Literal["adamw", "muon"]
StepScale = Literal["match_rms_adamw", "original"]

# What is looked up by a token or a place, not multiplied by an activation.
TABLES = (nn.Embedding, LearnedPosition)
MOMENTUM = 0.95


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimiser, which turns gradients into new weights."""

    kind: OptimizerKind = "adamw"
    """adamw (Adam with decoupled weight decay: Loshchilov & Hutter 2019) or muon (orthogonal
    momentum for the blocks' matrices: Jordan et al. 2024; AdamW for the rest)."""

    lr: float = 1e-3
    """Peak learning rate, which is reached at the end of the warmup; with muon, the matrices'."""

    rest_lr: float | None = None
    """Peak learning rate of the parameters that muon leaves to AdamW: embeddings, norms, biases and
    the head. Null means lr, which suits step_scale match_rms_adamw; with original, lr is too large
    for them. Refused with adamw."""

    embedding_lr: float | None = None
    """Peak learning rate of the embedding, of a head tied to it and of learned positions; null
    means the rate of the other parameters outside the matrices."""

    weight_decay: float = 0.1
    """Weight decay per step, as a factor on the learning rate. Matrices decay; norms, biases and
    embeddings never do."""

    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of Adam's running means of the gradient and of its square."""

    eps: float = 1e-8
    """Number that is added to Adam's denominator."""

    momentum: float | None = None
    """Decay rate of muon's running mean of the gradient; null means 0.95. Refused with adamw."""

    step_scale: StepScale | None = None
    """How muon's step grows with the size of a matrix of M rows and N columns: match_rms_adamw (0.2
    √max(M, N), for the learning rates that suit AdamW: Liu et al. 2025) or original (√max(1, M/N),
    for larger learning rates); null means match_rms_adamw. Refused with adamw."""

    def __post_init__(self) -> None:
        flag = "--model.optimizer"
        for name in ("lr", "rest_lr", "embedding_lr"):
            rate = getattr(self, name)
            require(
                rate is None or 0 < rate < math.inf,
                f"{flag}.{name} {rate}: must be above 0; 0.001 is usual",
            )
        require(
            0 <= self.weight_decay < math.inf,
            f"{flag}.weight_decay {self.weight_decay}: must be 0 or more; 0.1 is usual",
        )
        require(
            all(0 <= beta < 1 for beta in self.betas),
            f"{flag}.betas {list(self.betas)}: each must be in [0, 1); [0.9, 0.95] is usual",
        )
        require(0 < self.eps < 1, f"{flag}.eps {self.eps}: must be in (0, 1); 1e-8 is usual")
        if self.kind != "muon":
            for name in ("rest_lr", "momentum", "step_scale"):
                because = f"optimizer.kind {self.kind} has no such choice"
                refuse_idle(f"model.optimizer.{name}", getattr(self, name), because=because)
        require(
            self.momentum is None or 0 <= self.momentum < 1,
            f"{flag}.momentum {self.momentum}: must be in [0, 1); 0.95 is usual",
        )


def parameter_groups(
    module: nn.Module, config: OptimizerConfig, leave_out: Iterable[nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """Every parameter but those left out in exactly one of three groups, a tied tensor once.

    ``decay`` holds the matrices that activations are multiplied by, the untied head among them.
    ``no_decay`` holds what is no matrix (norms, biases, sinks, β) and, unless they have a rate of
    their own as ``embedding``, the tables: decay would shrink the rows of rare tokens, which few
    gradients push back. A tied table is an embedding.
    """
    tables = {id(m.weight) for m in module.modules() if isinstance(m, TABLES)}
    own_rate = config.embedding_lr is not None
    left_out = {id(p) for p in leave_out}
    members: dict[str, list[nn.Parameter]] = {"decay": [], "no_decay": [], "embedding": []}
    for p in module.parameters():
        if p.requires_grad and id(p) not in left_out:
            is_table = id(p) in tables
            decays = p.ndim >= 2 and not is_table
            members[
                "embedding" if is_table and own_rate else "decay" if decays else "no_decay"
            ].append(p)
    rate = config.rest_lr or config.lr
    return [
        {
            "name": name,
            "params": parameters,
            "weight_decay": config.weight_decay if name == "decay" else 0.0,
            "lr": (config.embedding_lr or rate) if name == "embedding" else rate,
        }
        for name, parameters in members.items()
        if parameters
    ]


def build_adamw(
    module: nn.Module, config: OptimizerConfig, leave_out: Iterable[nn.Parameter] = ()
) -> torch.optim.Optimizer:
    """AdamW (Loshchilov & Hutter 2019), fused into one kernel where the device has it."""
    weight = next(module.parameters())
    # Measured on the CPU; elsewhere from peers' published figures and not measured yet: torch's
    # documentation of its optimisers ranks fused before foreach, and that before a loop.
    optimizer = torch.optim.AdamW(
        parameter_groups(module, config, leave_out),
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=fuses_adamw(weight.device, weight.dtype),
    )
    # The fused kernel could undo float16's loss scale itself, but only after the clipping, which
    # has to see the gradients as they are.
    optimizer._step_supports_amp_scaling = False
    return optimizer


def build_muon(module: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Muon (Jordan et al. 2024) for the matrices of the blocks, AdamW for the rest."""
    matrices = block_matrices(module)
    muon = Muon(
        [{"name": "matrices", "params": matrices}],
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=MOMENTUM if config.momentum is None else config.momentum,
        adjust_lr_fn=config.step_scale or "match_rms_adamw",
    )
    return Combined([muon, build_adamw(module, config, matrices)])


def block_matrices(module: nn.Module) -> list[nn.Parameter]:
    """The matrices of a decoder's blocks, each logical one by itself."""
    decoders = [m for m in module.modules() if isinstance(m, Decoder)]
    return [p for d in decoders for p in d.blocks.parameters() if p.ndim == 2]


class Optimizer(NamedTuple):
    """A kind of optimiser: how it is built, and the numbers that it keeps for each parameter."""

    build: Callable[[nn.Module, OptimizerConfig], torch.optim.Optimizer]
    states: StateSizes


OPTIMIZERS: dict[OptimizerKind, Optimizer] = {
    "adamw": Optimizer(build_adamw, StateSizes(2, 2)),
    "muon": Optimizer(build_muon, StateSizes(1, 2)),
}


def build_optimizer(module: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimiser of ``config.kind`` over ``module``'s parameters."""
    return OPTIMIZERS[config.kind].build(module, config)
