"""Workers and the work given to them: several runs at once, each in a warm process.

A worker that dies (out of memory, a crash in native code) takes one run with it; another is
started in its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from llama_lab.errors import Stopped
from llama_lab.signals import SIGNALS, stopped_by

# Nobody kills a worker but the system, and that for its memory.
# Windows has no SIGKILL, whose number is 9.
KILLED = {-9: ("out_of_memory", " (as a rule the system's, out of memory)")}
SECONDS_TO_SAVE = 120


@dataclass(frozen=True)
class Job:
    """One request to a worker."""

    key: str
    task: str
    settings: dict[str, Any]
    log: Path


@dataclass
class Worker:
    """One process; made when its first job comes.

    Attributes:
        threads: That it computes on.
        device: Index of its GPU; None leaves all of them visible.
        keep_open: Descriptors that it inherits.
    """

    threads: int
    device: int | None = None
    keep_open: tuple[int, ...] = ()
    process: subprocess.Popen[str] | None = None
    speech: threading.Thread | None = None

    def perform(self, job: Job) -> dict[str, Any]:
        """The worker's answer; where it died, what that was."""
        process = self.process = self.process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"do": job.task, "with": job.settings, "log": str(job.log)}
        try:
            print(json.dumps(request), file=process.stdin, flush=True)
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        code, self.process = process.wait(), None
        if -code in SIGNALS:  # it came between two runs, or before the worker was up
            stop = stopped_by(-code)
            return {"end": "stopped", "reason": str(stop), "signum": int(stop.signum)}
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        end, hint = KILLED.get(code, ("crashed", ""))
        return {"end": end, "reason": f"the process ended by {how}{hint}; see {job.log}"}

    def _start(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads)}
        if self.device is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(self.device)
        process = subprocess.Popen(
            [sys.executable, "-m", "llama_lab.studies.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            pass_fds=self.keep_open,
            # Ctrl-C is for the study, which asks its workers to stop in its own time.
            start_new_session=True,
        )
        self.speech = threading.Thread(target=pass_on, args=(process.stderr,), daemon=True)
        self.speech.start()
        return process

    def stop(self) -> None:
        """Let it save what it is at, and wait for that."""
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        try:
            process.wait(SECONDS_TO_SAVE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self.speech is not None:
            self.speech.join(1)


def pass_on(speech: IO[str]) -> None:
    """Say what a worker says between its runs, through this process's own standard error.

    On the same terminal it would go through the middle of a table that is being drawn.
    """
    for line in speech:
        sys.stderr.write(line)
        sys.stderr.flush()


@dataclass
class Pool:
    """So many workers; use it as a context."""

    size: int
    threads: int
    devices: int = 0
    keep_open: tuple[int, ...] = ()
    workers: list[Worker] = field(default_factory=list)

    def __enter__(self) -> Pool:
        self.workers = [
            Worker(self.threads, i % self.devices if self.devices else None, self.keep_open)
            for i in range(self.size)
        ]
        return self

    def __exit__(self, *exception: object) -> None:
        stopping = [threading.Thread(target=worker.stop) for worker in self.workers]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()

    def run(
        self,
        jobs: Iterable[Job],
        on_end: Callable[[Job, dict[str, Any]], None],
        while_waiting: Callable[[list[Job]], None],
        *,
        seconds_between: float = 0.5,
    ) -> None:
        """Give the jobs out in their order, until all are done.

        Args:
            jobs: What to do.
            on_end: Told of each answer, in the caller's thread.
            while_waiting: Called now and then with the jobs under way, in the caller's thread.
            seconds_between: How often.

        Raises:
            Stopped: A worker was asked to stop; the others are when the pool is left.
        """
        waiting = list(jobs)
        under_way: dict[int, Job] = {}
        changed = threading.Condition()
        answers: list[tuple[int, Job, dict[str, Any]]] = []

        def work(index: int, job: Job) -> None:
            answer = self.workers[index].perform(job)
            with changed:
                answers.append((index, job, answer))
                changed.notify()

        while under_way or waiting:
            for index in range(len(self.workers)):
                if index not in under_way and waiting:
                    under_way[index] = job = waiting.pop(0)
                    threading.Thread(target=work, args=(index, job), daemon=True).start()
            with changed:
                if not answers:
                    changed.wait(seconds_between)
                done, answers[:] = list(answers), []
            for index, job, answer in done:
                del under_way[index]
                on_end(job, answer)
                if answer["end"] == "stopped":
                    # A run says how `fit` would go on with it; a study goes on otherwise.
                    how = answer["reason"].partition(";")[0]
                    raise Stopped(answer["signum"], f"the worker of {job.key} was {how}")
            while_waiting(list(under_way.values()))
