"""Estimate of the runs and the time of a study, before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from llama_lab.data.batches import ValidationWindows
from llama_lab.studies.planned_arms import PlannedArm, Run
from llama_lab.studies.study import Study

# Beside steps and validations: checkpoints, samples, records.
SECONDS_PER_RUN = 2.0


@dataclass(frozen=True)
class Estimate:
    """Seconds of the training that is left, from the timed steps."""

    per_run: dict[str, float]
    """Of one run of each arm."""
    left: float
    """Of everything that has not ended, tuning included, with so many runs at once."""


def estimate(
    study: Study,
    arms: list[PlannedArm],
    times: Mapping[str, Mapping[str, float]],
    runs_left: list[Run],
    jobs: int,
) -> Estimate:
    """Steps and validations of each run, times what one takes."""
    per_run = {planned.arm.name: run_seconds(planned, times[planned.arm.name]) for planned in arms}
    seconds = sum(per_run[run.planned.arm.name] for run in runs_left)
    if study.tune and runs_left:
        seconds += sum(per_run.values()) * len(study.trials()) * len(study.tune_seeds)
    return Estimate(per_run, seconds / jobs)


def run_seconds(planned: PlannedArm, times: Mapping[str, float]) -> float:
    """Of one run: its steps, and the batches of its validations."""
    every = planned.settings["trainer.val_check_interval"]
    rows = planned.batch_size // planned.settings["trainer.accumulate_grad_batches"]
    windows = ValidationWindows(len(planned.store.validation), planned.context).n_windows
    validations = -(-planned.steps // every)
    batches = validations * -(-windows // rows)
    return planned.steps * times["step"] + batches * times["forward"] + SECONDS_PER_RUN
