"""Measured ceilings of this machine: matrix products, and reading of memory.

Every ceiling is the best of several tries: whatever else the machine does takes away and never
adds. No try draws from torch's global generators.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from llama_lab.model.devices import synchronise

SIZES = (256, 512, 1024, 2048, 4096, 8192)
"""Sides of the square matrices. The largest is not the fastest everywhere: where cores share slow
memory, one that stays in the cache is."""

QUICK = 0.15
"""Seconds that a run gives to its ceiling."""

READ_SIDE = 8192
"""Of the matrix whose reading is timed: 256 MiB in float32, more than caches hold."""


def matmul_ceiling(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """FLOPs per second of the fastest product of two square matrices, a multiply and an add as two.

    Args:
        device: One device; on the CPU with the threads that torch has.
        dtype: Of the factors and the product.
        seconds: About so long it takes; a first try of each size is made in any case.
    """
    best, end = 0.0, time.perf_counter() + seconds
    random = torch.Generator(device).manual_seed(0)
    for size in SIZES:
        try:
            factors = [
                torch.rand(size, size, generator=random, device=device).to(dtype) for _ in range(2)
            ]
            product = functools.partial(torch.mm, *factors)
            shortest = shortest_call(product, device, seconds / len(SIZES))
        except torch.OutOfMemoryError:
            break  # beside a large model; smaller matrices did
        best = max(best, 2 * size**3 / shortest)
        next_takes = 8 * 2 * shortest
        if time.perf_counter() + next_takes > end:
            break
    return best


@functools.cache
def _once(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    return matmul_ceiling(device, dtype, QUICK)


def run_ceiling(device: torch.device, dtype: torch.dtype) -> float:
    """:func:`matmul_ceiling`, measured once in a process, and again for other threads alone."""
    return _once(device, dtype, torch.get_num_threads())


def memory_bandwidth(device: torch.device, seconds: float) -> float:
    """Bytes per second at which a large matrix is read, once, by a product with a vector."""
    matrix = torch.ones(READ_SIDE, READ_SIDE, device=device)
    vector = torch.ones(READ_SIDE, device=device)
    size = matrix.numel() * matrix.element_size()
    return size / shortest_call(lambda: torch.mv(matrix, vector), device, seconds)


def product_dtype(
    context: Callable[[], AbstractContextManager[Any]], device: torch.device
) -> torch.dtype:
    """In what a run multiplies: what a product is in, within the ``context`` of its precision."""
    with context(), torch.no_grad():
        one = torch.ones(1, 1, device=device)
        return torch.mm(one, one).dtype


@torch.no_grad()
def shortest_call(work: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """Seconds of the fastest of several calls, for about ``seconds``; the first call warms up."""
    work()
    synchronise(device)
    shortest, end = math.inf, time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        work()
        synchronise(device)
        now = time.perf_counter()
        shortest = min(shortest, now - began)
        if now >= end:
            return shortest
