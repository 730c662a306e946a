"""``python -m llama_lab`` and the console script ``llama-lab``."""

import os
import sys

from llama_lab.cli import main


def run() -> None:
    """Entry point of the console script."""
    _read_names_as_utf8()
    sys.exit(main(sys.argv[1:]))


def _read_names_as_utf8() -> None:
    """Begin again in Python's UTF-8 mode, where the locale makes file names ASCII (LC_ALL=C).

    Python settles how it reads arguments, names of files and the environment before any code runs.
    The process keeps its id, and those that it starts inherit the mode.
    """
    if os.name == "posix" and sys.getfilesystemencoding().lower() not in ("utf-8", "utf8"):
        words = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
        os.execve(sys.executable, words, {**os.environ, "PYTHONUTF8": "1"})


if __name__ == "__main__":
    run()
