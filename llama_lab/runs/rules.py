"""Rules of a run: settings that would do nothing, or that a checkpoint decides, are refused."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from typing import Any

from llama_lab.checkpoints import Record
from llama_lab.dotted_names import flatten
from llama_lab.errors import UserError
from llama_lab.model.settings import shown
from llama_lab.runs.arguments import FIT_ALONE
from llama_lab.runs.machine import STRATEGY_HELP, check_processes

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
    "sync_batchnorm": ((False,), "no norm of a decoder takes statistics over a batch"),
    "model_registry": ((None,), "a run keeps its checkpoints in its own folder"),
    "reload_dataloaders_every_n_epochs": ((0,), "batches have no epochs"),
    "max_time": ((None,), "the budget is --trainer.max_steps; Ctrl-C and SIGTERM save the run"),
    "limit_train_batches": ((None, 1.0), "shorten a run with --trainer.max_steps"),
    "limit_val_batches": ((None, 1.0), "validation scores every target once"),
    "limit_test_batches": ((None, 1.0), "the test scores every target once"),
    "limit_predict_batches": ((None, 1.0), "this command predicts nothing"),
    "overfit_batches": ((0, 0.0), "give a short text with --data.corpus"),
    "fast_dev_run": ((False,), "for a quick try set --trainer.max_steps 2"),
    "barebones": ((False,), "a run keeps its records"),
    "enable_checkpointing": ((None, True), "a run can always be resumed"),
    "enable_model_summary": ((None, False), "see `llama-lab describe`"),
    "enable_autolog_hparams": ((False,), "the settings are in config.yaml"),
    "num_sanity_val_steps": ((0,), "data and sizes are checked before the first step"),
}

# What Lightning's own words would get wrong here.
TRAINER_HELP = {
    "max_steps": "Number of optimiser steps of the run; the schedule follows it.",
    "val_check_interval": "Optimiser steps between validations; the last step always has one.",
    "log_every_n_steps": "Optimiser steps between logged metrics.",
    "accumulate_grad_batches": "Number of microbatches per optimiser step on each device.",
    "gradient_clip_val": "Norm to which gradients are clipped; null does not clip.",
    "enable_progress_bar": "Draw a bar on a terminal; false prints lines there too.",
    "default_root_dir": "Folder that logs/ is in; null means here.",
    "logger": "Loggers beside metrics.csv and TensorBoard, which every run has.",
    "callbacks": "Callbacks beside those of every run, such as EarlyStopping on val_loss.",
    "strategy": STRATEGY_HELP,
    "precision": "32-true, or bf16-mixed for weights in float32 and arithmetic in bfloat16.",
}


def trainer_help(name: str, words: str) -> str:
    """The line of a trainer's flag in ``--help``; none for what is decided here."""
    if name in DECIDED:
        return argparse.SUPPRESS
    return TRAINER_HELP.get(name) or words.partition(". ")[0].rstrip(".") + "."


HALF_PRECISIONS = (16, "16", "16-mixed", "16-true")
WEIGHTS_IN_HALF = ("16-true", "bf16-true")

# What may change when a run is resumed; everything else must be as it was.
FREE_ON_RESUME = (
    "ckpt_path",
    "config",
    "diagnostics_every",
    "keep_every",
    "trainer.accelerator",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.strategy",
    "trainer.tensor_parallel",
    "trainer.process_timeout",
    "trainer.plugins",
    "trainer.accumulate_grad_batches",
    "trainer.precision",
    "trainer.log_every_n_steps",
    "trainer.logger",
    "trainer.callbacks",
    "trainer.profiler",
    "trainer.enable_progress_bar",
    "trainer.default_root_dir",
    "trainer.max_steps",
    "model.compile",
    "model.checkpoint_activations",
    "data.num_workers",
    "data.cache_dir",
    "data.corpus",  # the tokens themselves are compared
    "data.val_corpus",
)
# What scoring may choose: the text and the machine, and of the model what has no weights and is
# tried on trained ones: the scaling of rope's angles, and a fault.
FREE_TO_SCORE = (
    "ckpt_path",
    "config",
    "trainer",
    "data",
    "model.compile",
    "model.checkpoint_activations",
    "model.decoder.position.rope_scaling",
    "model.fault",
)
FIXED_TO_SCORE = ("data.tokenizer", "data.vocab_size")
IDLE_TO_SCORE = (
    "trainer.max_steps",
    "trainer.val_check_interval",
    "trainer.log_every_n_steps",
    "trainer.gradient_clip_val",
    "trainer.gradient_clip_algorithm",
    "trainer.accumulate_grad_batches",
    "trainer.detect_anomaly",
    "data.num_workers",
    "model.init_from",
)
# Settings under which a corpus has the same token store.
OF_ONE_STORE = (
    "data.num_workers",
    "data.cache_dir",
    "data.batch_size",
    "data.context_length",
    "data.document_mask",
)
# What comes with weights, and what of that a new run may still choose.
OF_WEIGHTS = ("model.decoder", "data.tokenizer", "data.vocab_size")
FREE_WITH_WEIGHTS = (
    "model.decoder.dropout",
    "model.decoder.init",
    "model.decoder.context_length",
)


def saved_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are kept with a run: all but where they came from."""
    return {k: v for k, v in config.items() if k not in ("config", "ckpt_path")}


def settings_for(verb: str, record: Record) -> dict[str, Any]:
    """The checkpoint's settings as far as they decide what ``verb`` does.

    Scoring keeps the precision of the run; which devices it trained on, and whether its training
    repaid compiling, says nothing about those at hand now.
    """
    if verb == "fit":
        return dict(record.config)
    settings = record.settings
    left = ("trainer", *(flag.removeprefix("--") for flag in FIT_ALONE))
    kept = {k: v for k, v in settings.items() if k not in left}
    kept["model"] = {k: v for k, v in settings["model"].items() if k != "compile"}
    precision = settings.get("trainer", {}).get("precision", TRAINER_DEFAULTS["precision"])
    return {**kept, "trainer": {"precision": precision}}


def settings_of_weights(record: Record) -> dict[str, Any]:
    """The settings that a checkpoint's weights bring into a new run."""
    data = record.settings["data"]
    return {
        "model": {"decoder": record.settings["model"]["decoder"], "fault": record.fault},
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
    saved = flatten(record.settings)
    if use == "fit" and not record.resumable:
        raise UserError(
            f"checkpoint {record.path} lacks what a run needs to go on (its settings, optimiser or "
            f"loops); begin a new run from its weights with --model.init_from {record.path}"
        )
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


def remakes_store(record: Record, explicit: Mapping[str, Any]) -> bool:
    """Whether explicit settings ask for another token store than the checkpoint's run had."""
    saved = flatten(record.settings)
    return any(
        name.startswith("data.")
        and name not in OF_ONE_STORE
        and _plain(saved.get(name)) != _plain(value)
        for name, value in explicit.items()
    )


def tried_on(record: Record, explicit: Mapping[str, Any]) -> list[str]:
    """Settings of the model that scoring takes otherwise than the checkpoint's run had them."""
    saved = flatten(record.settings)
    return [
        f"--{name} {shown(value)} ({shown(saved.get(name))} in training)"
        for name, value in explicit.items()
        if name.startswith("model.")
        and name != "model.compile"
        and _plain(saved.get(name)) != _plain(value)
    ]


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
        seed is not None and 0 <= seed < 2**32,
        f"--seed_everything {shown(seed)}: a run is repeatable; give a number from 0 to 2**32 - 1",
    )
    for name, (allowed, reason) in DECIDED.items():
        value = trainer[name]
        _require(
            any(type(value) is type(a) and value == a for a in allowed),
            f"--trainer.{name} {shown(value)} does not apply here: {reason}; "
            f"set --trainer.{name} {shown(allowed[0])}",
        )
    _require(
        trainer["logger"] is not False,
        "--trainer.logger false: metrics.csv and TensorBoard are how runs are compared; "
        "set --trainer.logger null",
    )
    _check_machine(trainer)
    if not trainer["gradient_clip_val"] and trainer["gradient_clip_algorithm"]:
        raise UserError(
            f"--trainer.gradient_clip_algorithm {trainer['gradient_clip_algorithm']} would do "
            "nothing: there is no --trainer.gradient_clip_val; "
            "set --trainer.gradient_clip_algorithm null"
        )
    if verb == "fit":
        _check_budget(config, record)


def _check_machine(trainer: Any) -> None:
    accumulation, clip = trainer["accumulate_grad_batches"], trainer["gradient_clip_val"]
    _require(
        isinstance(accumulation, int) and accumulation >= 1,
        f"--trainer.accumulate_grad_batches {shown(accumulation)}: must be 1 or more",
    )
    _require(
        clip is None or 0 <= clip < math.inf,
        f"--trainer.gradient_clip_val {clip}: must be above 0, or null for no clipping",
    )
    check_processes(trainer)
    strategy = trainer["strategy"]
    _require(
        not isinstance(strategy, str) or not strategy.endswith(("spawn", "notebook")),
        f"--trainer.strategy {strategy}: processes are started by command; use ddp",
    )


def refuse_null(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Refuse null where a setting or a group has no use for it.

    A setting that takes null has null as its default, save the trainer's, which Lightning reads.
    """
    for name, value in flatten(config).items():
        takes_null = defaults.get(name, ...) is None or name.startswith("trainer.")
        if value is None and not takes_null:
            default = defaults.get(name, ...)
            remedy = "leave it out" if default is ... else f"its default is {shown(default)}"
            raise UserError(f"--{name} null: must have a value; {remedy}")


def refuse_idle_to_score(verb: str, args: list[str]) -> None:
    """Refuse flags of the command line that change nothing when a checkpoint is scored."""
    for word in args:
        name = word.partition("=")[0].removeprefix("--")
        if _under(name, IDLE_TO_SCORE):
            raise UserError(f"--{name} would do nothing: {verb} trains nothing; leave it out")


def _check_budget(config: Any, record: Record | None) -> None:
    trainer = config["trainer"]
    steps, interval = trainer["max_steps"], trainer["val_check_interval"]
    _require(steps >= 1, f"--trainer.max_steps {steps}: must be 1 or more; it is the budget")
    _require(
        isinstance(interval, int) and not isinstance(interval, bool) and interval >= 1,
        f"--trainer.val_check_interval {shown(interval)}: counts optimiser steps; "
        "give a whole number from 1",
    )
    for flag in FIT_ALONE:
        every = config[flag.removeprefix("--")]
        _require(every is None or every >= 1, f"{flag} {every}: must be 1 or more, or null")
    log_every = trainer["log_every_n_steps"]
    _require(
        log_every is None or log_every >= 1,
        f"--trainer.log_every_n_steps {log_every}: must be 1 or more",
    )
    _check_averaging(config["model"]["averaging"], trainer)
    warmup = config["model"]["schedule"]["warmup_steps"]
    if record is not None:
        before = record.config["trainer"]["max_steps"]
        _require(
            record.step <= steps,
            f"checkpoint {record.path} is at step {record.step:,}, beyond --trainer.max_steps "
            f"{steps:,}; raise it",
        )
        if steps != before:
            print(
                f"--trainer.max_steps was {before:,} and is {steps:,} now: the learning-rate "
                f"schedule is restated over {steps:,} steps (warmup {warmup})"
            )


def _check_averaging(averaging: Any, trainer: Any) -> None:
    """An average needs digits to move by, and steps to be taken over."""
    kind, start, precision = averaging["kind"], averaging["start_step"], trainer["precision"]
    _require(
        kind == "none" or precision not in WEIGHTS_IN_HALF,
        f"--model.averaging.kind {kind} with --trainer.precision {precision}: an average in so few "
        "digits stays where it is; set --trainer.precision bf16-mixed, or "
        "--model.averaging.kind none",
    )
    _require(
        start is None or start < trainer["max_steps"],
        f"--model.averaging.start_step {start} would do nothing: --trainer.max_steps "
        f"{trainer['max_steps']} leaves no two steps to average; lower it",
    )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message)
