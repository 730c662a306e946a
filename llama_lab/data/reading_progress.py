"""Progress of a long reading or encoding: bytes done, bytes in all, and the time left."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TextIO, TypeVar

SILENT_SECONDS = 2.0
TERMINAL_SECONDS, FILE_SECONDS = 0.25, 10.0
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
Line = TypeVar("Line", bound="ProgressLine")


class ProgressLine:
    """A line that is written over on a terminal; elsewhere there is a new one now and then.

    Args:
        out: Where the line goes.
    """

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.began = time.monotonic()
        self.interval = TERMINAL_SECONDS if out.isatty() else FILE_SECONDS
        self.is_shown = False

    def __enter__(self: Line) -> Line:
        return self

    def say(self, line: str) -> None:
        """Write it."""
        self.is_shown = True
        self.out.write(f"\r\x1b[2K{line}" if self.out.isatty() else f"{line}\n")
        self.out.flush()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_shown and self.out.isatty():
            self.out.write("\r\x1b[2K")
            self.out.flush()


class ByteProgress(ProgressLine):
    """How far a work is, once it has taken :data:`SILENT_SECONDS`.

    Args:
        what: The work, in a word.
        total: Bytes in all; ``None`` where it is not known.
        out: Where the line goes.
    """

    def __init__(self, what: str, total: int | None, out: TextIO) -> None:
        super().__init__(out)
        self.what, self.total = what, total
        self.done = 0
        self.said = self.began

    def __call__(self, done: int) -> None:
        """So many bytes are done."""
        self.done = done
        now = time.monotonic()
        if now - self.began < SILENT_SECONDS or now - self.said < self.interval:
            return
        self.said = now
        self.say(self.line(now - self.began))

    def add(self, n: int) -> None:
        """So many more are done."""
        self(self.done + n)

    def line(self, seconds: float) -> str:
        """What is said after so many seconds."""
        rate = self.done / seconds if seconds > 0 else 0.0
        if not self.total:
            return f"{self.what}  {in_bytes(self.done)}, {in_bytes(rate)}/s"
        left = (self.total - self.done) / rate if rate > 0 else 0.0
        minutes, rest = divmod(round(max(0.0, left)), 60)
        return (
            f"{self.what}  {in_bytes(self.done)} of {in_bytes(self.total)}, "
            f"{in_bytes(rate)}/s, {minutes}:{rest:02d} left"
        )


class Elapsed(ProgressLine):
    """How long a work has taken whose end is not known, likewise.

    Args:
        what: The work, in words.
        out: Where the line goes.
    """

    def __init__(self, what: str, out: TextIO) -> None:
        super().__init__(out)
        self.what = what
        self.next = self.began + SILENT_SECONDS

    def __call__(self) -> None:
        """It goes on."""
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + self.interval
        minutes, seconds = divmod(round(now - self.began), 60)
        self.say(f"{self.what}, {minutes}:{seconds:02d} so far")


def in_bytes(n: float) -> str:
    """``1.2 MB``."""
    for size, unit in UNITS:
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n:.0f} B"
