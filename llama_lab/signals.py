"""Signals as a request to stop, for every command from its beginning to its end."""

from __future__ import annotations

import signal
import sys
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
    received = lost = 0  # numbers of signals; 0 is none

    def end(signum: int, frame: FrameType | None) -> None:
        nonlocal stopping, received, lost
        # A batch system repeats its announcement, and sends it to a whole group of processes. A
        # second exception would only disturb the saving that the first one began.
        if stopping and signum in ANNOUNCEMENTS:
            return
        stopping, received, lost = True, signum, 0
        raise stopped_by(signum)

    def send_again(unraisable: sys.UnraisableHookArgs) -> None:
        # The signal came while a destructor or a callback from C ran. Python prints an exception
        # that leaves one, and goes on as if nothing had happened.
        nonlocal stopping, lost
        if not isinstance(unraisable.exc_value, Stopped):
            previous_hook(unraisable)
            return
        stopping, lost = False, received
        timer = threading.Timer(0.02, send_to_main_thread, [received])
        timer.daemon = True
        timer.start()

    def send_to_main_thread(signum: int) -> None:
        if not lost:
            return
        if hasattr(signal, "pthread_kill"):  # ends a wait of the main thread as well
            signal.pthread_kill(threading.main_thread().ident or 0, signum)
        else:
            signal.raise_signal(signum)

    previous = {signum: signal.signal(signum, end) for signum in SIGNALS}
    previous_hook, sys.unraisablehook = sys.unraisablehook, send_again
    try:
        yield
        if lost:  # the command was faster than the timer
            raise stopped_by(lost)
    finally:
        lost = 0
        sys.unraisablehook = previous_hook
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
