"""A process of several that train decoders together, and alone beside it, and compare.

``python -m tests.parallel.alike SETTINGS.json RESULTS.json``, with the variables of a launcher.
Each process trains every decoder whole on all sequences, then takes part in training it divided.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise, seeded_generator
from llama_lab.parallel.sharding import DATA, TENSOR, sharded_decoder, sum_gradients
from llama_lab.parallel.tensor_plan import check_tensor_parallel
from llama_lab.parallel.tensors import clip_by_norm, put, whole
from llama_lab.training import muon
from llama_lab.training.optimizers import OptimizerConfig, build_optimizer
from llama_lab.training.recomputing import recompute

SEQUENCES, CONTEXT, VOCABULARY = 24, 16, 23
SIZES = {"dim": 16, "n_layers": 2, "context_length": CONTEXT, "vocab_size": VOCABULARY}


def start(decoder: Decoder) -> None:
    """Values by name, in which every parameter, biases and gains too, has something to say."""
    initialise(decoder, 0, put)
    for name, parameter in decoder.named_parameters():
        noise = torch.randn(parameter.shape, generator=seeded_generator(1, name)) * 0.1
        put(parameter, whole(parameter.detach()) + noise)


def batch(step: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + step)
    return torch.randint(VOCABULARY, (SEQUENCES, CONTEXT + 1), generator=generator)


def train(decoder: Decoder, work: dict[str, Any], mesh: DeviceMesh | None) -> list[float]:
    """Losses and gradient norms of each step, and the weights."""
    # With Adam's usual eps of 1e-8, a gradient that is 0 but for rounding (that of a bias of keys)
    # would make steps of the learning rate's size; 1e-4 is far above rounding and below gradients.
    settings = {"lr": 1e-3, "eps": 1e-4, **work.get("optimizer", {})}
    optimizer = build_optimizer(decoder, OptimizerConfig(**settings))
    recompute(decoder, work.get("checkpoint_activations", "none"))
    accumulation = work.get("accumulation", 1)
    seen: list[float] = []
    for step in range(work["steps"]):
        total = torch.zeros(())
        parts = batch(step, work.get("seed", 0)).chunk(accumulation)
        for i, part in enumerate(parts):
            rows = part
            if mesh is not None:
                rows = part.chunk(mesh[DATA].size())[mesh[DATA].get_local_rank()]
                sum_gradients(decoder, i == len(parts) - 1)
            documents = (rows[:, :-1] < 3).cumsum(1) if work.get("documents") else None
            loss = decoder.score(rows[:, :-1], rows[:, 1:], reduction="mean", documents=documents)
            (loss / accumulation).backward()
            total += loss.detach() / accumulation
        if mesh is not None:
            dist.all_reduce(total, group=mesh[DATA].get_group())
            total /= mesh[DATA].size()
        norm = clip_by_norm([p for p in decoder.parameters() if p.grad is not None], 0.7)
        optimizer.step()
        optimizer.zero_grad()
        seen += [float(total), float(norm)]
    return seen


def compared(work: dict[str, Any], mesh: DeviceMesh) -> dict[str, float]:
    """The largest differences between training alone and together."""
    config = DecoderConfig.from_dict({**SIZES, **work["decoder"]})
    check_tensor_parallel(config, mesh[TENSOR].size())
    alone = Decoder(config)
    together = sharded_decoder(config, mesh, torch.device("cpu"), "32-true")
    for decoder in (alone, together):
        start(decoder)
    begin = {n: p.detach().clone() for n, p in alone.named_parameters()}
    initial = difference(alone, together)
    one, two = (train(d, work, m) for d, m in ((alone, None), (together, mesh)))
    held = sum(p.to_local().numel() for p in together.parameters())
    moved = [float((p - begin[n]).abs().max()) for n, p in alone.named_parameters()]
    return {
        "initial": initial,
        "seen": max(abs(a - b) for a, b in zip(one, two, strict=True)),
        "weights": difference(alone, together),
        "moved": max(moved),
        "least_moved": min(moved),
        "held": held,
        "all": sum(p.numel() for p in alone.parameters()),
    }


def difference(alone: Decoder, together: Decoder) -> float:
    """The largest difference of a weight."""
    pairs = zip(alone.named_parameters(), together.named_parameters(), strict=True)
    worst = 0.0
    for (name, a), (same, b) in pairs:
        assert name == same
        worst = max(worst, float((a - whole(b.detach())).abs().max()))
    return worst


def main() -> None:
    """Compare all the settings, in every process; the first one writes the results."""
    torch.set_num_threads(1)
    # In bfloat16, rounding would hide what differs; in float32 it is the same computation.
    muon.multiplies = lambda *_: False
    dist.init_process_group("gloo")
    works = json.loads(Path(sys.argv[1]).read_text())
    n_tensor = int(os.environ["TENSOR_PARALLEL"])
    shape = (dist.get_world_size() // n_tensor, n_tensor)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=(DATA, TENSOR))
    results = [compared(work, mesh) for work in works]
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
