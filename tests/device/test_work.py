"""The network, its optimisers and its sums on a pretended accelerator, against the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.device.conftest import BOTH, Machine
from tests.device.work import LARGE, UNITS

WORK = "tests.device.work"
# Both compute in float32, in another order. A sum of n products is off by about √n roundings of its
# largest term; two layers of dozens of such sums, one after the other, and their gradients: 100.
ROUNDING = 100 * torch.finfo(torch.float32).eps


@pytest.fixture(scope="module", params=BOTH)
def machine(request: Any, make_machine: Any) -> Machine:
    return make_machine(request.param)


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 32])
def test_switches_in_pairs_compute_and_write_what_they_do_on_the_cpu(
    machine: Machine, every: int
) -> None:
    assert max(machine.call(f"{WORK}:switches", every=every)) < ROUNDING


def test_every_position_does_under_windows_and_with_documents_apart(machine: Machine) -> None:
    assert max(machine.call(f"{WORK}:positions_and_windows")) < ROUNDING


def test_every_planted_fault_is_the_same_fault(machine: Machine) -> None:
    assert max(machine.call(f"{WORK}:faults")) < ROUNDING


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_an_optimiser_steps_as_on_the_cpu(machine: Machine, kind: str) -> None:
    # Muon's products are in bfloat16 on both, and by the same kernels of the CPU.
    assert machine.call(f"{WORK}:optimizer_steps", kind=kind) < ROUNDING


def test_layers_are_looked_at_as_on_the_cpu(machine: Machine) -> None:
    difference, causal = machine.call(f"{WORK}:activity_and_causality")
    assert difference < ROUNDING
    assert causal


def test_a_validation_is_summed_in_float64_wherever_the_device_has_it(machine: Machine) -> None:
    found = machine.call(f"{WORK}:summed_loss")
    once = LARGE + UNITS
    assert found["totals"] == [once, 2 * once, 3 * once]
    assert found["targets"] == 3 * (1 + UNITS)
    assert found["after_reset"] == 0
    assert found["at"] == ("cpu" if machine.rules == "metal" else machine.name)
    assert found["dtypes"] == ["torch.float64"] * 3


def test_a_training_is_summed_in_float64_and_goes_on_from_a_checkpoint(machine: Machine) -> None:
    found = machine.call(f"{WORK}:metered_loss")
    assert found["state"] == [LARGE + UNITS, 1 + UNITS]
    assert found["restored"] == [LARGE + UNITS + 1, 2 + UNITS]
    assert found["after_reset"] == [0, 0]
    assert (found["bad_step"], found["bad"]) == (7, True)
