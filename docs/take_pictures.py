"""Take the pictures of the README: a study's report, and TensorBoard with runs of that study.

Usage: python docs/take_pictures.py [FOLDER]. The study is run in FOLDER (default: a temporary one)
unless it has been run there. Needs Chromium.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

STUDY = "swap-five"
PICTURES = Path(__file__).resolve().parent / "pictures"
ROOT = PICTURES.parents[1]
RUNS = ("base", "plus-rope", "all")
NAMES = ("chromium", "chromium-browser", "google-chrome")


def main(folder: Path) -> None:
    """Run the study where it is not there yet, and write both pictures."""
    PICTURES.mkdir(exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    logs = folder / "logs" / "studies" / STUDY
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if not (logs / "report.html").is_file():
        command = [sys.executable, "-m", "llama_lab", "ablate", "--config", STUDY, "--jobs", "2"]
        subprocess.run(command, cwd=folder, env=environment, check=True)
    take((logs / "report.html").as_uri(), PICTURES / "report.png", (1100, 900))
    with some_runs(logs) as runs, tensorboard(runs) as address:
        shown = f"{address}?tagFilter=loss%2Ftrain|grad_norm&smoothing=0#timeseries"
        take(shown, PICTURES / "tensorboard.png", (1300, 640))


@contextlib.contextmanager
def some_runs(logs: Path) -> Iterator[Path]:
    """A folder with one run of each of a few arms: more curves cannot be told apart."""
    with tempfile.TemporaryDirectory() as name:
        for arm in RUNS:
            (Path(name) / arm).symlink_to(logs / arm / "seed_0")
        yield Path(name)


@contextlib.contextmanager
def tensorboard(logs: Path) -> Iterator[str]:
    """TensorBoard over ``logs``, until the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/"
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(120):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}data/runs") as got:
                if len(got.read()) > 2:  # more than an empty list
                    break
            time.sleep(0.5)
        time.sleep(5)  # the remaining runs
        yield address
    finally:
        server.terminate()
        server.wait()


def take(address: str, file: Path, size: tuple[int, int]) -> None:
    """A picture of a page, as it is after its scripts have run."""
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        sys.exit("Chromium is not installed")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                *(browser, "--headless=new", "--no-sandbox", "--hide-scrollbars", "--disable-gpu"),
                *(f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}"),
                *("--virtual-time-budget=90000", f"--screenshot={file}", address),
            ],
            check=True,
            capture_output=True,
        )
    print(file)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
