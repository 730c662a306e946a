"""Next-token cross-entropy that does not need to hold all logits in memory.

N targets (or B texts of T), D model width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from llama_lab.model.softcap import softcap, softcap_gradient

IGNORE = -100
"""A target with this value is not scored."""

LOGITS_BUDGET = 2**27
"""Number of logits that may exist at once: 512 MiB in float32."""


def next_token_loss(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    *,
    reduction: Literal["mean", "sum"],
    cap: float | None = None,
    z_loss: float = 0.0,
) -> Tensor:
    """-log softmax(hidden · head_weightᵀ)[target], over the targets that are not ``IGNORE``.

    With ``cap`` the logits become cap · tanh(logit / cap) before the softmax. With ``z_loss`` the
    gradient also includes z_loss · log²(Σ exp(logit)), which keeps logits from growing together
    (Chowdhery et al. 2022, arXiv:2204.02311, section 5); the value that is returned does not.

    Where the logits exceed :data:`LOGITS_BUDGET`, they are made, scored and turned into gradients
    chunk by chunk, in a single pass: nothing is computed twice.

    Args:
        hidden: ``[N, D]`` or ``[B, T, D]``.
        head_weight: ``[V, D]``.
        targets: int64, ``[N]`` or ``[B, T]``.
        reduction: ``sum``, or ``mean`` over the scored targets (nan if there are none).
        cap: The logits' soft limit, if any.
        z_loss: Weight of the squared log of the softmax's denominator; 0.0001 is usual.

    Returns:
        A float32 scalar, in nats.
    """
    rows, flat_targets = hidden.flatten(0, -2), targets.flatten()
    if rows.size(0) * head_weight.size(0) <= LOGITS_BUDGET:
        logits = softcap(F.linear(rows, head_weight).float(), cap)
        loss = F.cross_entropy(logits, flat_targets, ignore_index=IGNORE, reduction=reduction)
        return (
            loss
            if z_loss == 0
            else loss + no_value(z_loss * squared_log_z(logits, flat_targets, reduction))
        )
    # On `meta`, where logits take no memory, many chunks would only take time.
    n_rows = rows.size(0) if rows.is_meta else max(1, LOGITS_BUDGET // head_weight.size(0))
    needs_gradient = torch.is_grad_enabled() and (rows.requires_grad or head_weight.requires_grad)
    total = ChunkedLoss.apply(rows, head_weight, flat_targets, n_rows, needs_gradient, cap, z_loss)
    return total / (flat_targets != IGNORE).sum() if reduction == "mean" else total


def squared_log_z(logits: Tensor, targets: Tensor, reduction: Literal["mean", "sum"]) -> Tensor:
    """log²(Σ exp(logit)) of logits ``[N, V]``, over the rows whose target is scored."""
    scored = targets != IGNORE
    # A sum over `where`, because a shape that depends on values could not be compiled.
    total = torch.where(scored, logits.logsumexp(dim=-1).square(), 0.0).sum()
    return total / scored.sum() if reduction == "mean" else total


def no_value(term: Tensor) -> Tensor:
    """0, with the gradient of ``term``."""
    return term - term.detach()


class ChunkedLoss(torch.autograd.Function):
    """The summed loss, computed for ``n_rows`` hidden states at a time.

    The gradient of a sum of losses is known as soon as a chunk's logits are (the softmax, minus 1
    at the target). The forward therefore computes it as well, and no logits are kept for the
    backward.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head_weight: Tensor,
        targets: Tensor,
        n_rows: int,
        needs_gradient: bool,
        cap: float | None,
        z_loss: float,
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        hidden_grad = torch.empty_like(hidden) if needs_gradient else None
        # In float32: a bfloat16 sum over many chunks would lose small terms.
        weight_grad = torch.zeros_like(head_weight, dtype=torch.float32) if needs_gradient else None
        for start in range(0, hidden.size(0), n_rows):
            part = slice(start, start + n_rows)
            logits = F.linear(hidden[part], head_weight)
            capped = softcap(logits.float(), cap)
            log_probs = capped.log_softmax(dim=-1)
            total += F.nll_loss(log_probs, targets[part], ignore_index=IGNORE, reduction="sum")
            if hidden_grad is not None and weight_grad is not None:
                # d log²(z) = 2 log(z) · softmax, in addition to cross-entropy's softmax.
                share = 1 + 2 * z_loss * capped.logsumexp(dim=-1) if z_loss else None
                capped_grad = gradient_at(log_probs, targets[part], share)
                logits_grad = softcap_gradient(capped_grad, logits, cap).to(logits.dtype)
                hidden_grad[part] = logits_grad @ head_weight
                weight_grad += logits_grad.t() @ hidden[part]
        if hidden_grad is not None and weight_grad is not None:
            ctx.save_for_backward(hidden_grad, weight_grad.to(head_weight.dtype))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, weight_grad = ctx.saved_tensors
        return grad * hidden_grad, grad * weight_grad, None, None, None, None, None


def gradient_at(log_probs: Tensor, targets: Tensor, share: Tensor | None = None) -> Tensor:
    """Gradient of the summed loss with respect to the logits ``[N, V]``; it overwrites
    ``log_probs``.

    ``share`` ``[N]`` is the factor on each row's softmax: above 1 with a z-loss.
    """
    scored = targets != IGNORE
    gradient = log_probs.exp_()
    if share is not None:
        gradient.mul_(share[:, None])
    gradient.scatter_add_(1, targets.clamp_min(0)[:, None], -scored.to(gradient.dtype)[:, None])
    return gradient.mul_(scored[:, None])
