"""How much memory a run is said to have taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from llama_lab.inspect.peak_memory import PeakMemory

MIB = 2**20


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(),
    reason="the kernel's count of a process's pages is Linux's",
)
def test_the_same_work_counts_the_same_when_it_is_done_again() -> None:
    peaks, kept = [], []
    for _ in range(3):
        memory = PeakMemory()
        blocks = [torch.ones(MIB // 64) for _ in range(1600)]  # 64 KiB each: from the heap
        kept.append(torch.ones(1000))  # at the heap's end: what is freed below it stays reserved
        del blocks
        peaks.append(memory.read(torch.device("cpu")))
    # 100 MiB, less what tests before have left in the heap, more what the allocator rounds up.
    assert all(peak is not None and 60 * MIB < peak < 140 * MIB for peak in peaks), peaks
