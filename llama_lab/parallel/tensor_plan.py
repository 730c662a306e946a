"""Tensor parallelism: which process computes which heads and hidden units of a layer.

N processes, H query heads, K key/value heads, E head width, F hidden width.

Each process holds H / N query heads with the K / N key/value heads that they read, and F / N hidden
units. The projections into them are divided by rows of their weight, and the projections back to
the model width by columns; what the processes computed is then summed (Shoeybi et al. 2019,
arXiv:1909.08053). Everything else is computed by all N alike: embeddings, norms of the residual
stream, and the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from llama_lab.errors import UserError
from llama_lab.model.attention import Attention, normalise_then_split
from llama_lab.model.block import Block
from llama_lab.model.config import DecoderConfig
from llama_lab.model.decoder import Decoder
from llama_lab.model.feed_forward import PlainFeedForward
from llama_lab.model.positions import AlibiPosition

Plan = dict[str, ParallelStyle]
FLAG = "--trainer.tensor_parallel"


def check_tensor_parallel(config: DecoderConfig, n: int) -> None:
    """Refuse a number of processes that does not divide what they are to share.

    Raises:
        UserError: It names the setting that does not divide.
    """
    if n == 1:
        return
    attention = config.attention
    sizes = {
        "attention.n_heads": attention.n_heads,
        "attention.n_kv_heads": attention.kv_heads,
        "feed_forward.hidden_dim": config.feed_forward.width(config.dim),
    }
    for name, size in sizes.items():
        if size % n:
            common = [str(k) for k in range(1, n) if all(s % k == 0 for s in sizes.values())]
            raise UserError(
                f"{FLAG} {n} does not divide --model.decoder.{name} {size}: set {FLAG} to "
                f"{' or '.join(common)}, or change {name}"
            )
    if config.dropout:
        raise UserError(
            f"--model.decoder.dropout {config.dropout} with {FLAG} {n}: heads of different "
            f"processes would draw the same dropout masks; set dropout 0, or {FLAG} 1"
        )


def parallelise(decoder: Decoder, mesh: DeviceMesh) -> None:
    """Divide every layer's heads and hidden units between the processes of ``mesh``."""
    for block in decoder.blocks:
        assert isinstance(block, Block)
        parallelize_module(block, mesh, plan_of(block))
    for module in decoder.modules():
        if isinstance(module, AlibiPosition):
            module.heads = share_of(module.n_heads, mesh)


def plan_of(block: nn.Module) -> Plan:
    """Style by name, for each part of a block whose type has a plan."""
    return {
        f"{path}.{name}".rstrip("."): style
        for path, module in block.named_modules()
        for kind, plan in PLANS.items()
        if isinstance(module, kind)
        for name, style in plan(module).items()
    }


def attention_plan(attention: nn.Module) -> Plan:
    """Heads are divided; what all heads of a process share has its gradient summed over all."""
    assert isinstance(attention, Attention)
    plan: Plan = {name: ColwiseParallel() for name in ("wq", "wk", "wv")}
    if attention.wg is not None:
        plan["wg"] = ColwiseParallel()
    plan["wo"] = RowwiseParallel()
    # The input becomes a DTensor once, so that the gradients of its projections are added up before
    # they are exchanged. Tokens' positions and a cache go through as they are.
    plan[""] = OwnHeads()
    over_all = attention.split is normalise_then_split
    for name in ("q_norm", "k_norm"):
        if not isinstance(getattr(attention, name), nn.Identity):
            plan[name] = OverAllHeads() if over_all else SummedGradients()
    return plan


def feed_forward_plan(layer: nn.Module) -> Plan:
    """Hidden units are divided."""
    assert isinstance(layer, PlainFeedForward)
    plan: Plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if layer.is_gated:
        plan["gate"] = ColwiseParallel()
    if isinstance(layer.activation, nn.Module):
        plan["activation"] = SummedGradients()
    plan[""] = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    return plan


PLANS: dict[type[nn.Module], Callable[[nn.Module], Plan]] = {
    Attention: attention_plan,
    PlainFeedForward: feed_forward_plan,
}


def share_of(n: int, mesh: DeviceMesh) -> slice:
    """Which of ``n`` heads or units are this process's."""
    size = n // mesh.size()
    first = mesh.get_local_rank() * size
    return slice(first, first + size)


def summed(weight: Tensor, mesh: DeviceMesh) -> Tensor:
    """``weight``, which every process holds, with its gradient summed over the processes."""
    return DTensor.from_local(weight, mesh, [Replicate()], run_check=False).to_local(
        grad_placements=[Partial()]
    )


class SummedGradients(ParallelStyle):
    """A module whose weights every process applies to its own heads or units.

    Each process computes the part of the gradient that comes from its own, so they are summed.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        plain = module.forward
        module.forward = partial(self.call, module, plain, device_mesh)
        return module

    def call(
        self, module: nn.Module, plain: Callable[..., Any], mesh: DeviceMesh, *inputs: Any
    ) -> Any:
        """The module's own forward, while its weights are the ones of :meth:`weight`."""
        with exchanged(module, partial(self.weight, mesh=mesh)):
            return plain(*inputs)

    def weight(self, weight: Tensor, *, mesh: DeviceMesh) -> Tensor:
        """What the forward takes for a weight of the module's own."""
        return summed(weight, mesh)


class OverAllHeads(SummedGradients):
    """A norm over all heads together, of which each process needs its own part of the result."""

    def call(
        self, module: nn.Module, plain: Callable[..., Any], mesh: DeviceMesh, *inputs: Any
    ) -> Any:
        """The norm of the gathered heads ``[B, T, H E]``; of that ``[B, T, H E / N]``."""
        (own,) = inputs
        divided = DTensor.from_local(own, mesh, [Shard(own.ndim - 1)], run_check=False)
        gathered = divided.redistribute(placements=[Replicate()])
        gathered_here = gathered.to_local(grad_placements=[Partial()])
        normed: Tensor = super().call(module, plain, mesh, gathered_here)
        return normed[..., share_of(normed.size(-1), mesh)]


class OwnHeads(SummedGradients):
    """Attention over a process's own heads: its input is a DTensor, and its sinks are theirs."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        prepare = PrepareModuleInput(
            input_layouts=(Replicate(), None, None), desired_input_layouts=(Replicate(), None, None)
        )
        prepare._apply(module, device_mesh)
        if dict(module.named_parameters(recurse=False)):
            super()._apply(module, device_mesh)
        return module

    def weight(self, weight: Tensor, *, mesh: DeviceMesh) -> Tensor:
        """One number a head ``[H]``, of this process's heads ``[H / N]``."""
        return summed(weight, mesh)[share_of(weight.size(0), mesh)]


@contextmanager
def exchanged(module: nn.Module, exchange: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Within, the module's own parameters are what ``exchange`` makes of them."""
    own = dict(module._parameters)
    changed: dict[str, Any] = {n: None if p is None else exchange(p) for n, p in own.items()}
    module._parameters.update(changed)
    try:
        yield
    finally:
        module._parameters.update(own)
