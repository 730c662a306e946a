"""From a study's file to runs: every arm parsed by ``fit`` itself, held against the base, matched.

Whatever would make a comparison unfair is refused here, before anything is trained.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from llama_lab.configs import find_config
from llama_lab.data.store.preparation import prepare_store
from llama_lab.data.store.token_store import TokenStore, open_store
from llama_lab.errors import UserError
from llama_lab.inspect.accounting import cache_bytes, flops_per_token, on_meta, parameters_of
from llama_lab.lab.study import Arm, Changes, Difference, Match, Study, nested
from llama_lab.model.decoder import DecoderConfig
from llama_lab.model.settings import SettingError
from llama_lab.runs.arguments import flatten
from llama_lab.runs.command_line import LabCLI
from llama_lab.yaml_text import dump_yaml

# What the study decides for every run.
OF_THE_STUDY = ("name", "seed_everything", "ckpt_path", "trainer.default_root_dir")
CONTEXT = "data.context_length"
# What arms may differ in only where the study says so, and under which name it does.
ON_PURPOSE: dict[str, Difference] = {
    "data.tokenizer": "tokenizer",
    "data.vocab_size": "tokenizer",
    "data.batch_size": "batch",
    CONTEXT: "context",
}
# What makes two arms do other work: nothing excuses it.
NEVER = (
    "data.corpus",
    "data.encoding",
    "data.separator",
    "data.begin_of_text",
    "data.val_fraction",
    "trainer.max_steps",
    "trainer.val_check_interval",
)
HIDDEN_DIM = "model.decoder.feed_forward.hidden_dim"
WIDTH_STEP = 8
"""Widths of the feed-forward are matched in multiples of this."""


@dataclass(frozen=True, kw_only=True)
class PlannedArm:
    """An arm as ``fit`` resolved it, with the vocabulary that its store gives it."""

    arm: Arm
    extra: Changes
    """What matching or tuning added to the arm's changes."""
    settings: dict[str, Any]
    """Every setting by dotted name; the seed is none of them."""
    decoder: DecoderConfig
    context: int
    batch_size: int
    steps: int
    device: str
    """Type of the device that the trainer found."""
    store: TokenStore
    matched: str = ""

    @staticmethod
    def comparable(config: Mapping[str, Any]) -> dict[str, Any]:
        """A run's settings, nested as in its receipt, as :attr:`settings` has them."""
        return {k: v for k, v in flatten(config).items() if k not in OF_THE_STUDY}

    @cached_property
    def parameters(self) -> int:
        """Of the whole model, tied tensors once."""
        return parameters_of(on_meta(self.decoder)).total

    @cached_property
    def flops_per_token(self) -> int:
        """Training, at the arm's context."""
        return flops_per_token(on_meta(self.decoder), self.context).training

    @cached_property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of one position in 16 bits."""
        import torch

        return cache_bytes(self.decoder, self.context, torch.bfloat16).per_token


@dataclass(frozen=True)
class Resolver:
    """Turns an arm into arguments of ``fit``, and those into what they mean.

    Attributes:
        study: What all arms share.
        logs: The folder ``logs`` that the runs' folders are in.
        stores: Token stores that are open already, by what they are made of.
        left_out: What the arms' lists leave out of their configs' lists, a line each.
    """

    study: Study
    logs: Path
    stores: dict[str, TokenStore] = dataclasses.field(default_factory=dict)
    left_out: dict[str, None] = dataclasses.field(default_factory=dict)

    def arguments(self, arm: Arm, extra: Changes) -> list[str]:
        """What ``fit`` is called with, but for seed and name."""
        config = arm.config or self.study.base
        find_config(config)
        changes = {**self.study.settings, **arm.changes, **extra}
        if taken := [key for key in changes if key in OF_THE_STUDY]:
            raise UserError(
                f"study: arm {arm.name} sets {taken[0]}, which the study decides; leave it out"
            )
        root = {"trainer.default_root_dir": str(self.logs.parent)}
        inline = dump_yaml(nested({**changes, **root}))
        return [f"--config={config}", f"--config={inline}", f"--name={arm.name}"]

    def plan(self, arm: Arm, extra: Changes, matched: str = "") -> PlannedArm:
        """Parse an arm as ``fit`` does.

        Raises:
            UserError: ``fit`` would refuse it; the arm is named.
        """
        try:
            cli = LabCLI("fit", self.arguments(arm, extra))
            store = self._open(cli)
            decoder = cli.model.with_vocabulary(store.tokenizer.vocab_size)
            on_meta(decoder)
        except (UserError, SettingError) as error:
            raise UserError(f"study: arm {arm.name}: {error}") from error
        settings = flatten(cli.settings)
        self.left_out.update(dict.fromkeys(f"arm {arm.name}: {left.said}" for left in cli.left_out))
        return PlannedArm(
            arm=arm,
            extra=extra,
            settings=PlannedArm.comparable(cli.settings),
            decoder=decoder,
            context=cli.datamodule.config.context_length or decoder.context_length,
            batch_size=cli.datamodule.config.batch_size,
            steps=settings["trainer.max_steps"],
            device=cli.trainer.strategy.root_device.type,
            store=store,
            matched=matched,
        )

    def _open(self, cli: LabCLI) -> TokenStore:
        if piped := cli.datamodule.piped:
            raise UserError(
                f"--data.corpus {', '.join(piped)}: a pipe is read once, and every run of a study "
                "looks for its text; save it to a file and name that"
            )
        request = cli.datamodule.request
        key = json.dumps(dataclasses.asdict(request), sort_keys=True, default=str)
        if key not in self.stores:
            self.stores[key] = open_store(prepare_store(request), request.name)
        return self.stores[key]


def plan_study(
    resolver: Resolver, seconds_per_step: Callable[[list[PlannedArm]], dict[str, float]]
) -> list[PlannedArm]:
    """Every arm of the study, matched and found fair.

    Args:
        resolver: Parses the arms.
        seconds_per_step: Times the training step of each arm; asked where time is matched.

    Raises:
        UserError: An arm is refused, or is not to be compared with the base.
    """
    study = resolver.study
    arms = [resolver.plan(arm, {}) for arm in study.arms]
    base = next(planned for planned in arms if planned.arm is study.reference_arm)
    for planned in arms:
        refuse_unfair(planned, base, study)
        refuse_out_of_reach(planned, study)
    refuse_idle_excuse(arms, base, study)
    times = seconds_per_step(arms) if study.match == "time" else {}
    return [
        planned if planned is base else MATCHES[study.match](resolver, planned, base, times)
        for planned in arms
    ]


def refuse_out_of_reach(planned: PlannedArm, study: Study) -> None:
    """Refuse to time generation behind more tokens than a model sees: it would drop the oldest.

    Raises:
        UserError: It names both.
    """
    decode, reach = study.decode, planned.decoder.context_length
    if decode is not None and decode.context + decode.tokens > reach:
        raise UserError(
            f"study: decode: {decode.context} + {decode.tokens} tokens are more than arm "
            f"{planned.arm.name}'s model.decoder.context_length {reach}; raise that (with "
            "data.context_length for the training), or decode fewer"
        )


def refuse_unfair(planned: PlannedArm, base: PlannedArm, study: Study) -> None:
    """Refuse an arm that would do other work than the base.

    Raises:
        UserError: It names the setting and both values.
    """
    for key, (here, there) in other_work(planned, base).items():
        excuse = ON_PURPOSE.get(key)
        if excuse not in study.differ:
            raise unfair(planned, key, here, there, excuse)


def other_work(planned: PlannedArm, base: PlannedArm) -> dict[str, tuple[Any, Any]]:
    """In what an arm does other work than the base: setting to its value here and there."""
    both = {
        key: (planned.settings.get(key), base.settings.get(key)) for key in (*NEVER, *ON_PURPOSE)
    }
    both[CONTEXT] = planned.context, base.context
    return {key: values for key, values in both.items() if values[0] != values[1]}


def refuse_idle_excuse(arms: list[PlannedArm], base: PlannedArm, study: Study) -> None:
    """Refuse to allow arms a difference that none of them has.

    Raises:
        UserError: It names the word.
    """
    used = {ON_PURPOSE.get(key) for planned in arms for key in other_work(planned, base)}
    for word in study.differ:
        if word not in used:
            raise UserError(
                f"study: differ: {word} does nothing, since all arms have the same; leave it out"
            )


def unfair(
    planned: PlannedArm, key: str, here: Any, there: Any, excuse: Difference | None
) -> UserError:
    """What to say of an arm that does other work."""
    remedy = (
        f"give all arms the same, or state `differ: [{excuse}]` to compare them in bits per byte"
        if excuse
        else "give all arms the same"
    )
    return UserError(
        f"study: arm {planned.arm.name} has {key} {here}, the base has {there}: they would not "
        f"do the same work; {remedy}"
    )


# ---- matching ------------------------------------------------------------------------------------


def match_none(
    resolver: Resolver, planned: PlannedArm, base: PlannedArm, times: Mapping[str, float]
) -> PlannedArm:
    """The arm as it is."""
    return planned


def match_parameters(
    resolver: Resolver, planned: PlannedArm, base: PlannedArm, times: Mapping[str, float]
) -> PlannedArm:
    """The feed-forward as wide as brings the parameters nearest to the base's."""
    return match_width(resolver, planned, base, "parameters", lambda arm: arm.parameters)


def match_flops(
    resolver: Resolver, planned: PlannedArm, base: PlannedArm, times: Mapping[str, float]
) -> PlannedArm:
    """The feed-forward as wide as brings a token's FLOPs nearest to the base's.

    The steps stay: so every arm still reads the same sequences.
    """
    return match_width(resolver, planned, base, "FLOPs a token", lambda arm: arm.flops_per_token)


def match_width(
    resolver: Resolver,
    planned: PlannedArm,
    base: PlannedArm,
    unit: str,
    count: Callable[[PlannedArm], int],
) -> PlannedArm:
    """Both counts are linear in the feed-forward's width, so two of them say which one fits."""
    target, now = count(base), count(planned)
    if now == target:
        return planned
    width = planned.decoder.feed_forward.width(planned.decoder.dim)
    other = dataclasses.replace(planned, decoder=with_width(planned.decoder, width + WIDTH_STEP))
    slope = (count(other) - now) / WIDTH_STEP
    wanted = max(1, round((width + (target - now) / slope) / WIDTH_STEP)) * WIDTH_STEP
    widths = {
        "model.decoder.feed_forward.multiple_of": None,
        "model.decoder.feed_forward.dim_multiplier": None,
        HIDDEN_DIM: wanted,
    }
    matched = resolver.plan(planned.arm, {**planned.extra, **widths})
    rest = count(matched) / target - 1
    words = (
        f"feed-forward {wanted} wide instead of {width}: {count(matched):,} {unit} against "
        f"{target:,} ({rest:+.2%})"
    )
    return dataclasses.replace(matched, matched=words)


def with_width(decoder: DecoderConfig, width: int) -> DecoderConfig:
    """The same decoder with a feed-forward of this hidden width."""
    feed_forward = dataclasses.replace(
        decoder.feed_forward, hidden_dim=width, multiple_of=None, dim_multiplier=None
    )
    return dataclasses.replace(decoder, feed_forward=feed_forward)


def match_time(
    resolver: Resolver, planned: PlannedArm, base: PlannedArm, times: Mapping[str, float]
) -> PlannedArm:
    """As many steps as take the base's time, by the timing at the study's first start."""
    here, there = times[planned.arm.name], times[base.arm.name]
    if not here or not there:  # one could not be timed, nor can it be trained: its runs will tell
        return planned
    steps = max(1, round(base.steps * there / here))
    if steps == planned.steps:
        return planned
    matched = resolver.plan(planned.arm, {**planned.extra, "trainer.max_steps": steps})
    rest = steps * here / (base.steps * there) - 1
    words = (
        f"{steps:,} steps of {1e3 * here:.1f} ms instead of {base.steps:,} of the base's "
        f"{1e3 * there:.1f} ms ({rest:+.2%} of its time)"
    )
    return dataclasses.replace(matched, matched=words)


MATCHES: dict[
    Match,
    Callable[[Resolver, PlannedArm, PlannedArm, Mapping[str, float]], PlannedArm],
] = {
    "none": match_none,
    "parameters": match_parameters,
    "flops": match_flops,
    "time": match_time,
}


def differences(planned: PlannedArm, reference: PlannedArm) -> dict[str, list[Any]]:
    """Settings that differ between two arms: dotted name to [of the reference, of the arm]."""
    here, there = planned.settings, reference.settings
    return {
        key: [there.get(key), here.get(key)]
        for key in sorted(here.keys() | there.keys())
        if here.get(key) != there.get(key)
    }
