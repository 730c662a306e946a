"""What the machine can do is measured, once, and nothing else notices."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from llama_lab.inspect.ceilings import (
    matmul_ceiling,
    memory_bandwidth,
    product_dtype,
    run_ceiling,
)

CPU = torch.device("cpu")


def test_ceilings_are_those_of_a_machine_and_draw_nothing() -> None:
    before = torch.get_rng_state()
    flops = matmul_ceiling(CPU, torch.float32, seconds=0.02)
    assert 1e8 < flops < 1e15
    assert 1e8 < memory_bandwidth(CPU, seconds=0.02) < 1e13
    assert torch.equal(torch.get_rng_state(), before)


def test_a_process_measures_a_precision_once() -> None:
    first = run_ceiling(CPU, torch.float32)
    assert run_ceiling(CPU, torch.float32) == first
    assert run_ceiling(CPU, torch.float64) != first


def test_the_ceiling_is_of_what_a_run_multiplies_in() -> None:
    assert product_dtype(nullcontext, CPU) == torch.float32
    mixed = product_dtype(lambda: torch.autocast("cpu", dtype=torch.bfloat16), CPU)
    assert mixed == torch.bfloat16
