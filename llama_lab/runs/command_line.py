"""``fit``, ``validate`` and ``test``: Lightning's command line, with this project's rules."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from llama_lab.checkpoints import Record, check_weights, read_record
from llama_lab.configs import (
    DEFAULT_RUN_NAME,
    check_run_name,
    find_checkpoint,
    logs_folder,
    run_folder_of,
    unwritable,
)
from llama_lab.data.config import DataConfig
from llama_lab.data.datamodule import TextDataModule
from llama_lab.dotted_names import flatten
from llama_lab.errors import UserError
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.parallel.watching import lost_another
from llama_lab.parsing import readable
from llama_lab.runs import machine, rules
from llama_lab.runs.arguments import (
    GLOBAL_SEED,
    arrange,
    without_print_config,
)
from llama_lab.runs.board import RunBoard
from llama_lab.runs.callbacks import BlockCompiler, StepMetrics, StepSeeds, ValidationRecord
from llama_lab.runs.checkpointing import AtomicCheckpointIO, RunCheckpoints
from llama_lab.runs.continuing import ended_early, place_of
from llama_lab.runs.diagnostics import Diagnostics
from llama_lab.runs.lists import left_out, lists_in
from llama_lab.runs.receipts import Receipt, mark_finished
from llama_lab.runs.records import RunFolder
from llama_lab.runs.run_progress import RunProgress, closing
from llama_lab.runs.stopping import StopSignals
from llama_lab.runs.trainers import build_trainer
from llama_lab.runs.user_callbacks import (
    EarlyEnds,
    InRunFolder,
    check_callbacks,
)
from llama_lab.training.averaging import AveragedWeights
from llama_lab.training.module import LanguageModel
from llama_lab.yaml_text import dump_yaml

DESCRIPTIONS = {
    "fit": "Train a decoder on a text, or resume a run from its checkpoint.",
    "validate": "Score a checkpoint on the held-out part of a text.",
    "test": "Score a checkpoint as validate does, and report the numbers under the name test.",
}


class VerbParser(LightningArgumentParser):
    """Lightning's parser, whose errors are one line each."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise :class:`UserError`."""
        raise UserError(readable(message, self._option_string_actions)) from ex


class LabCLI(LightningCLI):
    """One verb's command line: parse, settle what a checkpoint decides, and run.

    Args:
        verb: fit, validate or test.
        args: The command line behind it.
        folder: The new run's own, where it is not the next free one under its name.

    Attributes:
        record: The checkpoint that the command starts from, if any.
        settings: Every setting as it was resolved: plain values, fit to be parsed again.
    """

    def __init__(self, verb: str, args: list[str], folder: Path | None = None) -> None:
        self.verb, self.folder = verb, folder
        self.record: Record | None = None
        self.tried: list[str] = []
        super().__init__(
            LanguageModel,
            TextDataModule,
            save_config_callback=None,
            seed_everything_default=0,
            trainer_defaults=rules.TRAINER_DEFAULTS,
            parser_kwargs={"prog": f"llama-lab {verb}", "description": DESCRIPTIONS[verb]},
            parser_class=VerbParser,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            args=args,
            run=False,
        )

    # ---- parsing -----------------------------------------------------------------------------

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The seed; Lightning's own would take true for a seed that nobody chose."""
        parser.add_argument(
            "--seed_everything",
            type=int,
            default=self.seed_everything_default,
            help="Seed of the initial weights, the order of the data, and dropout.",
        )

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Trainer, model and data; their seed is ``--seed_everything``."""
        parser.add_class_arguments(Trainer, "trainer", instantiate=False, fail_untyped=False)
        parser.set_defaults({f"trainer.{k}": v for k, v in self.trainer_defaults.items()})
        machine.add_arguments(parser)
        for action in parser._actions:
            owner_key, _, name = action.dest.partition("trainer.")
            if name and not owner_key and isinstance(action.help, str):
                action.help = rules.trainer_help(name, action.help)
        for owner, key in ((LanguageModel, "model"), (DataConfig, "data")):
            parser.add_class_arguments(
                owner, key, skip={"seed"}, fail_untyped=False, sub_configs=True
            )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The run's name and its checkpoints."""
        parser.add_argument(
            "--name",
            type=str | None,
            default=None,
            help="Name of the run's folder under logs/; null means the name of the first config.",
        )
        start = (
            "Checkpoint to resume from: a file, a run folder, or `last` (the newest run that has "
            "this name)."
            if self.verb == "fit"
            else "Checkpoint to score: a file, a run folder, `best` or `last`; null means the best "
            "one of the newest run."
        )
        parser.add_argument("--ckpt_path", type=str | None, default=None, help=start)
        if self.verb == "fit":
            parser.add_argument(
                "--checkpoint_every",
                type=int | None,
                default=None,
                help="Optimiser steps between writes of last.ckpt; null means the validation "
                "interval.",
            )
            parser.add_argument(
                "--keep_every",
                type=int | None,
                default=None,
                help="Optimiser steps between checkpoints that are never deleted: step_0.ckpt (the "
                "initial weights), step_N.ckpt, …, each with the optimiser's state. Null keeps "
                "none.",
            )
            parser.add_argument(
                "--diagnostics_every",
                type=int | None,
                default=None,
                help="Optimiser steps between measurements of every layer: gradient norm, size of "
                "activations, attention entropy, dead units and update ratio. They go to "
                "TensorBoard and diagnostics.csv; the first step is always measured. Null measures "
                "nothing.",
            )

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse twice: what was said explicitly, then that on top of what the checkpoint says."""
        ordered, config_name, lists = arrange(parser, args)
        said = parser.parse_args(without_print_config(ordered), defaults=False)
        explicit = flatten(said.as_dict())
        self.explicit = explicit
        name = explicit.get("name") or config_name
        base: dict[str, Any] = {"name": check_run_name(name or DEFAULT_RUN_NAME)}
        if self.verb != "fit":
            rules.refuse_idle_to_score(self.verb, args)
        path = self._checkpoint(explicit, name)
        if path is not None:
            self.record = read_record(path, sharded=self.verb == "fit")
            check_architecture(self.record)
            base |= rules.settings_for(self.verb, self.record)
            rules.refuse_contradictions(self.verb, self.record, explicit)
            self.tried = rules.tried_on(self.record, explicit)
        elif start := explicit.get("model.init_from"):
            logs = logs_folder(explicit.get("trainer.default_root_dir"))
            self.record = read_record(find_checkpoint(start, logs, flag="--model.init_from"))
            rules.refuse_contradictions("init_from", self.record, explicit)
            base |= rules.settings_of_weights(self.record)
        self.resumes = path is not None
        self.ckpt_path = path
        self.config = parser.parse_args([f"--config={dump_yaml(base)}", *ordered])
        if self.config["name"] is None:
            self.config["name"] = base["name"]
        rules.refuse_null(self.config.as_dict(), flatten(parser.get_defaults().as_dict()))
        dumped = parser.dump(self.config, skip_none=False, format="json")
        self.settings = rules.saved_settings(json.loads(dumped))
        self.left_out = left_out([*lists_in(base, str(path)), *lists], self.settings)
        rules.check_run(self.verb, self.config, self.record if self.resumes else None)

    def _checkpoint(self, explicit: dict[str, Any], name: str | None) -> Path | None:
        spec = explicit.get("ckpt_path")
        if spec is None and self.verb == "fit":
            return None
        logs = logs_folder(explicit.get("trainer.default_root_dir"))
        return find_checkpoint("best" if spec is None else spec, logs, name)

    # ---- construction ------------------------------------------------------------------------

    def _set_seed(self) -> None:
        super()._set_seed()
        # Lightning hands its seed on in a variable; a run's processes read the setting.
        os.environ.pop(GLOBAL_SEED, None)

    def instantiate_classes(self) -> None:
        """Build model, data and trainer, and hand over what the checkpoint decides."""
        self.config_init = self.parser.instantiate_classes(self.config)
        seed = int(self.config["seed_everything"])
        self.model = self.config_init["model"]
        self.model.seed = seed
        self.datamodule = TextDataModule(self.config_init["data"], seed=seed)
        self.model.config = self.settings
        if self.record is not None:
            self.datamodule.use_tokenizer(self.record.tokenizer)
            self.model.init_from = str(self.record.path)
        if self.resumes and self.record is not None:
            # Its weights are in the checkpoint; the file that they once came from may be gone.
            self.model.init_from = None
            self.model.run.saved = self.ckpt_path
            digest = self.record.progress.get("store_digest")
            if self.verb == "fit":
                self.datamodule.expect_store(self.record.progress["store_digest"])
            if digest and not rules.remakes_store(self.record, self.explicit):
                named = {"data.corpus", "data.val_corpus"} & set(self.explicit)
                self.datamodule.reuse_store(digest, unless_input=bool(named))
        self.trainer = self.instantiate_trainer()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The trainer, with the callbacks of a run and intervals in optimiser steps."""
        trainer = self.config_init["trainer"]
        timeout = machine.take_strategy(trainer)
        added = trainer["callbacks"] or []
        self.added = added if isinstance(added, list) else [added]
        check_callbacks(self.added)
        own = [BlockCompiler(), *(self.run_callbacks() if self.verb == "fit" else [])]
        plugins = trainer["plugins"] or []
        interval = trainer["val_check_interval"]
        if self.verb == "fit":  # Lightning counts microbatches here
            interval *= trainer["accumulate_grad_batches"]
        return build_trainer(
            super().instantiate_trainer,
            precision=trainer["precision"],
            timeout=timeout,
            callbacks=[*self.added, *own],
            plugins=[*(plugins if isinstance(plugins, list) else [plugins]), AtomicCheckpointIO()],
            val_check_interval=interval,
            logger=False if trainer["logger"] in (None, True) else trainer["logger"],
            enable_progress_bar=False,  # RunProgress takes its place
            **kwargs,
        )

    def run_callbacks(self) -> list[Any]:
        """What surrounds the training steps, in the order in which it acts."""
        config = self.config
        logs = logs_folder(config["trainer.default_root_dir"])
        self.place = place_of(self.record if self.resumes else None, logs, config["name"])
        self.metrics, self.samples = StepMetrics(), ValidationRecord()
        signals, receipt = StopSignals(), Receipt(self.settings)
        every = config["checkpoint_every"] or config["trainer.val_check_interval"]
        measured, averaging = config["diagnostics_every"], self.model.averaging_config
        return [
            RunFolder(self.place, self.settings, at=self.folder, placed=InRunFolder(self.added)),
            StepSeeds(int(config["seed_everything"])),
            *([] if measured is None else [Diagnostics(measured)]),
            self.metrics,
            self.samples,
            *([] if averaging.kind == "none" else [AveragedWeights(averaging)]),
            RunProgress(self.metrics, bar=config["trainer.enable_progress_bar"] is not False),
            EarlyEnds(self.added),
            receipt,
            RunBoard(self.settings),
            signals,
            RunCheckpoints(every, signals, receipt, config["keep_every"]),
        ]

    # ---- the verbs ---------------------------------------------------------------------------

    def fit(self) -> None:
        """Train; afterwards say how it went. A run that is at its end already is left as it is."""
        steps = self.config["trainer.max_steps"]
        if self.resumes and self.record is not None and self.record.step == steps:
            if folder := run_folder_of(self.record.path):
                mark_finished(folder)
            print(
                f"{self.record.path} is at step {steps:,} of {steps:,}: nothing is left to train; "
                "to go on, raise --trainer.max_steps"
            )
            return
        if ended := ended_early(self.record if self.resumes else None, self.settings):
            print(ended)
            return
        self._check_logs_writable()
        if self.trainer.is_global_zero:
            for line in (*self.left_out, *filter(None, [self.place.words])):
                print(line)
        self._run(self.trainer.fit)
        if self.trainer.is_global_zero:
            print("\n".join(closing(self.trainer, self.model, self.samples)), flush=True)

    def evaluate(self) -> None:
        """Score the held-out part and print each number on a line of its own."""
        run = self.trainer.validate if self.verb == "validate" else self.trainer.test
        self._run(run, verbose=False)
        if self.trainer.is_global_zero:
            tried = f", with {', '.join(self.tried)}" if self.tried else ""
            print(*self.left_out, f"checkpoint {self.ckpt_path}{tried}", sep="\n", file=sys.stderr)
            for name, value in self.model.validation.items():
                print(f"{name} {value!r}", flush=True)

    def _run(self, verb: Callable[..., Any], **options: Any) -> None:
        """Call a verb of the trainer; say so when it fails because another process did."""
        try:
            verb(self.model, datamodule=self.datamodule, ckpt_path=self.ckpt_path, **options)
        except RuntimeError as error:
            lost = lost_another(error) if self.trainer.world_size > 1 else None
            if lost is None:
                raise
            raise lost from error

    def _check_logs_writable(self) -> None:
        """Find out before the corpus is read, and leave nothing behind."""
        folder = logs_folder(self.config["trainer.default_root_dir"]) / self.config["name"]
        if self.resumes and self.ckpt_path is not None:
            folder = run_folder_of(self.ckpt_path) or folder
        there = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            reason = "not a folder" if not there.is_dir() else "no permission to write"
            raise unwritable(there, OSError(reason))


def check_architecture(record: Record) -> None:
    """Hold a checkpoint's weights against its architecture, before anything is built for real."""
    with torch.device("meta"):
        wanted = Decoder(DecoderConfig.from_dict(record.decoder)).state_dict()
    check_weights(wanted, record)


def main(verb: str, args: list[str]) -> int:
    """Run one verb with its arguments.

    Returns:
        0; every other ending is an exception.
    """
    quiet()
    cli = LabCLI(verb, args)
    if verb == "fit":
        cli.fit()
    else:
        cli.evaluate()
    return 0


def quiet() -> None:
    """Keep Lightning's remarks that say nothing about this run off the terminal."""
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It says of every gathering of a matrix that layers are divided twice.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    for pattern in (
        r".*does not have many workers.*",
        r".*IterableDataset. has .__len__. defined.*",
        r".*recommended to use .self\.log.*sync_dist=True.*",
        r".*Checkpoint directory .* exists and is not empty.*",
        r".*srun. command is available.*",
        r".*lr_scheduler\.step\(\). before .optimizer\.step\(\).*",
        r".*tensorboardX. has been removed.*",
        r".*treespec, LeafSpec.*",
        r".*callbacks used to create the checkpoint need to be provided.*",
        r".*WeightAveraging callback with a model that overrides the configure_model.*",
        r"You passed `Trainer\(accelerator='cpu', precision=.*",
        r"You called `self.log.*but have no logger configured.*",
    ):
        warnings.filterwarnings("ignore", message=pattern)
