"""A watch over the processes of a run: one that dies or hangs ends the run, and is named."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch import Trainer
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from llama_lab.errors import RunError, Stopped, UserError
from llama_lab.ranks import FOLDER, GRACE, words_left

# How torch's backends say that another process is gone, or silent for too long.
LOST = ("connection", "broken pipe", "socket", "remote process", "nccl communicator")
SILENT = ("timed out", "timeout")


class WatchedLauncher(_SubprocessScriptLauncher):
    """Lightning's launcher, which looks after the processes that it started.

    Lightning's own kills the first process, without a word, when another one has failed.
    """

    folder: Path | None = None

    def launch(
        self, function: Callable[..., Any], *args: Any, trainer: Trainer | None = None, **kw: Any
    ) -> Any:
        """Start the other processes, and call the function in this one."""
        environment = self.cluster_environment
        environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        if environment.creates_processes_externally:
            if FOLDER in os.environ:
                threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
        else:
            with tempfile.TemporaryDirectory(prefix="llama-lab-", ignore_cleanup_errors=True) as at:
                self.folder = Path(at)
                os.environ[FOLDER] = at
                try:
                    self._call_children_scripts()
                    threading.Thread(target=self.watch, daemon=True).start()
                    _set_num_threads_if_needed(num_processes=self.num_processes)
                    return function(*args, **kw)
                except BaseException as error:
                    # Those that wait for this one would complain that it is gone.
                    said = self.explanation(error)
                    self.kill(signal.SIGKILL)
                    if said is None:
                        raise
                    raise said from error
                finally:
                    os.environ.pop(FOLDER, None)
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kw)

    # ---- in the first process ----------------------------------------------------------------

    def watch(self) -> None:
        """Wait for a process that fails; give this one time to end by itself, and end it then."""
        while all(p.poll() in (None, 0) for p in self.procs):
            if all(p.poll() == 0 for p in self.procs):
                return
            time.sleep(0.2)
        time.sleep(2 * GRACE)  # it may be waiting for the failed one, for as long as it is allowed
        error = self.failure() or unanswered(f"process 0 of {len(self.procs) + 1}")
        self.kill(signal.SIGKILL)
        stops = isinstance(error, Stopped)
        print(f"llama-lab: {'' if stops else 'error: '}{error}", file=sys.stderr, flush=True)
        code = 128 + error.signum if isinstance(error, Stopped) else 1
        os._exit(2 if isinstance(error, UserError) else code)

    def failure(self) -> BaseException | None:
        """What became of the first process that failed, if one did."""
        assert self.folder is not None
        words, n = words_left(self.folder), len(self.procs) + 1
        for rank, process in enumerate(self.procs, start=1):
            code = process.poll()
            if not code:
                continue
            if rank in words and is_of_another(words[rank][1]):
                continue  # it only lost the one that failed
            return failure_of(rank, n, code, words.get(rank, (code, ""))[1])
        return None

    def explanation(self, error: BaseException) -> BaseException | None:
        """Why this process lost another one, where ``error`` comes of that."""
        if isinstance(error, UserError | RunError | Stopped | KeyboardInterrupt):
            return None
        text, end = str(error).lower(), time.monotonic() + GRACE
        if not any(word in text for word in (*LOST, *SILENT)):
            return None
        while time.monotonic() < end:
            if (failed := self.failure()) is not None:
                return failed
            time.sleep(0.1)
        if not any(word in text for word in SILENT):
            return None
        assert self.folder is not None
        heard = words_left(self.folder)
        silent = [
            str(rank)
            for rank, process in enumerate(self.procs, start=1)
            if process.poll() is None and rank not in heard
        ]
        return unanswered(f"process{'es' * (len(silent) > 1)} {', '.join(silent) or '?'}")


def watched(trainer: Trainer) -> None:
    """Put the watch in the place of Lightning's launcher, where the trainer starts processes."""
    strategy = trainer.strategy
    launcher = strategy.launcher
    if type(launcher) is _SubprocessScriptLauncher:
        strategy._launcher = WatchedLauncher(
            launcher.cluster_environment, launcher.num_processes, launcher.num_nodes
        )


def lost_another(error: BaseException) -> RunError | None:
    """What a process says that lost another one, which tells its own error where it can."""
    text = str(error).lower()
    if any(word in text for word in SILENT):
        return unanswered("another process")
    if any(word in text for word in LOST):
        return RunError("another process of the run has ended; its own error says why")
    return None


def is_of_another(text: str) -> bool:
    """Whether a process ended because another one was gone or silent."""
    return text.startswith(("another process of the run", "another process did not answer"))


def unanswered(who: str) -> RunError:
    """A process that hangs."""
    return RunError(
        f"{who} did not answer within --trainer.process_timeout; every checkpoint is whole; go on "
        "with `llama-lab fit --ckpt_path last`"
    )


def failure_of(rank: int, n: int, code: int, text: str) -> BaseException:
    """The end of a run whose process ``rank`` of ``n`` ended with an exit code."""
    if code in (128 + signal.SIGTERM, 128 + signal.SIGINT):
        return Stopped(code - 128, f"process {rank} of {n}: {text or 'stopped by a signal'}")
    if code < 0:
        text = f"ended by {signal.Signals(-code).name}"
    said = text or f"ended with exit code {code}; its error stands above"
    return (UserError if code == 2 else RunError)(f"process {rank} of {n}: {said}")


def end_with(parent: int) -> None:
    """End this process when its parent is gone: it would wait for it for ever."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)
