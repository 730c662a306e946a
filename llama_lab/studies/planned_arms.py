"""Arms as ``fit`` resolves them, and the runs of each."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from llama_lab.configs import find_config
from llama_lab.data.store.preparation import prepare_store
from llama_lab.data.store.token_store import TokenStore, open_store
from llama_lab.dotted_names import flatten, unflatten
from llama_lab.errors import UserError
from llama_lab.inspect.accounting import cache_bytes, flops_per_token, on_meta, parameters_of
from llama_lab.model.decoder import DecoderConfig
from llama_lab.model.settings import SettingError
from llama_lab.runs.command_line import LabCLI
from llama_lab.studies.study import Arm, Changes, Study
from llama_lab.yaml_text import dump_yaml

# What the study decides for every run.
OF_THE_STUDY = ("name", "seed_everything", "ckpt_path", "trainer.default_root_dir")
CONTEXT = "data.context_length"


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
class Run:
    """One arm with one seed, in a folder of its own."""

    planned: PlannedArm
    seed: int
    folder: Path

    @property
    def own_seed(self) -> int:
        """What ``fit`` is given: an arm may be offset from the study's seeds."""
        return self.seed + self.planned.arm.seed_offset

    @property
    def key(self) -> str:
        """``arm/seed_0``."""
        return f"{self.folder.parent.name}/{self.folder.name}"


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
        inline = dump_yaml(unflatten({**changes, **root}))
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


def differences(planned: PlannedArm, reference: PlannedArm) -> dict[str, list[Any]]:
    """Settings that differ between two arms: dotted name to [of the reference, of the arm]."""
    here, there = planned.settings, reference.settings
    return {
        key: [there.get(key), here.get(key)]
        for key in sorted(here.keys() | there.keys())
        if here.get(key) != there.get(key)
    }
