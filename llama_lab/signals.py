"""Signals as a request to stop, for every command from its beginning to its end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from llama_lab.errors import Stopped

# Batch systems announce with these that they will end a job: SLURM sends what its `--signal`
# names, Grid Engine SIGUSR1 and SIGUSR2. Windows has neither.
ANNOUNCEMENTS = tuple(
    getattr(signal, name) for name in ("SIGUSR1", "SIGUSR2") if hasattr(signal, name)
)
SIGNALS = (signal.SIGTERM, signal.SIGINT, *ANNOUNCEMENTS)


@contextmanager
def signals_end_the_command() -> Iterator[None]:
    """Within, a signal raises :class:`Stopped`, so that files are closed and workers can save.

    The system's own answer to SIGTERM, SIGUSR1 and SIGUSR2 ends a process on the spot. Lightning
    would end it with exit code 1, or 0.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stopping = False

    def end(signum: int, frame: FrameType | None) -> None:
        nonlocal stopping
        # A batch system repeats its announcement, and sends it to a whole group of processes. A
        # second exception would only disturb the saving that the first one began.
        if stopping and signum in ANNOUNCEMENTS:
            return
        stopping = True
        raise stopped_by(signum)

    previous = {signum: signal.signal(signum, end) for signum in SIGNALS}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


@contextmanager
def interrupt_is_noted() -> Iterator[Callable[[], bool]]:
    """Within, the first Ctrl-C is only noted, and the next one ends the command.

    Yields:
        Whether there was one.
    """
    noted = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal noted
        if noted:
            raise stopped_by(signum)
        noted = True

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    previous = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: noted
    finally:
        signal.signal(signal.SIGINT, previous)


def stopped_by(signum: int, more: str = "") -> Stopped:
    """How a command ends that a signal stopped: an announcement is answered as SIGTERM is."""
    answered = signal.SIGTERM if signum in ANNOUNCEMENTS else signum
    return Stopped(answered, f"stopped by {signal.Signals(signum).name}{more}")
