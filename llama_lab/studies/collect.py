"""Results of a study, collected from the folders of its runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_lab.files import write_atomically
from llama_lab.runs.receipts import read_receipt
from llama_lab.runs.records import read_rows
from llama_lab.studies.planned_arms import PlannedArm, Run, differences
from llama_lab.studies.results import ArmResult, Decoding, Point, RunResult, Score
from llama_lab.studies.study import Study
from llama_lab.studies.tasks import OUTCOME

# How a run can have ended for good; anything else is tried again at the next start.
FINAL = ("finished", "diverged", "refused")


def outcome_of(folder: Path) -> dict[str, Any]:
    """How a run ended; ``waiting`` where it has not."""
    path = folder / OUTCOME
    if not path.is_file():
        return {"end": "waiting", "reason": ""}
    outcome: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return outcome


def write_outcome(folder: Path, answer: Mapping[str, Any]) -> None:
    """Keep how a run ended that could not say so itself."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dict(answer), indent=1)
    write_atomically(folder / OUTCOME, text.encode())


def number(row: Mapping[str, str], key: str) -> float | None:
    """A cell of ``metrics.csv``; None where it is empty or not finite."""
    value = float(row[key]) if row.get(key) else math.nan
    return value if math.isfinite(value) else None


def measured(study: Study, rows: list[dict[str, str]]) -> float | None:
    """The study's measure of one run, from its validations."""
    values = [v for row in rows if (v := number(row, study.measure)) is not None]
    if not values:
        return None
    return min(values) if study.when == "best" else values[-1]


def primary_of(study: Study, folder: Path) -> float | None:
    """The study's measure of a run that finished; None of any other."""
    if outcome_of(folder)["end"] != "finished":
        return None
    return measured(study, read_rows(folder / "metrics.csv"))


def curve_of(planned: PlannedArm, rows: list[dict[str, str]]) -> list[Point]:
    """Every logged step, with what had been spent up to it."""
    tokens_per_step = planned.batch_size * planned.context
    flops_per_token = planned.flops_per_token
    points, seconds, last = [], 0.0, 0
    for row in rows:
        step = int(row["step"])
        if rate := number(row, "tokens_per_second"):
            seconds += (step - last) * tokens_per_step / rate
            last = step
        tokens = step * tokens_per_step
        points.append(
            Point(
                step=step,
                tokens=tokens,
                flops=float(tokens * flops_per_token),
                seconds=seconds,
                train_loss=number(row, "train_loss"),
                val_loss=number(row, "val_loss"),
                val_bits_per_byte=number(row, "val_bits_per_byte"),
            )
        )
    return points


def median(values: list[float]) -> float | None:
    """Of a list, or None of an empty one."""
    import statistics

    return statistics.median(values) if values else None


def collect_run(study: Study, run: Run, folder: Path, reference: RunResult | None) -> RunResult:
    """One run's result.

    Args:
        study: The study.
        run: The run.
        folder: The study's folder.
        reference: The run of the same seed that it is compared with, if another.
    """
    outcome, receipt = outcome_of(run.folder), read_receipt(run.folder) or {}
    rows = read_rows(run.folder / "metrics.csv")
    curve = curve_of(run.planned, rows)
    validations = [point for point in curve if point.val_loss is not None]
    best = min(validations, key=lambda p: p.val_loss or 0.0, default=None)
    rates = [rate for row in rows if (rate := number(row, "tokens_per_second")) is not None]
    own = best.val_loss if best else None
    goal = own if reference is None else reference.best_loss
    reached = next(
        (p for p in validations if goal is not None and (p.val_loss or 0.0) <= goal), None
    )
    decoding = outcome.get("decoding")
    return RunResult(
        arm=run.planned.arm.name,
        seed=run.seed,
        end=outcome["end"],
        reason=outcome["reason"],
        folder=str(run.folder.relative_to(folder)),
        primary=measured(study, rows) if outcome["end"] == "finished" else None,
        steps=receipt.get("steps", 0),
        tokens=receipt.get("tokens", 0),
        seconds=receipt.get("wall_seconds"),
        last_loss=validations[-1].val_loss if validations else None,
        best_loss=own,
        best_step=best.step if best else None,
        tokens_per_second=median(rates),
        peak_bytes=outcome.get("peak_bytes"),
        steps_to_base_best=reached.step if reached else None,
        seconds_to_base_best=reached.seconds if reached else None,
        passes=receipt.get("passes"),
        causal=outcome.get("causal"),
        decoding=Decoding(**decoding) if decoding else None,
        scores=[Score(**score) for score in outcome.get("scores", [])],
        curve=curve,
        sample=outcome.get("sample", ""),
        passage=outcome.get("passage", ""),
        receipt={key: value for key, value in receipt.items() if key != "config"},
    )


def collect_arm(
    planned: PlannedArm, reference: PlannedArm, runs: list[RunResult], tuned: Mapping[str, Any]
) -> ArmResult:
    """One arm's result."""
    return ArmResult(
        name=planned.arm.name,
        reference=planned.arm.reference,
        changes=differences(planned, reference),
        parameters=planned.parameters,
        flops_per_token=planned.flops_per_token,
        cache_bytes_per_token=planned.cache_bytes_per_token,
        steps=planned.steps,
        matched=planned.matched,
        tuned=dict(tuned),
        runs=runs,
    )
