"""The loss against the formula, and the chunked loss against the whole one."""

from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from llama_lab.model import loss as loss_module
from llama_lab.model.loss import IGNORE, next_token_loss

REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum"])


def example(n: int = 20, dim: int = 6, vocabulary: int = 13) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, dim, generator=generator, requires_grad=True)
    weight = torch.randn(vocabulary, dim, generator=generator, requires_grad=True)
    targets = torch.randint(vocabulary, (n,), generator=generator)
    targets[[0, 7, 8, 19]] = IGNORE
    return hidden, weight, targets


CAPS = pytest.mark.parametrize("cap", [None, 1.5])


@CAPS
@REDUCTIONS
def test_the_loss_is_minus_log_softmax_of_the_scored_targets(
    reduction: Literal["mean", "sum"], cap: float | None
) -> None:
    hidden, weight, targets = example()
    logits = hidden @ weight.T
    probabilities = (logits if cap is None else cap * torch.tanh(logits / cap)).softmax(-1)
    scored = [i for i, target in enumerate(targets.tolist()) if target != IGNORE]
    each = torch.stack([-probabilities[i, targets[i]].log() for i in scored])
    loss = next_token_loss(hidden, weight, targets, reduction=reduction, cap=cap)
    torch.testing.assert_close(loss, each.mean() if reduction == "mean" else each.sum())
    folded = next_token_loss(
        hidden.view(4, 5, -1), weight, targets.view(4, 5), reduction=reduction, cap=cap
    )
    torch.testing.assert_close(loss, folded)


@CAPS
@REDUCTIONS
@pytest.mark.parametrize("rows_at_once", [1, 3, 10, 19])
def test_chunks_give_the_loss_and_the_gradients_of_the_whole(
    rows_at_once: int,
    reduction: Literal["mean", "sum"],
    cap: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden, weight, targets = example()
    whole = next_token_loss(hidden, weight, targets, reduction=reduction, cap=cap)
    expected = torch.autograd.grad(whole * 3, (hidden, weight))
    monkeypatch.setattr(loss_module, "LOGITS_BUDGET", rows_at_once * weight.size(0))
    chunked = next_token_loss(hidden, weight, targets, reduction=reduction, cap=cap)
    assert chunked.grad_fn is not None
    torch.testing.assert_close(chunked, whole)
    torch.testing.assert_close(torch.autograd.grad(chunked * 3, (hidden, weight)), expected)
    with torch.no_grad():
        torch.testing.assert_close(
            next_token_loss(hidden, weight, targets, reduction=reduction, cap=cap), whole.detach()
        )


@CAPS
@REDUCTIONS
@pytest.mark.parametrize("rows_at_once", [3, 20])
def test_a_z_loss_is_in_the_gradient_and_not_in_the_value(
    rows_at_once: int,
    reduction: Literal["mean", "sum"],
    cap: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hidden, weight, targets = example()
    logits = hidden @ weight.T
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    scored = targets != IGNORE
    z = logits[scored].exp().sum(-1).log() ** 2
    plain = F.cross_entropy(logits[scored], targets[scored], reduction=reduction)
    whole = plain + 0.3 * (z.mean() if reduction == "mean" else z.sum())
    expected = torch.autograd.grad(whole, (hidden, weight))
    monkeypatch.setattr(loss_module, "LOGITS_BUDGET", rows_at_once * weight.size(0))
    loss = next_token_loss(hidden, weight, targets, reduction=reduction, cap=cap, z_loss=0.3)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(torch.autograd.grad(loss, (hidden, weight)), expected)


class LargestTensor(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.numel = max(self.numel, result.numel())
        return result


@CAPS
@pytest.mark.parametrize("n", [20, 21])
def test_chunks_never_hold_more_logits_than_the_budget(
    n: int, cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, weight, targets = example(n=n, dim=2, vocabulary=100)
    for budget, within in ((700, True), (n * 100, False)):
        monkeypatch.setattr(loss_module, "LOGITS_BUDGET", budget)
        with LargestTensor() as largest:
            next_token_loss(hidden, weight, targets, reduction="mean", cap=cap).backward()
        assert (largest.numel <= 700) is within


@pytest.mark.parametrize("budget", [2**27, 50])
def test_the_loss_is_float32_in_every_precision(
    budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "LOGITS_BUDGET", budget)
    hidden, weight, targets = example()
    exact = F.cross_entropy(hidden @ weight.T, targets)
    exact_grads = torch.autograd.grad(exact, (hidden, weight))
    low = [tensor.detach().bfloat16().requires_grad_() for tensor in (hidden, weight)]
    pure = next_token_loss(low[0], low[1], targets, reduction="mean")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = next_token_loss(hidden, weight, targets, reduction="mean")
    assert pure.dtype == mixed.dtype == torch.float32
    torch.testing.assert_close((pure, mixed), (exact, exact), rtol=1e-2, atol=1e-2)
    mixed_grads = torch.autograd.grad(mixed, (hidden, weight))
    pure_grads = torch.autograd.grad(pure, low)
    assert [grad.dtype for grad in pure_grads] == [torch.bfloat16] * 2
    torch.testing.assert_close(mixed_grads, exact_grads, rtol=2e-2, atol=1e-2)
    torch.testing.assert_close(
        tuple(grad.float() for grad in pure_grads), exact_grads, rtol=2e-2, atol=1e-2
    )
