"""The study file: a base, seeds, arms as changes to the base, a budget, one primary measure.

Nothing here knows what a setting means: that is for ``fit``, which every arm is parsed by.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from llama_lab.configs import check_run_name, find_study, nearest, read_yaml
from llama_lab.errors import UserError

Match = Literal["none", "parameters", "flops", "time"]
Measure = Literal["val_bits_per_byte", "val_loss"]
UNITS: dict[Measure, str] = {"val_bits_per_byte": "bits per byte", "val_loss": "nats per token"}
When = Literal["best", "last"]
Difference = Literal["tokenizer", "context", "batch"]
Changes = dict[str, Any]

SHORTHANDS = ("add_one", "leave_one_out", "factorial")
ALL = "all"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One variant of the base."""

    name: str
    reference: str
    """The arm that it is compared with; its own name for the base."""
    changes: Changes
    """Settings by dotted name, on top of the config."""
    config: str | None = None
    """A config of its own in the place of the study's base."""
    seed_offset: int = 0
    """Added to each of the study's seeds: an arm that differs in nothing else measures chance."""


@dataclass(frozen=True, kw_only=True)
class Decode:
    """Generation at the end of a long text, timed after each run."""

    context: int
    tokens: int = 64


@dataclass(frozen=True, kw_only=True)
class Study:
    """A study as its file states it, shorthands written out."""

    name: str
    base: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    description: str = ""
    expectation: str = ""
    settings: Changes = field(default_factory=dict)
    """What every arm has on top of its config, by dotted name."""
    measure: Measure = "val_bits_per_byte"
    when: When = "best"
    match: Match = "none"
    tune: dict[str, list[Any]] = field(default_factory=dict)
    tune_seeds: tuple[int, ...] = ()
    looks: tuple[int, ...] = ()
    """Numbers of seeds at which the results are to be looked at, declared beforehand."""
    differ: tuple[Difference, ...] = ()
    """In what arms may differ on purpose."""
    scores: dict[str, Changes] = field(default_factory=dict)
    """Settings under which the last weights of every run are scored, by name."""
    decode: Decode | None = None
    probe: bool = False
    """Whether the causality probe looks at every run."""

    @property
    def reference_arm(self) -> Arm:
        """The first arm that is its own reference."""
        return next(arm for arm in self.arms if arm.reference == arm.name)

    def trials(self) -> list[Changes]:
        """Every combination of the values to tune over; one empty one where nothing is tuned."""
        values = itertools.product(*self.tune.values())
        return [dict(zip(self.tune, combination, strict=True)) for combination in values]


def read_study(
    name: str, overrides: Changes | None = None, seeds: list[int] | None = None
) -> tuple[Study, Path]:
    """The study in a file, and the file.

    Args:
        name: A path, or the name of a file in a folder ``studies/`` of the configs.
        overrides: Settings of the command line, by dotted name; they win over the file's.
        seeds: In the place of the file's.

    Raises:
        UserError: It is not there, or not a study.
    """
    path = find_study(name)
    content = read_yaml(path)
    if seeds is not None:
        content["seeds"] = seeds
    content["settings"] = {**flat(group(content, "settings"), "settings"), **(overrides or {})}
    return parse_study(path.stem, content), path


def parse_study(stem: str, content: Mapping[str, Any]) -> Study:
    """A study from the plain content of its file.

    Raises:
        UserError: A key, a value or an arm cannot be.
    """
    keys = {
        *("name", "description", "expectation", "base", "settings", "seeds", "arms"),
        *("measure", "when", "match", "tune", "tune_seeds", "looks", "differ"),
        *("scores", "decode", "probe"),
        *SHORTHANDS,
    }
    refuse_unknown(content, keys, "study")
    name = check_run_name(str(content.get("name", stem)))
    require(isinstance(content.get("base"), str), "base", content.get("base"), "name a config")
    seeds = whole_numbers(content.get("seeds"), "seeds")
    require(bool(seeds), "seeds", content.get("seeds"), "give at least one, such as [0, 1, 2]")
    tune = {
        key: as_list(values, f"tune.{key}")
        for key, values in flat(group(content, "tune"), "tune").items()
    }
    tune_seeds = whole_numbers(content.get("tune_seeds") or [], "tune_seeds")
    require(
        bool(tune) or not tune_seeds, "tune_seeds", list(tune_seeds),
        "it would do nothing: nothing is tuned; give tune, or leave it out",
    )  # fmt: skip
    if tune and not tune_seeds:
        tune_seeds = (max(seeds) + 1000,)
    require(
        not set(tune_seeds) & set(seeds), "tune_seeds", list(tune_seeds),
        "a value must not be chosen on a seed of the result; take others",
    )  # fmt: skip
    looks = whole_numbers(content.get("looks") or [], "looks")
    require(
        all(look >= 2 for look in looks) and sorted(set(looks)) == list(looks),
        "looks", list(looks), "numbers of seeds in rising order, from 2",
    )  # fmt: skip
    decode, probe = content.get("decode"), content.get("probe", False)
    require(isinstance(probe, bool), "probe", probe, "give true or false")
    return Study(
        name=name,
        base=content["base"],
        arms=tuple(_arms(content)),
        seeds=seeds,
        description=one_text(content, "description"),
        expectation=one_text(content, "expectation"),
        settings=flat(group(content, "settings"), "settings"),
        measure=choice(content, "measure", Measure, "val_bits_per_byte"),
        when=choice(content, "when", When, "best"),
        match=choice(content, "match", Match, "none"),
        tune=tune,
        tune_seeds=tune_seeds,
        looks=looks,
        differ=_differ(content),
        scores={
            str(key): flat(changes or {}, f"scores.{key}")
            for key, changes in group(content, "scores").items()
        },
        decode=None if decode is None else _decode(decode),
        probe=probe,
    )


# ---- arms ----------------------------------------------------------------------------------------


def _arms(content: Mapping[str, Any]) -> list[Arm]:
    """The base, what shorthands make of it, and the arms that are written out."""
    arms = [Arm(name="base", reference="base", changes={})]
    for shorthand in SHORTHANDS:
        if shorthand in content:
            changes = _named_changes(content[shorthand], shorthand)
            arms += EXPANSIONS[shorthand](changes)
    for name, changes in group(content, "arms").items():
        arms.append(_written_out(check_run_name(str(name)), changes or {}))
    for arm in arms[1:]:
        if arm.name == "base":  # written out to give the base a name or a config of its own
            arms = [arm if a.name == "base" else a for a in arms if a is not arm]
    names = [arm.name for arm in arms]
    doubled = sorted({name for name in names if names.count(name) > 1})
    # leave_one_out and factorial may both make the arm with every change.
    merged = {arm.name: arm for arm in reversed(arms)}
    for name in doubled:
        same = {repr(sorted(arm.changes.items())) for arm in arms if arm.name == name}
        require(len(same) == 1, f"arms.{name}", name, "two arms have this name; rename one")
    arms = [merged[name] for name in dict.fromkeys(names)]
    require(len(arms) > 1, "arms", None, "a study compares: add arms, add_one, … beside the base")
    known = {arm.name for arm in arms}
    for arm in arms:
        require(
            arm.reference in known, f"arms.{arm.name}.reference", arm.reference,
            f"no such arm; there are {', '.join(sorted(known))}",
        )  # fmt: skip
    return arms


def _written_out(name: str, changes: Mapping[str, Any]) -> Arm:
    require(isinstance(changes, Mapping), f"arms.{name}", changes, "give settings: `name: value`")
    rest = dict(changes)
    config, reference = rest.pop("config", None), rest.pop("reference", "base")
    (offset,) = whole_numbers([rest.pop("seed_offset", 0)], f"arms.{name}.seed_offset")
    return Arm(
        name=name,
        reference=name if name == "base" else str(reference),
        changes=flat(rest, f"arms.{name}"),
        config=None if config is None else str(config),
        seed_offset=offset,
    )


def _named_changes(value: Any, shorthand: str) -> dict[str, Changes]:
    require(
        isinstance(value, Mapping) and bool(value), shorthand, value, "give `name: settings` lines"
    )
    return {
        check_run_name(str(name)): flat(changes or {}, f"{shorthand}.{name}")
        for name, changes in value.items()
    }


def add_one(changes: Mapping[str, Changes]) -> list[Arm]:
    """The base plus each change."""
    return [
        Arm(name=f"plus-{name}", reference="base", changes=change)
        for name, change in changes.items()
    ]


def leave_one_out(changes: Mapping[str, Changes]) -> list[Arm]:
    """The target, which is the base plus all changes, and the target minus each."""
    target = Arm(name=ALL, reference="base", changes=union(changes.values()))
    rest = [
        Arm(
            name=f"{ALL}-minus-{name}",
            reference=ALL,
            changes=union(change for other, change in changes.items() if other != name),
        )
        for name in changes
    ]
    return [target, *rest]


def factorial(changes: Mapping[str, Changes]) -> list[Arm]:
    """Every combination of the changes but the empty one, which is the base."""
    combinations = itertools.chain.from_iterable(
        itertools.combinations(changes, k) for k in range(1, len(changes) + 1)
    )
    return [
        Arm(
            name="-and-".join(names),
            reference="base",
            changes=union(changes[name] for name in names),
        )
        for names in combinations
    ]


EXPANSIONS = {"add_one": add_one, "leave_one_out": leave_one_out, "factorial": factorial}


def union(changes: Iterable[Changes]) -> Changes:
    """All of the changes together; where two speak of one setting, the later wins."""
    return {key: value for change in changes for key, value in change.items()}


# ---- reading values ------------------------------------------------------------------------------


def flat(values: Any, where: str) -> Changes:
    """Settings by dotted name, however they were nested.

    Raises:
        UserError: They are no settings.
    """
    require(isinstance(values, Mapping), where, values, "give settings: `name: value`")
    leaves: Changes = {}
    for key, value in values.items():
        below = flat(value, where) if isinstance(value, Mapping) and value else None
        found = {key: value} if below is None else {f"{key}.{n}": v for n, v in below.items()}
        for name in leaves.keys() & found.keys():
            raise UserError(f"study: {where}: {name} stands twice, once with its group; keep one")
        leaves |= found
    return leaves


def require(condition: bool, key: str, value: Any, remedy: str) -> None:
    """Refuse a value of the study's file."""
    if not condition:
        raise UserError(f"study: {key} {value!r}: {remedy}")


def group(content: Mapping[str, Any], key: str) -> Mapping[Any, Any]:
    """What stands under a key that holds `name: value` lines; nothing where it is absent."""
    value = content.get(key)
    value = {} if value is None else value
    require(isinstance(value, Mapping), key, value, "give `name: value` lines")
    return value


def refuse_unknown(content: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Refuse a misspelt key."""
    for key in content:
        if key not in known:
            guess = nearest(str(key), known)
            hint = f"did you mean {guess}?" if guess else f"there are {', '.join(sorted(known))}"
            raise UserError(f"{where}: no setting {key!r}; {hint}")


def is_whole(value: Any) -> bool:
    """Whether YAML gave a whole number: true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole_numbers(value: Any, key: str) -> tuple[int, ...]:
    """Distinct whole numbers from 0; a single number n stands for 0 … n - 1."""
    if is_whole(value):
        value = list(range(value))
    if isinstance(value, list):
        value = [int(n) if isinstance(n, float) and n.is_integer() else n for n in value]
    fits = isinstance(value, list) and all(is_whole(n) and 0 <= n < 2**32 for n in value)
    require(fits, key, value, "give a list of whole numbers, or how many")
    require(len(set(value)) == len(value), key, value, "a number is there twice")
    return tuple(value)


def as_list(value: Any, key: str) -> list[Any]:
    """The values to try."""
    require(isinstance(value, list) and len(value) > 1, key, value, "give two values or more")
    return list(value)


def one_text(content: Mapping[str, Any], key: str) -> str:
    """A text, on one line."""
    return " ".join(str(content.get(key) or "").split())


def choice(content: Mapping[str, Any], key: str, kinds: Any, default: str) -> Any:
    """One of the words of a ``Literal``."""
    value, words = content.get(key) or default, get_args(kinds)
    require(value in words, key, value, f"choose one of {', '.join(words)}")
    return value


def _differ(content: Mapping[str, Any]) -> tuple[Difference, ...]:
    value, words = content.get("differ") or [], get_args(Difference)
    fits = isinstance(value, list) and all(word in words for word in value)
    require(fits, "differ", value, f"give a list of {', '.join(words)}")
    bytes_measure = (content.get("measure") or "val_bits_per_byte") == "val_bits_per_byte"
    require(
        not value or bytes_measure, "differ", value,
        "arms that differ in this compare in bits per byte alone: set measure val_bits_per_byte",
    )  # fmt: skip
    return tuple(value)


def _decode(value: Any) -> Decode:
    require(isinstance(value, Mapping), "decode", value, "give context and tokens")
    refuse_unknown(value, ("context", "tokens"), "study: decode")
    decode = Decode(context=value.get("context", 0), tokens=value.get("tokens", 64))
    fits = all(is_whole(n) and n > 0 for n in (decode.context, decode.tokens))
    require(fits, "decode", dict(value), "give whole numbers above 0")
    return decode
