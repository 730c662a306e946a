"""A warm process that trains one run after another.

What a fresh ``llama-lab fit`` pays at its start (imports above all) is paid once. Nothing else is
kept: each task is the very entry that the command calls, with everything that a run leaves in a
process put back behind it.

Requests come as JSON, a line each, on standard input, and each is answered by one line of JSON.
Whatever a task prints goes to the file that its request names. When standard input ends while a
run is under way, the run is saved and stopped.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import random
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from llama_lab.errors import Diverged, RunError, Stopped, UserError
from llama_lab.model.devices import best_device, device_function
from llama_lab.model.settings import SettingError
from llama_lab.signals import SIGNALS, signals_end_the_command
from llama_lab.studies.tasks import TASKS


def main() -> int:
    """Serve requests until standard input ends."""
    # Descriptor 1 is what a run prints to; the answers keep the pipe for themselves.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    requests: queue.Queue[str | None] = queue.Queue()
    busy, alone = threading.Event(), threading.Event()
    threading.Thread(target=_read, args=(requests, busy, alone), daemon=True).start()
    while (line := requests.get()) is not None:
        request = json.loads(line)
        busy.set()
        if alone.is_set():  # it was stopped before its first run began
            break
        answer = perform(request)
        busy.clear()
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(answer), file=answers, flush=True)
    return 0


def _read(requests: queue.Queue[str | None], busy: threading.Event, alone: threading.Event) -> None:
    for line in sys.stdin:
        requests.put(line)
    requests.put(None)
    alone.set()  # before the look at `busy`, as main() looks here after setting that
    if busy.is_set():  # whoever asked is gone: save the run and end
        os.kill(os.getpid(), signal.SIGTERM)


def perform(request: dict[str, Any]) -> dict[str, Any]:
    """Carry out one request: ``do`` (a task), ``log`` (a file), ``with`` (the task's arguments).

    Returns:
        ``end`` (see :data:`llama_lab.studies.results.RunEnd`), ``reason``, and what the task found.
    """
    with printing_to(Path(request["log"])), as_before():
        try:
            with signals_end_the_command():
                found = TASKS[request["do"]](**request["with"])
            return {"end": "finished", "reason": "", **found}
        except Diverged as error:
            return _ended("diverged", error)
        except (UserError, SettingError) as error:
            return _ended("refused", error)
        except Stopped as stop:
            return {**_ended("stopped", stop), "signum": int(stop.signum)}
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
                return _ended("out_of_memory", error)
            return _ended("crashed", error)
        except RunError as error:
            return _ended("crashed", error)
        except Exception as error:  # a run's crash is the run's outcome, and the worker's no end
            return _ended("crashed", error)


def _ended(end: str, error: BaseException) -> dict[str, Any]:
    traceback.print_exception(error)
    words = " ".join(str(error).split()) or type(error).__name__
    return {"end": end, "reason": words}


@contextlib.contextmanager
def printing_to(path: Path) -> Iterator[None]:
    """Both outputs go to the end of a file, from C code too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [os.dup(descriptor) for descriptor in (1, 2)]
    with path.open("ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)


@contextlib.contextmanager
def as_before() -> Iterator[None]:
    """What a run may leave behind in a process is put back: the next one starts like the first."""
    environment, threads = dict(os.environ), torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    signals = {number: signal.getsignal(number) for number in SIGNALS}
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(environment)
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision(precision)
            torch.use_deterministic_algorithms(deterministic)
            torch.set_grad_enabled(True)
            for number, handler in signals.items():
                signal.signal(number, handler)
            gc.collect()
            if empty_cache := device_function(best_device(), "empty_cache"):
                empty_cache()


if __name__ == "__main__":
    sys.exit(main())
