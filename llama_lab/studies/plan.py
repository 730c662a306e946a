"""The plan of a study: every arm parsed by ``fit``, compared with the base, and matched.

Whatever would make a comparison unfair is refused here, before anything is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llama_lab.errors import UserError
from llama_lab.studies.matching import MATCHES
from llama_lab.studies.planned_arms import CONTEXT, PlannedArm, Resolver
from llama_lab.studies.study import Difference, Study

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
