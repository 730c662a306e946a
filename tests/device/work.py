"""Work that is done on the CPU and on the device of this process, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from llama_lab.inspect.activity import observe
from llama_lab.inspect.causality import probe_causality
from llama_lab.inspect.faults import FAULTS, plant_fault
from llama_lab.model.decoder import Decoder
from llama_lab.model.devices import best_device
from llama_lab.training.module import TokenLoss
from llama_lab.training.optimizers import OptimizerConfig, build_optimizer
from llama_lab.training.state import LossMeter
from tests.model.test_switches import (
    CONTEXT,
    POSITION_SETTINGS,
    ROWS,
    VOCABULARY,
    WINDOWS,
    cached_greedy,
    random_decoder,
    settings_of,
)

HOST = torch.device("cpu")


def forward_and_backward(decoder: Decoder, device: torch.device, documents: bool) -> list[Tensor]:
    """Loss, the gradient of all parameters, and the logits of a greedy text with a cache."""
    decoder.to(device)
    text = (torch.arange(2 * CONTEXT).view(2, -1) * 7 % VOCABULARY).to(device)
    apart = torch.zeros_like(text) if documents else None
    if apart is not None:
        apart[:, 3:] = 1
    loss = decoder.score(text, text.roll(-1, dims=1), reduction="mean", documents=apart)
    parameters = [p for p in decoder.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    with torch.no_grad():
        prompt = torch.tensor([[1, 2, 3, 4], [7, 0, 10, 2]], device=device)
        _, logits = cached_greedy(decoder, prompt)
    # As one: the gradient of a key's bias is 0, and what is there of it is rounding.
    gradient = torch.cat([g.flatten() for g in gradients if g is not None])
    return [tensor.detach().cpu() for tensor in (loss, gradient, logits)]


def furthest(settings: dict[str, Any], *, documents: bool = False, fault: Any = None) -> float:
    """How far the device is from the CPU: the largest difference over the largest entry."""
    results = []
    for device in (HOST, best_device()):
        decoder = random_decoder(settings)
        plant_fault(decoder, fault)
        results.append(forward_and_backward(decoder, device, documents))
    return max(map(apart, *results))


def apart(here: Tensor, there: Tensor) -> float:
    """Largest difference over the largest entry."""
    return float((here - there).abs().max() / here.abs().max().clamp_min(1e-30))


def compare(cases: Iterable[dict[str, Any]], of: Callable[..., float]) -> list[float]:
    """How far the device is from the CPU in each case."""
    return [of(**case) for case in cases]


def switches(every: int) -> list[float]:
    """Of the decoders in which every pair of switches meets, one in so many."""
    return compare(({"settings": settings_of(row)} for row in ROWS[::every]), furthest)


def positions_and_windows() -> list[float]:
    """Every position, with documents apart in a window, and in none."""
    cases = [
        {"settings": {"position": position, "attention": window}, "documents": True}
        for position in POSITION_SETTINGS
        for window in ({}, WINDOWS[1])
    ]
    return compare(cases, furthest)


def faults() -> list[float]:
    """Every mistake that can be planted."""
    settings = {"attention": {"n_heads": 4, "n_kv_heads": 2}}
    return compare(({"settings": settings, "fault": fault} for fault in FAULTS), furthest)


def optimizer_steps(kind: str) -> float:
    """Three steps of an optimiser: how far the weights are apart."""
    results = []
    for device in (HOST, best_device()):
        decoder = random_decoder({}).to(device)
        optimizer = build_optimizer(decoder, OptimizerConfig(kind=kind))  # type: ignore[arg-type]
        draws = torch.Generator().manual_seed(5)
        for _ in range(3):
            for parameter in decoder.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=draws).to(device)
            optimizer.step()
        results.append(torch.cat([p.detach().cpu().flatten() for p in decoder.parameters()]))
    return apart(*results)


def activity_and_causality() -> tuple[float, bool]:
    """What diagnostics see of the layers, and whether a leak would be found."""
    results = []
    for device in (HOST, best_device()):
        decoder = random_decoder({"feed_forward": {"kind": "reglu"}}).to(device)
        text = torch.arange(CONTEXT, device=device)[None] % VOCABULARY
        layers = observe(decoder, text)
        results.append(torch.stack([torch.stack(tuple(layer)).cpu() for layer in layers]))
        causal = probe_causality(decoder).causal
        plant_fault(decoder, "no_causal_mask")
        assert not probe_causality(decoder).causal
    return apart(*results), causal


# A float32 sum of these keeps the first alone: a unit is less than half of its last digit.
LARGE, UNITS = 2.0**25, 600


def summed_loss() -> dict[str, Any]:
    """A validation's sum through moves and a reset, in numbers that float32 would lose."""
    device, metric = best_device(), TokenLoss()
    one, n_bytes = torch.tensor(1), torch.tensor(2)
    totals = []
    for place in (device, HOST, device):
        metric.to(place)
        losses = torch.tensor([LARGE, *[1.0] * UNITS], device=place)
        for loss in losses:
            metric.update(loss, one, n_bytes.to(place))
        totals.append(metric.loss.item())
    at, kept = metric.loss.device.type, str(metric.loss.dtype)
    metric.to(torch.bfloat16)
    in_bfloat16 = str(metric.loss.dtype)
    targets = metric.compute()["targets"]
    metric.reset()
    return {
        "totals": totals,
        "targets": targets,
        "after_reset": metric.loss.item(),
        "at": at,
        "dtypes": [kept, in_bfloat16, str(metric.loss.dtype)],
    }


def metered_loss() -> dict[str, Any]:
    """A training's sum, its state in a checkpoint, and what a restored one goes on from."""
    device, meter = best_device(), LossMeter()
    losses = torch.tensor([LARGE, *[1.0] * UNITS], device=device)
    for step, loss in enumerate(losses, start=1):
        meter.add(loss, step)
    state = meter.state()
    restored = LossMeter()
    restored.restore(state)
    restored.add(losses[1], 1)
    meter.reset()
    after = meter.state()
    meter.add(torch.tensor(float("inf"), device=device), 7)
    return {
        "state": state,
        "restored": restored.state(),
        "after_reset": after,
        "bad_step": meter.first_bad_step(),
        "bad": meter.read_synced()[1],
    }
