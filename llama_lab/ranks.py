"""Words from the other processes of a run to the first one, which tells the user.

The first process starts the others and reads what they leave in a folder: the line that each would
have printed. So an error that all of them meet is printed once, and an error of one is not lost.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

FOLDER = "_LLAMA_LAB_RANKS"
"""Variable that names the folder; only processes that the first one started have it."""
GRACE = 5.0
"""Seconds that a process has to end by itself when another one has failed."""


def local_rank() -> int:
    """This process's number on its machine; 0 is the first."""
    return int(os.environ.get("LOCAL_RANK", "0") or 0)


def leave_word(text: str, code: int) -> bool:
    """Leave the line that ends this process, if another one is there to read it.

    Where the first process does not answer any more, it is ended, and the line printed here.

    Returns:
        Whether there was a folder for it.
    """
    folder = os.environ.get(FOLDER)
    if not folder or local_rank() == 0:
        return False
    parent = os.getppid()
    path = Path(folder) / str(local_rank())
    try:
        path.with_suffix(".part").write_text(f"{code} {text}", encoding="utf-8")
        path.with_suffix(".part").replace(path)
    except OSError:  # the first process is at its end, and its folder is gone
        return True
    if "--trainer.process_timeout" in text:
        _end_unless_alive(parent, text)
    return True


def _end_unless_alive(parent: int, text: str) -> None:
    # A first process that lives kills this one, or goes, before the time is up.
    end = time.monotonic() + 3 * GRACE
    while time.monotonic() < end:
        time.sleep(0.1)
        if os.getppid() != parent:
            return
    print(f"llama-lab: error: {text}; the first process is ended", file=sys.stderr, flush=True)
    os.kill(parent, signal.SIGKILL)


def words_left(folder: Path) -> dict[int, tuple[int, str]]:
    """Exit code and line of each process that has left one, by its number."""
    found = {}
    for path in folder.iterdir():
        if path.name.isdigit():
            code, _, text = path.read_text(encoding="utf-8").partition(" ")
            found[int(path.name)] = (int(code), text)
    return found
