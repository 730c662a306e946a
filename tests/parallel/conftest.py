"""Processes that are started together."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def together(
    folder: Path, works: list[dict[str, Any]], n_data: int, n_tensor: int = 1
) -> list[dict[str, float]]:
    """What ``tests.parallel.alike`` finds with so many processes."""
    settings, results = folder / "works.json", folder / "results.json"
    settings.write_text(json.dumps(works))
    world = n_data * n_tensor
    shared = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world),
        "TENSOR_PARALLEL": str(n_tensor),
    }
    command = [sys.executable, "-m", "tests.parallel.alike", str(settings), str(results)]
    processes = [
        subprocess.Popen(
            command,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    errors = [process.communicate(timeout=900)[1] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(errors)[-6000:]
    found: list[dict[str, float]] = json.loads(results.read_text())
    return found
