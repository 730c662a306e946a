"""Made-up studies in the form that real ones are reported in."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import random
from typing import Any

from llama_lab.studies.conclusions import ComparisonFamily, Runs, describe_family
from llama_lab.studies.results import ArmResult, Decoding, Point, RunResult, Score, StudyResult

TRAINING = "It was the best of times, it was the worst of times, it was the age of wisdom"
STEPS = 600
SEEDS = (1, 2, 3, 4, 5)
# Of each arm: what it adds to the base's loss, and what differs.
EFFECTS = {
    "llama": (0.0, {}),
    "layernorm": (0.004, {"model.decoder.norm.kind": ["rmsnorm", "layernorm"]}),
    "learned positions": (0.06, {"model.decoder.position.kind": ["rope", "learned"]}),
    "swiglu, wider by a third": (
        -0.03,
        {
            "model.decoder.feed_forward.hidden_dim": [None, 512],
            "model.decoder.feed_forward.multiple_of": [32, None],
        },
    ),
}


def digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def curve(final: float, rng: random.Random, pace: float, steps: int) -> list[Point]:
    points = []
    for step in range(0, steps + 1, 10):
        loss = final + 2.6 * math.exp(-step / 90) + rng.gauss(0, 0.004)
        validated = step % 50 == 0
        points.append(
            Point(
                step=step,
                tokens=step * 4096,
                flops=step * 4096 * 5.1e6,
                seconds=step * pace,
                train_loss=loss - 0.05 + rng.gauss(0, 0.02),
                val_loss=loss if validated else None,
                val_bits_per_byte=loss / math.log(2) * 0.98 if validated else None,
            )
        )
    return points


def finished_run(arm: str, seed: int, effect: float, scores: bool) -> RunResult:
    rng = random.Random(digest(arm, seed))
    final = 1.21 + effect + random.Random(seed).gauss(0, 0.02) + rng.gauss(0, 0.003)
    points = curve(final, rng, 0.11 * rng.uniform(0.97, 1.06), STEPS)
    losses = [p.val_loss for p in points if p.val_loss is not None]
    best = min(p.val_bits_per_byte for p in points if p.val_bits_per_byte is not None)
    contexts = (128, 256, 512, 1024) if scores else ()
    refused = arm == "learned positions"
    return RunResult(
        arm=arm,
        seed=seed,
        end="finished",
        folder=f"{arm}/seed_{seed}",
        primary=best,
        steps=STEPS,
        tokens=STEPS * 4096,
        seconds=points[-1].seconds,
        last_loss=losses[-1],
        best_loss=min(losses),
        best_step=STEPS,
        tokens_per_second=4096 / 0.11,
        peak_bytes=412 * 2**20 + seed,
        steps_to_base_best=STEPS if effect <= 0 else None,
        seconds_to_base_best=points[-1].seconds if effect <= 0 else None,
        passes=5.87,
        causal=True,
        decoding=Decoding(context=1024, tokens_per_second=310.5 + seed, cache_bytes=6 * 2**20),
        scores=[
            Score(
                name=f"context {context}",
                val_loss=None if refused and context > 128 else final + math.log(context) / 40,
                val_bits_per_byte=None if refused and context > 128 else best + context / 4000,
                refused="learned positions end at 128" if refused and context > 128 else None,
            )
            for context in contexts
        ],
        curve=points,
        sample=f"The king said, {TRAINING[:51]}, and then it was over.\n\n" * 3,
        passage=TRAINING[:51],
        receipt={
            "store": {"sha256": digest("store")},
            "order": digest("order", seed)[:32],
            "initial_weights": {
                "attention": digest("attention", seed),
                "feed_forward": digest("feed_forward", seed, "wider" in arm),
                "embedding": digest("embedding", seed),
            },
        },
    )


def diverged(run: RunResult) -> RunResult:
    points = [dataclasses.replace(p) for p in run.curve if p.step <= 210]
    last = dataclasses.replace(points[-1], train_loss=math.nan, val_loss=math.inf)
    return dataclasses.replace(
        run,
        end="diverged",
        reason="training loss nan at step 210",
        primary=None,
        steps=210,
        seconds=23.1,
        last_loss=math.nan,
        scores=[],
        decoding=None,
        sample="",
        passage="",
        curve=[*points[:-1], last],
    )


def arm_result(name: str, effect: float, changes: dict[str, Any], **asked: Any) -> ArmResult:
    seeds, scores = asked["seeds"], asked["scores"]
    runs = [finished_run(name, seed, effect, scores) for seed in seeds]
    return ArmResult(
        name=name,
        reference="llama",
        changes=changes,
        parameters=842_112 + round(1e5 * abs(effect)),
        flops_per_token=5_100_000,
        cache_bytes_per_token=6_144,
        steps=STEPS,
        matched="hidden_dim 352 to 360; 0.3 % more parameters remain" if "wider" in name else "",
        tuned={
            "chosen": {"model.optimizer.lr": 0.003},
            "trials": [
                {"values": {"model.optimizer.lr": lr}, "seed": 101, "primary": p, "end": end}
                for lr, p, end in (
                    (0.001, 1.81, "finished"),
                    (0.003, 1.74, "finished"),
                    (0.03, None, "out_of_memory"),
                )
            ],
        },
        runs=runs,
    )


def conclude(arms: list[ArmResult], seeds: tuple[int, ...]) -> ComparisonFamily:
    """The family of these arms, by the statistics that judge real studies."""
    runs = {
        arm.name: Runs(
            values={run.seed: run.primary for run in arm.runs if run.primary is not None},
            lost={run.seed: "diverged" for run in arm.runs if run.primary is None},
        )
        for arm in arms
    }
    base = runs.pop("llama")
    return describe_family(base, runs, seeds)


def study(
    *, seeds: tuple[int, ...] = SEEDS, copies: int = 1, scores: bool = True, failed: bool = True
) -> StudyResult:
    """Four arms (``copies`` of each but the base), of which one run diverged."""
    arms = []
    for copy in range(copies):
        for name, (effect, changes) in EFFECTS.items():
            if copy and not changes:
                continue
            named = f"{name} {copy + 1}" if copy else name
            arms.append(arm_result(named, effect, changes, seeds=seeds, scores=scores))
    if failed:
        arms[2].runs[-1] = diverged(arms[2].runs[-1])
    return StudyResult(
        name="swap-parts",
        description="Which part of LLaMA pays on this corpus, one at a time?",
        expectation="RMSNorm and LayerNorm level; learned positions a little worse.",
        measure="best val_bits_per_byte",
        base="llama",
        seeds=list(seeds),
        arms=arms,
        family=conclude(arms, seeds),
        chance=["A seed varies initialisation and data order.", "The split stays fixed."],
        notes=["Context differs on purpose."],
        threads=1,
        device={"kind": "cpu", "name": "x86_64", "precision": "32-true"},
        versions={"python": "3.11.7", "llama_lab": "0.1.0", "torch": "2.13.0"},
        corpus={
            "corpus": "python-reference",
            "corpus_sha256": digest("corpus"),
            "train": {"characters": 418_543, "bytes": 419_604, "tokens": 418_543},
        },
        command="llama-lab ablate --config configs/studies/swap-parts.yaml",
    )
