"""A study from its file to its results: timing, tuning, runs, receipts, statistics.

Everything can be killed at any moment: what is finished is kept, what is under way is resumed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from llama_lab.errors import RunError
from llama_lab.runs.receipts import read_receipt
from llama_lab.studies.collect import FINAL, outcome_of, primary_of, write_outcome
from llama_lab.studies.display import StudyProgress
from llama_lab.studies.estimate import Estimate, estimate
from llama_lab.studies.ledger import Ledger, alone_in
from llama_lab.studies.plan import plan_study
from llama_lab.studies.planned_arms import PlannedArm, Resolver, Run
from llama_lab.studies.pool import Job, Pool
from llama_lab.studies.same_work import refuse_other_work
from llama_lab.studies.study import Study


@dataclass
class StudyRun:
    """A study under way.

    Attributes:
        study: What its file says.
        logs: The folder ``logs``.
        jobs: Runs at once.
        threads: That each computes on; None takes OMP_NUM_THREADS, or shares the cores among the
            jobs.
    """

    study: Study
    logs: Path
    jobs: int = 1
    threads: int | None = None
    arms: list[PlannedArm] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The study's own."""
        return self.logs / "studies" / self.study.name

    @contextlib.contextmanager
    def open(self) -> Iterator[Ledger]:
        """Hold the folder, and take up what is remembered.

        Raises:
            UserError: Another process runs the study.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with alone_in(self.folder) as lock:
            self.lock = lock
            self.ledger = Ledger.open(self.folder, self.threads or default_threads(self.jobs))
            yield self.ledger

    # ---- before anything is trained --------------------------------------------------------------

    def pool(self) -> Pool:
        """Workers for this study: on CUDA a GPU each, by a variable that is CUDA's own."""
        devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return Pool(self.jobs, self.ledger.threads, devices, (self.lock.fileno(),))

    def plan(self, pool: Pool) -> Estimate:
        """Parse, match and time every arm.

        Raises:
            UserError: An arm is refused, or is not to be compared with the base.
        """
        self.resolver = Resolver(self.study, self.logs)
        self.arms = plan_study(self.resolver, lambda arms: self._times(pool, arms))
        self._times(pool, self.arms)
        self.arms = [self._with_tuned(planned) for planned in self.arms]
        return estimate(self.study, self.arms, self.ledger.times, self.runs_left(), self.jobs)

    def _times(self, pool: Pool, arms: list[PlannedArm]) -> dict[str, float]:
        """Seconds of each arm's step, timed once in the life of a study."""
        jobs = [
            Job(p.arm.name, "time", timing_settings(p), self.folder / "worker-logs" / "timing.txt")
            for p in arms
            if p.arm.name not in self.ledger.times
        ]

        def keep(job: Job, answer: dict[str, Any]) -> None:
            # An arm that cannot be timed (out of memory) cannot be trained either: its runs tell.
            times = {key: answer.get(key, 0.0) for key in ("step", "forward")}
            self.ledger.times[job.key] = times

        pool.run(jobs, keep, lambda running: None)
        self.ledger.save()
        return {name: times["step"] for name, times in self.ledger.times.items()}

    # ---- runs ------------------------------------------------------------------------------------

    def runs(self) -> list[Run]:
        """Every run of the result, the arms of one seed side by side."""
        return [
            Run(planned, seed, self.folder / planned.arm.name / f"seed_{seed}")
            for seed in self.study.seeds
            for planned in self.arms
        ]

    def runs_left(self) -> list[Run]:
        """Those that have not ended for good."""
        return [run for run in self.runs() if outcome_of(run.folder)["end"] not in FINAL]

    def train(self, pool: Pool, runs: list[Run], title: str) -> None:
        """Train these runs; outcomes are in their folders afterwards.

        Raises:
            Stopped: A signal asked the study to stop.
        """
        left = [run for run in runs if outcome_of(run.folder)["end"] not in FINAL]
        self._refuse_other_settings(runs)
        jobs = [self._job(run) for run in left]
        with StudyProgress(title, runs, self.study) as progress:

            def keep(job: Job, answer: dict[str, Any]) -> None:
                run = next(run for run in left if run.key == job.key)
                if answer["end"] != "finished":  # those wrote their own
                    write_outcome(run.folder, answer)
                progress.ended(run, answer)
                self.check_work(run)

            pool.run(jobs, keep, progress.update)

    def check_work(self, run: Run) -> None:
        """Hold a finished run's receipt against the plan and against the base's of its seed.

        Raises:
            RunError: It did other work.
        """
        if outcome_of(run.folder)["end"] != "finished":
            return
        base = next(p for p in self.arms if p.arm.name == self.study.reference_arm.name)
        of_base = self.folder / base.arm.name / f"seed_{run.seed}"
        receipts = {
            base.arm.name: read_receipt(of_base),
            run.planned.arm.name: read_receipt(run.folder),
        }
        there = {name: receipt for name, receipt in receipts.items() if receipt is not None}
        refuse_other_work(run.planned, base, run.seed, there)

    def _job(self, run: Run) -> Job:
        study = self.study
        arguments = self.resolver.arguments(run.planned.arm, run.planned.extra)
        settings = {
            "arguments": [*arguments, f"--seed_everything={run.own_seed}"],
            "folder": str(run.folder),
            "scores": study.scores,
            "decode": dataclasses.asdict(study.decode) if study.decode else None,
            "probe": study.probe,
        }
        log = self.folder / "worker-logs" / f"{run.key.replace('/', '-')}.txt"
        return Job(run.key, "train", settings, log)

    def _refuse_other_settings(self, runs: list[Run]) -> None:
        """Runs of an earlier start must have been made from the very settings of today."""
        for run in runs:
            receipt = read_receipt(run.folder)
            if receipt is None:
                continue
            then = run.planned.comparable(receipt["config"])
            now = run.planned.settings
            # What a run of an older version does not name, it had not.
            differing = [key for key in sorted(now) if key in then and then[key] != now[key]]
            if differing:
                key = differing[0]
                raise RunError(
                    f"{run.folder}: it was trained with {key} {then[key]}, the study says "
                    f"{now[key]} now; give the changed study another name (`name:` in its file), "
                    "or delete the folder"
                )

    # ---- tuning ----------------------------------------------------------------------------------

    def tune(self, pool: Pool) -> None:
        """Give every arm its own best values, from equally many trials on seeds of their own."""
        study = self.study
        trials = [
            Run(trial, seed, self.folder / "tuning" / f"{trial.arm.name}.{number}" / f"seed_{seed}")
            for planned in self.arms
            if planned.arm.name not in self.ledger.tuned
            for number, values in enumerate(study.trials())
            for trial in [self._with(planned, values)]
            for seed in study.tune_seeds
        ]
        self.train(pool, trials, "tuning")
        for planned in self.arms:
            if planned.arm.name not in self.ledger.tuned:
                own = [run for run in trials if run.planned.arm.name == planned.arm.name]
                self.ledger.tuned[planned.arm.name] = self._choose(planned, own)
        self.ledger.save()
        self.arms = [self._with_tuned(planned) for planned in self.arms]

    def _choose(self, planned: PlannedArm, runs: list[Run]) -> dict[str, Any]:
        values, per = self.study.trials(), len(self.study.tune_seeds)
        rows = [
            {
                "values": values[index // per],
                "seed": run.seed,
                "primary": primary_of(self.study, run.folder),
                "end": outcome_of(run.folder)["end"],
            }
            for index, run in enumerate(runs)
        ]
        means: list[tuple[float, int]] = []
        for number in range(len(values)):
            found = [row["primary"] for row in rows[number * per : (number + 1) * per]]
            if all(value is not None for value in found):
                means.append((sum(found) / per, number))
        if not means:
            raise RunError(
                f"study: no value of {', '.join(self.study.tune)} brought arm {planned.arm.name} "
                "to its end; try others"
            )
        return {"chosen": values[min(means)[1]], "trials": rows}

    def _with_tuned(self, planned: PlannedArm) -> PlannedArm:
        tuned = self.ledger.tuned.get(planned.arm.name)
        return self._with(planned, tuned["chosen"]) if self.study.tune and tuned else planned

    def _with(self, planned: PlannedArm, values: Mapping[str, Any]) -> PlannedArm:
        """The arm with these values on top."""
        return self.resolver.plan(planned.arm, {**planned.extra, **values}, planned.matched)


def default_threads(jobs: int) -> int:
    """What the environment says, or this process's cores shared among so many runs."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    if said.isdigit() and int(said) > 0:
        return int(said)
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS and Windows
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, cores // jobs)


def timing_settings(planned: PlannedArm) -> dict[str, Any]:
    """What the timing of an arm's step needs to know."""
    prefix = "model.optimizer."
    return {
        "decoder": dataclasses.asdict(planned.decoder),
        "optimizer": {
            key.removeprefix(prefix): value
            for key, value in planned.settings.items()
            if key.startswith(prefix)
        },
        "batch_size": planned.batch_size,
        "accumulation": planned.settings["trainer.accumulate_grad_batches"],
        "context": planned.context,
        "precision": str(planned.settings["trainer.precision"]),
        "device": planned.device,
    }
