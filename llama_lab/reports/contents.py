"""Contents of a report, in the order in which a reader would ask."""

from __future__ import annotations

from collections.abc import Iterator

from llama_lab.reports import tables
from llama_lab.reports.blocks import (
    Block,
    Bullets,
    Chart,
    Command,
    Judged,
    Paragraph,
    Sample,
    Samples,
    Section,
    Verdicts,
)
from llama_lab.reports.charts import MOST_POINTS
from llama_lab.studies.conclusions import ArmConclusion
from llama_lab.studies.results import ArmResult, StudyResult


def sections(result: StudyResult) -> list[Section]:
    """The whole report but its title; what the study did not ask for is left out."""
    named: dict[str, list[Block]] = {
        "The study": _question(result),
        "Verdicts": _verdicts(result),
        "Differences": _differences(result),
        "Curves": _curves(result),
        "Measurements": [*tables.failures(result), *tables.measurements(result)],
        "Scores under other settings": _scores(result),
        "Decoding": tables.decoding(result),
        "Causality": tables.causality(result),
        "What differs": tables.changes(result),
        "Tuning": _tuning(result),
        "Samples": list(_samples(result)),
        "Chance and pairing": _chance(result),
        "Runs and receipts": _receipts(result),
        "Run it again": _again(result),
    }
    return [Section(title, tuple(blocks)) for title, blocks in named.items() if blocks]


def summary(result: StudyResult) -> str:
    """The study's size in one line."""
    count = sum(len(arm.runs) for arm in result.arms)
    done = sum(len(tables.finished(arm)) for arm in result.arms)
    seeds = ", ".join(map(str, result.seeds))
    return (
        f"{_count(len(result.arms), 'arm')}, {_count(len(result.seeds), 'seed')} ({seeds}), "
        f"{done} of {_count(count, 'run')} finished. Primary measure: {result.measure}, "
        f"{'higher' if result.family.higher_is_better else 'lower'} is better. "
        f"Reference: {result.base}."
    )


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _question(result: StudyResult) -> list[Block]:
    texts = [result.description.strip()]
    if result.expectation.strip():
        texts.append(f"What was expected: {result.expectation.strip()}")
    return [Paragraph(text) for text in [*texts, summary(result)] if text]


def _verdicts(result: StudyResult) -> list[Block]:
    family, arms = result.family, tables.compared(result)
    blocks: list[Block] = []
    if not arms:
        blocks.append(Paragraph("No arm is held against another: this study measures, no more."))
    if family.exploratory:
        text = (
            "Exploratory: this look at the results was not declared before any was seen. The "
            "verdicts stand as if it were the only one, which understates the chance of error."
        )
        blocks.append(Paragraph(text, important=True))
    blocks.append(Verdicts(tuple(map(_judged, arms))))
    if result.notes:
        blocks += [Paragraph("To be read with it:"), Bullets(tuple(result.notes))]
    return blocks if arms or result.notes else blocks[:1]


def _judged(arm: ArmConclusion) -> Judged:
    """The verdict stands apart, in colour: the sentence need not begin with it again."""
    name, verdict, sentence = arm.name, arm.verdict, arm.sentence
    return Judged(name, verdict, sentence.removeprefix(f"{verdict.capitalize()}: "))


def covered(result: StudyResult) -> str:
    """The intervals' coverage, such as ``95 %``."""
    return f"{100 * (1 - result.family.level):.3g} %"


def _differences(result: StudyResult) -> list[Block]:
    if not tables.compared(result):
        return []
    caption = (
        f"Difference in {result.measure} from the reference, paired by seed: mean, "
        f"{covered(result)} t-interval, and each seed as a small dot."
    )
    text = (
        "A verdict needs Holm's adjusted t-test p-value, over all arms of the study, below "
        f"{result.family.level:.3g}. The sign-flip p-value stands beside it without that "
        "assumption of normal differences; below 6 seeds it cannot reach 0.05."
    )
    return [Chart("forest", caption), tables.tests(result), Paragraph(text)]


def _curves(result: StudyResult) -> list[Block]:
    if not any(run.curve for arm in result.arms for run in arm.runs):
        return []
    caption = (
        "Bold: mean over an arm's finished seeds, with markers; shaded: its 95 % t-interval at "
        "each step by itself; thin: single seeds, dotted where a run failed. Over time the mean "
        "stands at the seeds' mean time of each step; validation is not in the time. At most "
        f"{MOST_POINTS} points a curve are drawn; results.json has all."
    )
    return [Chart("curves", caption)]


def _scores(result: StudyResult) -> list[Block]:
    names = tables.score_names(result)
    if not names:
        return []
    caption = (
        f"Last weights: {tables.score_measure(result)} under each setting, mean and 95 % "
        "t-interval over seeds."
    )
    chart: list[Block] = [Chart("scores", caption)] if len(names) > 1 else []
    return [*chart, *tables.scores(result)]


def _tuning(result: StudyResult) -> list[Block]:
    trials = tables.tuning(result)
    text = (
        "Every arm got its own best value from its trials, on seeds that the result does not use."
    )
    if not trials:
        return []
    edges = tuple(sentence for arm in result.arms for sentence in _edges(arm))
    return [Paragraph(text), *trials, *([Bullets(edges)] if edges else [])]


def _edges(arm: ArmResult) -> Iterator[str]:
    """What says that an arm's best value may lie beyond those that were tried."""
    if not arm.tuned:
        return
    for name, chosen in arm.tuned["chosen"].items():
        tried = [trial["values"][name] for trial in arm.tuned["trials"]]
        if not all(isinstance(value, int | float) for value in tried):
            continue
        for word, end in (("smallest", min(tried)), ("largest", max(tried))):
            if chosen == end:
                yield (
                    f"{arm.name}: {chosen:g} is the {word} {name} that was tried; the best may lie "
                    "beyond it, and a comparison of arms at their best wants that known."
                )


def _samples(result: StudyResult) -> Iterator[Block]:
    shown = {
        seed: tuple(
            Sample(arm.name, run.sample, run.passage)
            for arm in result.arms
            for run in arm.runs
            if run.seed == seed and run.sample
        )
        for seed in result.seeds
    }
    written = {seed: samples for seed, samples in shown.items() if samples}
    if written:
        text = (
            "Marked: the longest passage that a sample shares word for word with the training text."
        )
        yield Paragraph(text)
    for i, (seed, samples) in enumerate(written.items()):
        yield Samples(seed, samples, open=i == 0)


def _chance(result: StudyResult) -> list[Block]:
    family = result.family
    looks, plan = (", ".join(map(str, numbers)) for numbers in (family.looks, family.plan))
    spent = (
        f"Looks declared before any result: at {plan} seeds. Looked at: {looks} seeds. The error "
        f"of {family.alpha:.3g} is spent over the declared looks; this one's level is "
        f"{family.level:.3g}."
    )
    blocks: list[Block] = [Bullets((*result.chance, spent))]
    if not tables.compared(result):
        return [Bullets(tuple(result.chance))] if result.chance else []
    text = "What pairing by seed bought: the intervals' widths had the runs not shared seeds."
    return [*blocks, Paragraph(text), tables.pairing(result)]


def _receipts(result: StudyResult) -> list[Block]:
    receipts = tables.receipts(result)
    blocks: list[Block] = [tables.runs(result)]
    if not receipts.rows:
        return blocks
    text = (
        "Equal digests: the same tokens (store), the same batches in the same order (order), the "
        "same initial weights of a part. They are shortened here; results.json has them whole."
    )
    return [*blocks, Paragraph(text), receipts]


def _again(result: StudyResult) -> list[Block]:
    machine = {**result.device, "threads": result.threads}
    return [
        Command(result.command),
        tables.facts("device", machine),
        tables.facts("versions", result.versions),
        tables.facts("corpus", result.corpus),
    ]
