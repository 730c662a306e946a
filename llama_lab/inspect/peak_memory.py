"""Peak memory of a run."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

import torch

from llama_lab.model.devices import best_device, device_function

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """The peak since this was made: the allocator's where the device keeps one (CUDA), else how far
    the process grew.

    Memory that earlier runs of a warm process left with its allocator is given back first; a later
    run would otherwise seem to need none. Pages that other libraries keep for good still count for
    the run that first brings them in.
    """

    def __init__(self) -> None:
        self.before: int | None = None
        if forget := device_function(best_device(), "reset_peak_memory_stats"):
            forget()
        with contextlib.suppress(OSError, AttributeError):  # another C library has no such call
            ctypes.CDLL(None).malloc_trim(0)
        with contextlib.suppress(OSError):  # no Linux, or not allowed here
            CLEAR.write_text("5")  # forget the peak so far
            self.before = _bytes("VmRSS")

    def read(self, device: torch.device) -> int | None:
        """Bytes that the work on ``device`` took; None where the system does not say."""
        if most := device_function(device, "max_memory_allocated"):
            return int(most(device))
        return None if self.before is None else max(0, _bytes("VmHWM") - self.before)


def _bytes(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
