"""Results of a study, in the form of ``results.json``, from which every report is made.

Plain numbers, strings, lists and dicts all the way down, so that ``dataclasses.asdict`` is the
file. Losses are nats per token, times seconds, sizes bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from llama_lab.studies.conclusions import ComparisonFamily

RunEnd = Literal[
    "finished", "diverged", "out_of_memory", "crashed", "refused", "stopped", "waiting"
]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One logged step of a run; what was not measured there is null."""

    step: int
    tokens: int
    flops: float
    """Of training, up to this step."""
    seconds: float
    """Of training alone, up to this step: validation is not in it."""
    train_loss: float | None = None
    val_loss: float | None = None
    val_bits_per_byte: float | None = None


@dataclass(frozen=True, kw_only=True)
class Score:
    """The last weights of a run, scored under other settings (a longer context, say)."""

    name: str
    val_loss: float | None
    val_bits_per_byte: float | None
    refused: str | None = None
    """Why there is no score, in the words of ``validate``."""


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Generation at the end of a long text."""

    context: int
    tokens_per_second: float
    cache_bytes: int


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One arm with one seed."""

    arm: str
    seed: int
    end: RunEnd
    reason: str = ""
    """Why it did not finish, one line."""
    folder: str = ""
    """Under the study's folder."""
    primary: float | None = None
    """The study's measure; null unless the run is finished."""
    steps: int = 0
    tokens: int = 0
    seconds: float | None = None
    last_loss: float | None = None
    best_loss: float | None = None
    best_step: int | None = None
    tokens_per_second: float | None = None
    """Median over the log intervals."""
    peak_bytes: int | None = None
    """On CUDA the allocator's peak, on the CPU how far the process grew; null where unknown."""
    steps_to_base_best: int | None = None
    """First validation at which the loss was at or below the reference's best of this seed."""
    seconds_to_base_best: float | None = None
    passes: float | None = None
    """How often the training text was read."""
    causal: bool | None = None
    """What the causality probe found, where the study asks for it."""
    decoding: Decoding | None = None
    scores: list[Score] = field(default_factory=list)
    curve: list[Point] = field(default_factory=list)
    sample: str = ""
    passage: str = ""
    """The longest passage that the sample shares word for word with the training text."""
    receipt: dict[str, Any] = field(default_factory=dict)
    """``receipt.json``, without the settings."""


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """One variant."""

    name: str
    reference: str
    """The arm that it is compared with; its own name where it is compared with none."""
    changes: dict[str, list[Any]]
    """Settings that differ from the reference's: dotted name to [there, here]."""
    parameters: int
    flops_per_token: int
    """Training: forward and backward, at the arm's context."""
    cache_bytes_per_token: int
    steps: int
    matched: str = ""
    """What was adjusted to match the reference, and what difference remains; empty for none."""
    tuned: dict[str, Any] = field(default_factory=dict)
    """``chosen`` (dotted name to value) and ``trials`` (a list of {values, seed, primary, end})."""
    runs: list[RunResult] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """Everything that a report shows."""

    name: str
    description: str
    expectation: str
    """What the literature leads one to expect, as the study's file says it."""
    measure: str
    """Of the primary measure: ``best val_bits_per_byte``, say. Lower is better."""
    base: str
    seeds: list[int]
    arms: list[ArmResult]
    family: ComparisonFamily
    """What the statistics say of every arm."""
    chance: list[str]
    """Which sources of chance a seed varies, and what stays fixed: a sentence each."""
    notes: list[str]
    """What a reader must know besides: differences allowed on purpose, arms that failed, …"""
    threads: int
    device: dict[str, Any]
    versions: dict[str, str]
    corpus: dict[str, Any]
    """The token store: corpus, its hash, characters, bytes and tokens of both parts."""
    command: str
    """What runs the study again."""
