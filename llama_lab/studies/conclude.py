"""Conclusion of a study: receipts are compared first, then statistics are computed."""

from __future__ import annotations

import dataclasses
from typing import Any

from llama_lab.studies.collect import collect_arm, collect_run
from llama_lab.studies.conclusions import ComparisonFamily, Runs, describe_family
from llama_lab.studies.results import RunResult, StudyResult
from llama_lab.studies.study import UNITS
from llama_lab.studies.study_run import StudyRun

# How runs end that have no value, in the words of the conclusions.
LOST = {"diverged": "diverged", "out_of_memory": "out of memory", "crashed": "crashed"}


def conclude(run: StudyRun, command: str) -> StudyResult:
    """Everything that a report shows.

    Args:
        run: The study, planned; whatever has run of it is looked at.
        command: What runs the study again.

    Raises:
        RunError: Two runs did not do the same work.
    """
    for one in run.runs():  # before any loss is looked at
        run.check_work(one)
    by_arm = results_of(run)
    family = family_of(run, by_arm)
    arms = {planned.arm.name: planned for planned in run.arms}
    base = run.study.reference_arm.name
    finished = [r for runs in by_arm.values() for r in runs if r.end == "finished"]
    receipt = finished[0].receipt if finished else {}
    store = arms[base].store.info
    return StudyResult(
        name=run.study.name,
        description=run.study.description,
        expectation=run.study.expectation,
        measure=f"{run.study.when} {run.study.measure}",
        base=base,
        seeds=list(run.study.seeds),
        arms=[
            collect_arm(
                planned, arms[planned.arm.reference], by_arm[name], run.ledger.tuned.get(name, {})
            )
            for name, planned in arms.items()
        ],
        family=family,
        chance=sources_of_chance(run),
        notes=notes(run, by_arm),
        threads=run.ledger.threads,
        device=receipt.get("device", {}),
        versions=receipt.get("versions", {}),
        corpus=dataclasses.asdict(store),
        command=command,
    )


def results_of(run: StudyRun) -> dict[str, list[RunResult]]:
    """The runs of each arm, by seed; references before the arms that are held against them."""
    by_arm: dict[str, list[RunResult]] = {}
    planned = {arm.arm.name: arm for arm in run.arms}
    for name in sorted(planned, key=lambda n: depth(planned, n)):
        reference = planned[name].arm.reference
        there = {r.seed: r for r in by_arm.get(reference, []) if reference != name}
        by_arm[name] = [
            collect_run(run.study, one, run.folder, there.get(one.seed))
            for one in run.runs()
            if one.planned.arm.name == name
        ]
    return by_arm


def depth(planned: dict[str, Any], name: str) -> int:
    """How many references stand between an arm and the base."""
    steps, seen = 0, set()
    while planned[name].arm.reference != name and name not in seen:
        seen.add(name)
        name, steps = planned[name].arm.reference, steps + 1
    return steps


def family_of(run: StudyRun, by_arm: dict[str, list[RunResult]]) -> ComparisonFamily:
    """The study's conclusions about its primary measure."""
    study, base = run.study, run.study.reference_arm.name
    runs = {name: runs_of(results) for name, results in by_arm.items()}
    looks = sorted({look for look in run.ledger.looks if look < len(study.seeds)})
    arms = {arm.name: runs[arm.name] for arm in study.arms if arm.reference != arm.name}
    references = {arm.name: arm.reference for arm in study.arms if arm.reference != base}
    return describe_family(
        runs[base],
        arms,
        study.seeds,
        references={name: reference for name, reference in references.items() if name in arms},
        looks=(*looks, len(study.seeds)),
        plan=study.looks,
        unit=UNITS[study.measure],
    )


def runs_of(results: list[RunResult]) -> Runs:
    """The values of an arm, how its other runs ended, and whether they are a language model's."""
    leaks = any(r.causal is False for r in results)
    return Runs(
        doubt="it sees later tokens, so its loss is no loss of a language model" if leaks else "",
        values={r.seed: r.primary for r in results if r.primary is not None},
        lost={r.seed: LOST[r.end] for r in results if r.end in LOST},  # type: ignore[misc]
    )


def sources_of_chance(run: StudyRun) -> list[str]:
    """What a seed varies, and what stays fixed."""
    dropout = any(planned.decoder.dropout for planned in run.arms)
    offset = any(planned.arm.seed_offset for planned in run.arms)
    return [
        "A seed varies the initial weights and the order of the training windows"
        + (", and the dropout masks." if dropout else ". No arm has dropout."),
        "The text and its split into training and validation part stay fixed: the intervals say "
        "nothing about other texts or other splits.",
        "Arms of one seed read the same windows in the same order, and tensors that they share "
        "(same name, same shape, same scheme) start equal; that is what is paired."
        if not offset
        else "Arms with a seed offset share neither initial weights nor order with the base of "
        "the same seed: their pairs are pairs in name alone.",
    ]


def notes(run: StudyRun, by_arm: dict[str, list[RunResult]]) -> list[str]:
    """What a reader must know besides."""
    study, found = run.study, []
    if study.differ:
        found.append(
            f"On purpose, arms may differ in {', '.join(study.differ)}; they are compared in bits "
            "per byte, which does not depend on the tokenizer."
        )
    for name, results in by_arm.items():
        refused = next((r.reason for r in results if r.end == "refused"), None)
        if refused:
            found.append(f"{name} was refused: {refused}")
    if study.match != "none":
        unmatched = [
            p.arm.name for p in run.arms if not p.matched and p.arm.reference != p.arm.name
        ]
        found.append(
            f"Arms are matched to the base by {study.match}"
            + (f"; {', '.join(unmatched)} needed no change." if unmatched else ".")
        )
    return found
