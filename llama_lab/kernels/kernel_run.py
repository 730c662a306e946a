"""A study of parts, from its file to its results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from llama_lab.kernels.kernel_report import PartReport
from llama_lab.kernels.kernel_study import PartStudy
from llama_lab.kernels.pair_timing import PartResult, time_parts
from llama_lab.model.devices import best_device
from llama_lab.runs.receipts import describe_device, versions
from llama_lab.studies.timing import computing_on


def run_parts(
    study: PartStudy, command: str, threads: int, told: Callable[[PartResult], None]
) -> PartReport:
    """Time every part at every size.

    Args:
        study: What its file says.
        command: What runs it again.
        threads: To compute on, on the CPU.
        told: Is called with each part as soon as it is timed.

    Raises:
        RunError: Two writings that must compute the same do not.
    """
    device = best_device()
    parts = []
    with computing_on(threads):
        machine = describe_device(device, study.precision)
        for part in time_parts(study, device):
            told(part)
            parts.append(part)
    return PartReport(
        name=study.name,
        description=study.description,
        expectation=study.expectation,
        sizes={name: dataclasses.asdict(sizes) for name, sizes in study.sizes.items()},
        turns=study.turns,
        seconds=study.seconds,
        backward=study.backward,
        parts=parts,
        threads=threads,
        device=machine,
        versions=versions(),
        command=command,
    )
