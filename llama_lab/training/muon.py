"""Muon: momentum whose matrices are made orthogonal before they are a step.

M rows and N columns of a matrix, S matrices of one shape.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from llama_lab.model.devices import multiplies
from llama_lab.parallel.tensors import divided_like, gathered, local

STACK = 2**26
"""Entries that are made orthogonal at once: 128 MiB in bfloat16."""
ALONE = 2**17
"""Entries from which on a matrix is made orthogonal alone on a CPU: its products fill the
processor, and torch's batched ones take longer there."""


Closure = Callable[[], Any]


class Muon(torch.optim.Muon):
    """``torch.optim.Muon``, where matrices of one shape are made orthogonal in one product.

    It computes the same, in as many kernels for a shape as torch has for a matrix, and also where
    processes hold shards of each matrix.
    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; with the step's size of
    ``match_rms_adamw`` Liu et al. 2025, arXiv:2502.16982.
    """

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One step, from the gradients that there are."""
        loss = evaluated(closure)
        for group in self.param_groups:
            matrices = [p for p in group["params"] if p.grad is not None]
            # The sort keeps the order of equals, so that the stacks are the same in every process.
            by_shape = itertools.groupby(sorted(matrices, key=_shape), key=_shape)
            for _, alike in by_shape:
                for stack in _stacks(list(alike)):
                    self._step_stack(stack, group)
        return loss

    def _step_stack(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [local(p.grad) for p in matrices if p.grad is not None]
        for p in matrices:
            state = self.state[p]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(p)
        momenta = [local(self.state[p]["momentum_buffer"]) for p in matrices]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        shards = torch._foreach_lerp(gradients, momenta, group["momentum"])
        # A divided matrix is gathered and made orthogonal by every process, which keeps its shard.
        ahead = [gathered(shard, p) for shard, p in zip(shards, matrices, strict=True)]
        stack = torch.stack(ahead) if len(ahead) > 1 else ahead[0]
        steps = orthogonal(stack, group["ns_coefficients"], group["ns_steps"])
        rate = group["lr"] * step_scale(matrices[0].shape, group["adjust_lr_fn"])
        steps = steps.to(matrices[0].dtype).view(len(matrices), *matrices[0].shape)
        pairs = zip(steps.unbind(), matrices, strict=True)
        own_steps = [local(divided_like(step, p)) for step, p in pairs]
        weights = [local(p) for p in matrices]
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(weights, own_steps, alpha=-rate)


def orthogonal(
    stack: Tensor, coefficients: tuple[float, float, float], n_steps: int, eps: float = 1e-7
) -> Tensor:
    """About U Vᵀ of each matrix's singular value decomposition U S Vᵀ, in bfloat16, or in float32
    where the device does not multiply that.

    ``[S, M, N]``, or one matrix ``[M, N]``, to the same shape.

    Newton and Schulz's iteration X ← a X + b X Xᵀ X + c (X Xᵀ)² X on the matrix divided by its
    Frobenius norm; the coefficients trade exactness (singular values end between about 0.7 and
    1.2) for few iterations.
    """
    is_tall = stack.size(-2) > stack.size(-1)
    is_short = multiplies(stack.device, torch.bfloat16)
    x = (stack.mT if is_tall else stack).to(torch.bfloat16 if is_short else torch.float32)
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)
    a, b, c = coefficients
    multiply = torch.addmm if x.ndim == 2 else torch.baddbmm
    for _ in range(n_steps):
        gram = x @ x.mT
        x = multiply(x, multiply(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def step_scale(shape: torch.Size, rule: str | None) -> float:
    """What the learning rate is multiplied by for a matrix ``[M, N]``.

    ``original``: √max(1, M/N). ``match_rms_adamw``: 0.2 √max(M, N), by which entries change as
    much as under AdamW, so that its learning rates serve.
    """
    rows, columns = shape
    if rule == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))


def _shape(matrix: Tensor) -> tuple[int, ...]:
    return tuple(matrix.shape)


def _stacks(alike: list[Tensor]) -> Iterator[list[Tensor]]:
    # By name, as `ALONE` was measured on the CPU. Elsewhere everything is stacked, from peers'
    # published figures and not measured yet: batching 126 matrices took a step of this kind from
    # 62.2 to 7.7 ms on a GPU (https://github.com/ultralytics/ultralytics/pull/25288).
    entries, is_on_cpu = alike[0].numel(), alike[0].device.type == "cpu"
    size = 1 if is_on_cpu and entries >= ALONE else max(1, STACK // entries)
    for first in range(0, len(alike), size):
        yield alike[first : first + size]


def evaluated(closure: Closure | None) -> Any:
    """What a step's closure gives, which may ask for gradients; ``None`` without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


class Combined(torch.optim.Optimizer):
    """Several optimisers as one: their groups one after the other, one state, one step.

    Lightning's loop, a scheduler and a checkpoint then deal with a single optimiser.
    """

    def __init__(self, parts: Iterable[torch.optim.Optimizer]) -> None:
        self.parts = tuple(parts)
        # The very dicts of the parts: a scheduler that sets a rate here sets it there.
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Let the parts work on this optimiser's groups and state."""
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = list(itertools.islice(groups, len(part.param_groups)))
            part.state = self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take up a saved state, in all parts."""
        super().load_state_dict(state_dict)
        self._share()

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Any:
        """One step of each."""
        loss = evaluated(closure)
        for part in self.parts:
            part.step()
        return loss
