"""Tensors of which each process may hold a shard only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor


def local(tensor: Tensor) -> Tensor:
    """This process's shard of a tensor that is divided, or the tensor itself.

    Changes of the shard in place change the divided tensor.
    """
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The gathered tensor; every process that holds a shard must ask at the same time."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def divided_like(value: Tensor, model: Tensor) -> Tensor:
    """``value``, which every process holds whole, divided as ``model`` is; nothing is sent."""
    if not isinstance(model, DTensor):
        return value
    value = value.to(model.device)
    return distribute_tensor(value, model.device_mesh, model.placements, src_data_rank=None)


def gathered(shard: Tensor, model: Tensor) -> Tensor:
    """The whole tensor of which each process has a shard, divided as ``model`` is.

    Every process that holds a shard must ask at the same time.
    """
    if not isinstance(model, DTensor):
        return shard
    mesh, places, shape = model.device_mesh, model.placements, model.shape
    return DTensor.from_local(
        shard, mesh, places, run_check=False, shape=shape, stride=model.stride()
    ).full_tensor()


@torch.no_grad()
def put(parameter: Tensor, value: Tensor) -> None:
    """Give a parameter the value that every process holds whole; each keeps its shard."""
    parameter.copy_(divided_like(value, parameter))


def total_norm(gradients: Iterable[Tensor]) -> Tensor:
    """√(Σ g²) over whole tensors, a scalar.

    Each process sums the squares of its shards. Sums are exchanged only between processes whose
    shards differ, so a replicated tensor counts once. torch's own norm refuses tensors that are
    divided over different sets of processes, as with tensor parallelism.
    """
    gradients = list(gradients)
    alike: defaultdict[tuple[DeviceMesh, tuple[int, ...]], list[Tensor]] = defaultdict(list)
    plain = []
    for gradient in gradients:
        if isinstance(gradient, DTensor):
            places = enumerate(gradient.placements)
            sharded = tuple(i for i, place in places if not place.is_replicate())
            alike[gradient.device_mesh, sharded].append(gradient.to_local())
        else:
            plain.append(gradient)
    if not alike:
        return torch.nn.utils.get_total_norm(plain)
    total = torch.nn.utils.get_total_norm(plain).square() if plain else None
    for (mesh, sharded), shards in alike.items():
        squares = torch.nn.utils.get_total_norm(shards).square()
        for dim in sharded:
            torch.distributed.all_reduce(squares, group=mesh.get_group(dim))
        total = squares if total is None else total + squares
    assert total is not None
    return total.sqrt()


@torch.no_grad()
def clip_by_norm(parameters: Sequence[Tensor], limit: float) -> Tensor:
    """Scale gradients down to a total norm of ``limit``; the norm before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = total_norm(gradients)
    # As torch.nn.utils.clip_grads_with_norm_ does it, which takes no shards.
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    torch._foreach_mul_([local(g) for g in gradients], factor)
    return norm


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every number is finite; of divided tensors, in all processes' shards.

    Every process must ask at the same time where a tensor is divided.
    """
    tensors = list(tensors)
    shards = [shard for t in tensors if (shard := local(t.detach())).numel()]
    norms = torch.stack(torch._foreach_norm(shards, torch.inf))
    finite = torch.isfinite(norms).all()
    if any(isinstance(t, DTensor) for t in tensors):
        flag = finite.to(torch.int32)
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MIN)
        finite = flag > 0
    return bool(finite)
