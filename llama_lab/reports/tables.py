"""A study's numbers as tables. Nothing is judged here: that is the statistics' work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev
from typing import Any

from llama_lab.dotted_names import flatten
from llama_lab.reports.blocks import Block, Bullets, Cell, Digest, Paragraph, Table
from llama_lab.studies.conclusions import ArmConclusion
from llama_lab.studies.results import ArmResult, RunResult, Score, StudyResult
from llama_lab.studies.statistics import Comparison

NONE = "\u2013"


def number(value: float | None, form: str = ".4f", sign: str = "") -> str:
    """A number for people; a dash where there is none or none that is finite."""
    return NONE if value is None or not math.isfinite(value) else f"{value:{sign}{form}}"


def as_probability(p: float | None) -> str:
    """A p-value."""
    return "< 0.0001" if p is not None and p < 0.0001 else number(p)


def seconds(value: float | None) -> str:
    """Three digits at least, so that neither short nor long runs read as zero or as false exact."""
    return number(value, ".3g" if value is not None and abs(value) < 100 else ",.0f")


def mebibytes(value: float | None) -> str:
    """Bytes in MiB."""
    return NONE if value is None else f"{value / 2**20:,.1f}"


def finished(arm: ArmResult) -> list[RunResult]:
    """The runs that ran to their end."""
    return [run for run in arm.runs if run.end == "finished"]


def compared(result: StudyResult) -> tuple[ArmConclusion, ...]:
    """The arms that were held against a reference, as the statistics left them."""
    return result.family.arms


def _average(runs: Sequence[RunResult], name: str, form: Callable[[float | None], str]) -> str:
    """The mean of a field over the runs that have it, and of how many where some have it not."""
    values = [value for run in runs if (value := getattr(run, name)) is not None]
    if not values:
        return NONE
    count = "" if len(values) == len(runs) else f" ({len(values)} of {len(runs)})"
    return form(fmean(values)) + count


def _spread(values: Sequence[float]) -> str:
    """The mean, and the standard deviation where there is one."""
    if not values:
        return NONE
    return number(fmean(values)) + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def measurements(result: StudyResult) -> list[Block]:
    """Means over the finished runs of each arm, described without verdicts."""
    header = (
        "arm",
        "finished",
        "steps",
        f"{result.measure} (mean ± sd)",
        "last loss",
        "best loss",
        "steps to reference's best",
        "seconds to reference's best",
        "tokens/s",
        "peak memory (MiB)",
        "parameters",
        "FLOPs a token",
        "cache bytes a token",
    )
    rows = []
    for arm in result.arms:
        runs = finished(arm)
        primary = [run.primary for run in runs if run.primary is not None]
        rows.append(
            (
                arm.name,
                f"{len(runs)} of {len(arm.runs)}",
                f"{arm.steps:,}",
                _spread(primary),
                _average(runs, "last_loss", number),
                _average(runs, "best_loss", number),
                _average(runs, "steps_to_base_best", lambda v: number(v, ",.0f")),
                _average(runs, "seconds_to_base_best", seconds),
                _average(runs, "tokens_per_second", lambda v: number(v, ",.0f")),
                _average(runs, "peak_bytes", mebibytes),
                f"{arm.parameters:,}",
                f"{arm.flops_per_token:,}",
                f"{arm.cache_bytes_per_token:,}",
            )
        )
    text = (
        "Means over finished runs. Losses are nats per token of the validation part. Steps and "
        "seconds of training count to the first validation at or below the best loss of the "
        f"reference with the same seed; “2 of 5” says how many runs got there. {NONE} is not known."
    )
    return [Paragraph(text), Table(header, tuple(rows))]


def failures(result: StudyResult) -> list[Block]:
    """The runs that did not finish, each with its reason."""
    runs = [run for arm in result.arms for run in arm.runs if run.end != "finished"]
    if not runs:
        return []
    lines = (
        f"{run.arm}, seed {run.seed}: {ending(run)} after {run.steps:,} steps"
        + (f". {run.reason}" if run.reason else "")
        for run in runs
    )
    return [
        Paragraph("Runs without a result. Nothing is put in their place:", important=True),
        Bullets(tuple(lines)),
    ]


def ending(run: RunResult) -> str:
    """How a run ended, in words."""
    return run.end.replace("_", " ")


def tests(result: StudyResult) -> Table:
    """The statistics of each comparison."""
    header = (
        "arm",
        "against",
        "verdict",
        "seeds",
        "mean difference",
        "interval",
        "t",
        "p",
        "Holm p",
        "sign-flip p",
    )
    references = {arm.name: arm.reference for arm in result.arms}
    rows = []
    for arm in compared(result):
        c = arm.comparison
        flip = as_probability(c.sign_flip_p) + ("" if c.sign_flip_exact else " (drawn)")
        rows.append(
            (
                arm.name,
                references[arm.name],
                arm.verdict,
                str(len(c.seeds)),
                number(c.difference, sign="+"),
                interval(c),
                number(c.t, ".2f"),
                as_probability(c.p),
                as_probability(arm.p_holm),
                flip,
            )
        )
    return Table(header, tuple(rows), names=3)


def interval(comparison: Comparison) -> str:
    """Both ends of it."""
    if comparison.low is None:
        return NONE
    return f"{comparison.low:+.4f} to {comparison.high:+.4f}"


def pairing(result: StudyResult) -> Table:
    """What running both arms with the same seeds bought."""
    header = (
        "arm",
        "correlation over seeds",
        "interval ±",
        "± if unpaired",
        "times as wide unpaired",
    )
    rows = []
    for arm in compared(result):
        c = arm.comparison
        half = None if c.low is None or c.high is None else (c.high - c.low) / 2
        gain = number(c.pairing_gain, ".2f")
        widths = (number(half), number(c.unpaired_half_width), gain)
        rows.append((arm.name, number(c.correlation, ".3f"), *widths))
    return Table(header, tuple(rows))


def score_names(result: StudyResult) -> list[str]:
    """The other settings under which last weights were scored, in the study's order."""
    return list(dict.fromkeys(s.name for _, run in _runs(result) for s in run.scores))


def score_measure(result: StudyResult) -> str:
    """Bits per byte where they are known: they compare across tokenizers."""
    known = any(s.val_bits_per_byte is not None for _, run in _runs(result) for s in run.scores)
    return "val_bits_per_byte" if known else "val_loss"


def scores_of(arm: ArmResult, name: str) -> list[Score]:
    """One setting's scores of an arm's finished runs."""
    return [score for run in finished(arm) for score in run.scores if score.name == name]


def scores(result: StudyResult) -> list[Block]:
    """Each arm's last weights under other settings."""
    names, measure = score_names(result), score_measure(result)
    rows: list[tuple[str, ...]] = []
    refused: dict[tuple[str, str], list[str]] = {}
    for arm in result.arms:
        cells = []
        for name in names:
            found = scores_of(arm, name)
            values = [v for score in found if (v := getattr(score, measure)) is not None]
            refusals = {score.refused for score in found if score.refused}
            for reason in refusals:
                refused.setdefault((arm.name, reason), []).append(name)
            cells.append("refused" if refusals and not values else _spread(values))
        rows.append((arm.name, *cells))
    blocks: list[Block] = [Table(("arm", *names), tuple(rows), caption=f"{measure} (mean ± sd)")]
    reasons = (f"{arm}, {', '.join(at)}: {why}" for (arm, why), at in refused.items())
    return [*blocks, Bullets(tuple(reasons))] if refused else blocks


def decoding(result: StudyResult) -> list[Block]:
    """Speed and cache of generation at the end of a long text."""
    found = [
        (arm, decodings)
        for arm in result.arms
        if (decodings := [run.decoding for run in finished(arm) if run.decoding])
    ]
    rows = tuple(
        (
            arm.name,
            f"{decodings[0].context:,}",
            number(fmean(d.tokens_per_second for d in decodings), ",.1f"),
            mebibytes(fmean(d.cache_bytes for d in decodings)),
        )
        for arm, decodings in found
    )
    return [Table(("arm", "context", "tokens/s", "cache (MiB)"), rows)] if rows else []


def causality(result: StudyResult) -> list[Block]:
    """Which arms let a later token change earlier predictions."""
    probed = [
        (arm, [run.causal for run in arm.runs if run.causal is not None]) for arm in result.arms
    ]
    rows = tuple(
        (
            arm.name,
            "causal" if all(found) else "NOT CAUSAL: it sees later tokens",
            f"{sum(found)} of {len(found)}",
        )
        for arm, found in probed
        if found
    )
    if not rows:
        return []
    text = (
        "Whether changing a later token leaves earlier predictions as they were, as it must. "
        "A loss of an arm that is not causal says nothing of its quality."
    )
    return [Paragraph(text), Table(("arm", "probe", "causal runs"), rows, names=2)]


def changes(result: StudyResult) -> list[Block]:
    """The settings in which each arm differs from its reference."""
    rows = tuple(
        (arm.name, name, setting(there), setting(here))
        for arm in result.arms
        for name, (there, here) in arm.changes.items()
    )
    matched = tuple(f"{arm.name}: {arm.matched}" for arm in result.arms if arm.matched)
    same = [a.name for a in result.arms if not a.changes and a.name != a.reference]
    header = ("arm", "setting", "reference", "arm's")
    blocks: list[Block] = [Table(header, rows, names=4)] if rows else []
    if matched:
        blocks += [Paragraph("What was adjusted so that arms match:"), Bullets(matched)]
    if same:
        blocks.append(Paragraph(f"No setting differs in: {', '.join(same)}."))
    return blocks


def setting(value: Any) -> str:
    """A setting's value as its file has it."""
    words = {None: "null", True: "true", False: "false"}
    return words.get(value, str(value)) if value is None or isinstance(value, bool) else str(value)


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {setting(value)}" for name, value in values.items())


def tuning(result: StudyResult) -> list[Block]:
    """The trials of each arm, on seeds that the result does not use."""
    rows = tuple(
        (
            arm.name,
            _settings(trial["values"]) + (" (chosen)" if trial["values"] == chosen else ""),
            str(trial["end"]).replace("_", " "),
            str(trial["seed"]),
            number(trial["primary"]),
        )
        for arm in result.arms
        if arm.tuned
        for chosen in [arm.tuned["chosen"]]
        for trial in arm.tuned["trials"]
    )
    header = ("arm", "values", "end", "seed", result.measure)
    return [Table(header, rows, names=3)] if rows else []


def runs(result: StudyResult) -> Table:
    """Every run, a row each."""
    header = ("arm", "seed", "end", "folder", result.measure, "best step", "seconds", "passes")
    rows = (
        (
            arm.name,
            str(run.seed),
            ending(run),
            run.folder or NONE,
            number(run.primary),
            number(run.best_step, ",.0f"),
            seconds(run.seconds),
            number(run.passes, ".2f"),
        )
        for arm, run in _runs(result)
    )
    caption = f"Every run ({sum(len(arm.runs) for arm in result.arms)})"
    return Table(header, tuple(rows), names=4, caption=caption, folded=True)


def receipts(result: StudyResult) -> Table:
    """What proves that runs of one seed read the same, and started equal where they could."""
    written = [(arm, run) for arm, run in _runs(result) if run.receipt]
    parts = dict.fromkeys(
        part for _, run in written for part in run.receipt.get("initial_weights", {})
    )
    header = ("arm", "seed", "store", "order", *(f"initial {part}" for part in parts))
    rows = []
    for arm, run in written:
        weights = run.receipt.get("initial_weights", {})
        digests = (
            run.receipt.get("store", {}).get("sha256"),
            run.receipt.get("order"),
            *(weights.get(part) for part in parts),
        )
        rows.append((arm.name, str(run.seed), *map(_digest, digests)))
    caption = f"Receipts ({len(rows)})"
    return Table(header, tuple(rows), names=len(header), caption=caption, folded=True)


def _digest(value: Any) -> Cell:
    return NONE if value is None else Digest(str(value))


def facts(title: str, values: dict[str, Any]) -> Table:
    """A dictionary, nested ones with dotted names."""
    rows = tuple((name, setting(value)) for name, value in flatten(values).items())
    return Table((title, ""), rows, names=2)


def _runs(result: StudyResult) -> Iterable[tuple[ArmResult, RunResult]]:
    return ((arm, run) for arm in result.arms for run in arm.runs)
