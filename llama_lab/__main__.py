"""``python -m llama_lab`` and the console script ``llama-lab``."""

import sys

from llama_lab.cli import main


def run() -> None:
    """Entry point of the console script."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
