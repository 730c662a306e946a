"""Which settings a run refuses: those that would do nothing, and those a checkpoint decides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llama_lab.checkpoints import Record
from llama_lab.errors import UserError
from llama_lab.model.settings import shown

TRAINER_DEFAULTS: dict[str, Any] = {
    "max_steps": 1000,
    "val_check_interval": 100,
    "log_every_n_steps": 10,
    "gradient_clip_val": 1.0,
    "precision": "32-true",
    "max_epochs": -1,
    "check_val_every_n_epoch": None,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
    "enable_model_summary": False,
    "enable_autolog_hparams": False,
}

# Trainer settings that this project decides, with the reason and the way out.
DECIDED: dict[str, tuple[tuple[Any, ...], str]] = {
    "max_epochs": ((-1, None), "the budget is --trainer.max_steps"),
    "min_epochs": ((None,), "the budget is --trainer.max_steps"),
    "min_steps": ((None,), "the budget is --trainer.max_steps"),
    "check_val_every_n_epoch": (
        (None,),
        "batches have no epochs; use --trainer.val_check_interval",
    ),
    "use_distributed_sampler": ((False,), "each process computes which sequences are its own"),
    "reload_dataloaders_every_n_epochs": ((0,), "batches have no epochs"),
    "limit_train_batches": ((None, 1.0), "shorten a run with --trainer.max_steps"),
    "limit_val_batches": ((None, 1.0), "validation scores every target once"),
    "limit_test_batches": ((None, 1.0), "the test scores every target once"),
    "overfit_batches": ((0, 0.0), "give a short text with --data.corpus"),
    "fast_dev_run": ((False,), "for a quick try set --trainer.max_steps 2"),
    "barebones": ((False,), "a run keeps its records"),
    "enable_checkpointing": ((None, True), "a run can always be resumed"),
    "enable_model_summary": ((None, False), "see `llama-lab describe`"),
    "enable_autolog_hparams": ((False,), "the settings are in config.yaml"),
    "num_sanity_val_steps": ((0,), "data and sizes are checked before the first step"),
}

# What may change when a run is resumed; everything else must be as it was.
FREE_ON_RESUME = (
    "ckpt_path",
    "config",
    "trainer.accelerator",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.strategy",
    "trainer.plugins",
    "trainer.sync_batchnorm",
    "trainer.accumulate_grad_batches",
    "trainer.precision",
    "trainer.log_every_n_steps",
    "trainer.logger",
    "trainer.callbacks",
    "trainer.profiler",
    "trainer.enable_progress_bar",
    "trainer.default_root_dir",
    "trainer.max_steps",
    "trainer.max_time",
    "data.num_workers",
    "data.cache_dir",
    "data.corpus",  # the tokens themselves are compared
)
# What scoring may choose: the text and the machine, not the model.
FREE_TO_SCORE = ("ckpt_path", "config", "trainer", "data")
FIXED_TO_SCORE = ("data.tokenizer", "data.vocab_size")
# What comes with weights, and what of that a new run may still choose.
OF_WEIGHTS = ("model.decoder", "data.tokenizer", "data.vocab_size")
FREE_WITH_WEIGHTS = (
    "model.decoder.dropout",
    "model.decoder.init",
    "model.decoder.context_length",
)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted names; lists and empty groups are leaves."""
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            leaves |= flatten(value, f"{name}.")
        else:
            leaves[name] = value
    return leaves


def saved_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are kept with a run: all but where they came from."""
    return {k: v for k, v in config.items() if k not in ("config", "ckpt_path")}


def settings_for(verb: str, record: Record) -> dict[str, Any]:
    """The checkpoint's settings as far as they decide what ``verb`` does.

    Scoring keeps the precision of the run; which devices it trained on says nothing about those
    at hand now.

    Raises:
        UserError: ``fit`` is to resume a model that was imported.
    """
    if verb == "fit":
        if "imported" in record.progress:
            raise UserError(
                f"--ckpt_path {record.path}: was imported, so there is no run to go on with; begin "
                f"a new one from its weights with --model.init_from {record.path}"
            )
        return dict(record.config)
    kept = {k: v for k, v in record.config.items() if k not in ("checkpoint_every", "trainer")}
    return {**kept, "trainer": {"precision": record.config["trainer"]["precision"]}}


def settings_of_weights(record: Record) -> dict[str, Any]:
    """The settings that a checkpoint's weights bring into a new run."""
    data = record.config["data"]
    return {
        "model": {"decoder": record.config["model"]["decoder"]},
        "data": {key: data[key] for key in ("tokenizer", "vocab_size")},
    }


def refuse_contradictions(use: str, record: Record, explicit: Mapping[str, Any]) -> None:
    """Refuse explicit settings that differ from the checkpoint's where the checkpoint decides.

    Args:
        use: ``fit`` (resume), ``validate``, ``test``, or ``init_from``.
        record: The checkpoint.
        explicit: Dotted settings from config files, environment and command line.

    Raises:
        UserError: It names every such setting with both values.
    """
    saved = flatten(record.config)
    differing = [
        f"--{name} is {shown(saved.get(name))} there and {shown(value)} here"
        for name, value in explicit.items()
        if _decided(use, name) and _plain(saved.get(name)) != _plain(value)
    ]
    if not differing:
        return
    remedy = {
        "fit": "leave them out to go on with this run, or begin a new one from its weights with "
        "--model.init_from",
        "init_from": "leave them out, or begin without --model.init_from",
    }.get(use, "leave them out: the checkpoint decides them")
    raise UserError(f"checkpoint {record.path}: {'; '.join(differing)}; {remedy}")


def _decided(use: str, name: str) -> bool:
    if use == "fit":
        return not _under(name, FREE_ON_RESUME)
    if use == "init_from":
        return _under(name, OF_WEIGHTS) and not _under(name, FREE_WITH_WEIGHTS)
    return _under(name, FIXED_TO_SCORE) or not _under(name, FREE_TO_SCORE)


def _under(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def _plain(value: Any) -> Any:
    """A value as JSON gives it back: tuples are lists, 1 equals 1.0."""
    return json.loads(json.dumps(value, default=str))


def check_run(verb: str, config: Any, record: Record | None) -> None:
    """Rules on the settings of the trainer and the run.

    Raises:
        UserError: A setting would break what the project promises, or do nothing.
    """
    trainer = config["trainer"]
    seed = config["seed_everything"]
    _require(
        isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**32,
        f"--seed_everything {shown(seed)}: a run is repeatable; give a number from 0 to 2**32 - 1",
    )
    for name, (allowed, reason) in DECIDED.items():
        value = trainer[name]
        _require(
            value in allowed,
            f"--trainer.{name} {shown(value)} does not apply here: {reason}; "
            f"set --trainer.{name} {shown(allowed[0])}",
        )
    _require(
        trainer["logger"] is not False,
        "--trainer.logger false: metrics.csv and TensorBoard are how runs are compared; "
        "set --trainer.logger null",
    )
    if not trainer["gradient_clip_val"] and trainer["gradient_clip_algorithm"]:
        raise UserError(
            f"--trainer.gradient_clip_algorithm {trainer['gradient_clip_algorithm']} would do "
            "nothing: there is no --trainer.gradient_clip_val; "
            "set --trainer.gradient_clip_algorithm null"
        )
    if verb == "fit":
        _check_budget(config, record)


def _check_budget(config: Any, record: Record | None) -> None:
    trainer = config["trainer"]
    steps, interval = trainer["max_steps"], trainer["val_check_interval"]
    _require(steps >= 1, f"--trainer.max_steps {steps}: must be 1 or more; it is the budget")
    _require(
        isinstance(interval, int) and not isinstance(interval, bool) and interval >= 1,
        f"--trainer.val_check_interval {shown(interval)}: counts optimiser steps; "
        "give a whole number from 1",
    )
    every, log_every = config["checkpoint_every"], trainer["log_every_n_steps"]
    _require(every is None or every >= 1, f"--checkpoint_every {every}: must be 1 or more, or null")
    _require(
        log_every is None or log_every >= 1,
        f"--trainer.log_every_n_steps {log_every}: must be 1 or more",
    )
    warmup = config["model"]["schedule"]["warmup_steps"]
    if record is not None:
        before = record.config["trainer"]["max_steps"]
        _require(
            record.step < steps,
            f"checkpoint {record.path} is at step {record.step:,} already and --trainer.max_steps "
            f"is {steps:,}: nothing is left to train; raise --trainer.max_steps",
        )
        if steps != before:
            print(
                f"--trainer.max_steps was {before:,} and is {steps:,} now: the learning-rate "
                f"schedule is restated over {steps:,} steps (warmup {warmup})"
            )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)
