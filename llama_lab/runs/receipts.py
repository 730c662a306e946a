"""``receipt.json``: what a run proves about the work it did."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from llama_lab.errors import Stopped
from llama_lab.files import json_bytes, write_atomically
from llama_lab.inspect.accounting import count_parameters
from llama_lab.model.devices import device_function
from llama_lab.runs.callbacks import data_of
from llama_lab.runs.events import RunEvents
from llama_lab.training.module import LanguageModel, language_model

PACKAGES = ("llama-lab", "torch", "lightning", "tokenizers", "numpy")


class Receipt(Callback):
    """Writes the receipt when training starts, with each checkpoint, and at the end."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.contents: dict[str, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The part that is known before the first step."""
        self.write(trainer, pl_module, "running")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The finished run, or one that a callback stopped early."""
        ended = trainer.global_step >= trainer.max_steps
        self.write(trainer, pl_module, "finished" if ended else "stopped")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """How it ended; without a collective, for other processes may be gone."""
        if self.contents and trainer.is_global_zero:
            stopped = isinstance(exception, Stopped | KeyboardInterrupt)
            self.contents["state"] = "stopped" if stopped else "failed"
            pl_module = language_model(pl_module)
            self._save(pl_module)

    def write(self, trainer: Trainer, module: LightningModule, state: str) -> None:
        """Write what was consumed so far; every process must ask at the same time."""
        module = language_model(module)
        order = module.run.total_order()  # a collective: every process takes part
        if not trainer.is_global_zero:
            return
        run, data = module.run, data_of(trainer)
        best = None if math.isinf(run.best_loss) else run.best_loss
        self.contents = {
            "format": 1,
            "state": state,
            "steps": trainer.global_step,
            "sequences": run.sequences,
            "tokens": run.sequences * data.context,
            "passes": data.passes(run.sequences),
            "wall_seconds": round(run.seconds, 3),
            "best": {"val_loss": best, "step": run.best_step},
            "last": dict(module.validation),
            "ended_early": run.ended_early,
            "branched_from": run.branched_from,
            "store": {**dataclasses.asdict(data.tokens.info), "sha256": run.store_digest},
            "order": f"{order.value:032x}",
            "initial_weights": run.initial_weights,
            "parameters": dataclasses.asdict(count_parameters(module.decoder_config)),
            "decoder": dataclasses.asdict(module.decoder_config),
            "fault": module.fault,
            "compile": {**dataclasses.asdict(module.compilation), "steps": run.compiled_steps},
            "config": self.config,
            "device": {
                **describe_device(trainer.strategy.root_device, str(trainer.precision)),
                "processes": trainer.world_size,
            },
            "versions": versions(),
        }
        self._save(module)

    def _save(self, module: LanguageModel) -> None:
        if module.run.folder is not None:
            _write_json(module.run.folder / "receipt.json", self.contents)


def read_receipt(folder: Path) -> dict[str, Any] | None:
    """A run folder's receipt, or None where there is none (yet)."""
    path = folder / "receipt.json"
    if not path.is_file():
        return None
    contents: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return contents


def mark_finished(folder: Path) -> None:
    """State that a run is at its end, where a kill came between its last checkpoint and that."""
    contents = read_receipt(folder)
    if contents is not None and contents["state"] != "finished":
        _write_json(folder / "receipt.json", {**contents, "state": "finished"})
        events = RunEvents(folder)
        events.end("finished")
        events.finalize("success")


def _write_json(path: Path, contents: dict[str, Any]) -> None:
    write_atomically(path, json_bytes(contents))


def describe_device(device: torch.device, precision: str) -> dict[str, Any]:
    """What is computed on."""
    named = device_function(device, "get_device_name")  # Metal and the CPU have none
    return {
        "kind": device.type,
        "name": named(device) if named else processor(),
        "threads": torch.get_num_threads(),
        "precision": precision,
        "system": platform.platform(),
    }


def processor() -> str:
    """The CPU's name; Python knows it on few systems."""
    with contextlib.suppress(OSError):  # Linux alone has the file
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, name = line.partition(":")
            if key.strip() == "model name":
                return name.strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Python's, and those of the packages that decide about numbers."""
    installed = {name.replace("-", "_"): version(name) for name in PACKAGES}
    return {"python": platform.python_version(), **installed}
