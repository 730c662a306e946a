"""Tasks of a worker: train a run and examine it, or time a step.

Everything that a task returns is plain, fit for JSON.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from llama_lab.checkpoints import read_record
from llama_lab.data.store.token_store import TokenStore, open_store
from llama_lab.dotted_names import unflatten
from llama_lab.errors import UserError
from llama_lab.files import write_atomically
from llama_lab.generation.generate import load_model, sample_text
from llama_lab.generation.passages import longest_shared
from llama_lab.generation.sampling import SamplingConfig
from llama_lab.inspect.accounting import cache_bytes
from llama_lab.inspect.causality import probe_causality
from llama_lab.inspect.peak_memory import PeakMemory
from llama_lab.model.decoder import Decoder
from llama_lab.model.settings import SettingError
from llama_lab.runs.callbacks import SAMPLE_TOKENS
from llama_lab.runs.command_line import LabCLI, quiet
from llama_lab.studies.timing import time_decoding, time_step
from llama_lab.yaml_text import dump_yaml

OUTCOME = "outcome.json"
# Of a longer training text the samples are compared with this much, from its beginning.
LONGEST_TEXT_TOKENS = 20_000_000


def train(
    arguments: list[str],
    folder: str,
    scores: Mapping[str, Mapping[str, Any]],
    decode: Mapping[str, int] | None,
    probe: bool,
) -> dict[str, Any]:
    """Train a run, or go on with it, then measure its last weights; keep that as ``outcome.json``.

    Args:
        arguments: Of ``fit``.
        folder: The run's own.
        scores: Settings to score the weights under, by name.
        decode: ``context`` and ``tokens`` of the generation to time, if any.
        probe: Whether to look for a leak of later tokens.
    """
    run = Path(folder)
    last = run / "checkpoints" / "last.ckpt"
    if last.is_file():
        arguments = [*arguments, f"--ckpt_path={last}"]
    elif run.exists():  # killed before its first checkpoint: nothing of it can be gone on with
        shutil.rmtree(run)
    quiet()
    memory = PeakMemory()
    cli = LabCLI("fit", arguments, folder=run)
    cli.fit()
    device = cli.trainer.strategy.root_device
    peak = memory.read(device)
    # Open since the training; a run that was at its end already never opened it.
    store = cli.datamodule.store or open_store(cli.datamodule.store_folder())
    found: dict[str, Any] = {
        "peak_bytes": peak,
        "scores": [
            score(last, name, {**machine_of(cli), **changes}) for name, changes in scores.items()
        ],
        # The run wrote one at its last validation, unless it was at its end already.
        **read_sample(cli.samples.text or sample(last, device), store),
        **look_at(last, device, decode, probe),
    }
    text = json.dumps({"end": "finished", "reason": "", **found}, indent=1)
    write_atomically(run / OUTCOME, text.encode())
    return found


def machine_of(cli: LabCLI) -> dict[str, str]:
    """The settings with which one device computes where the run did."""
    names = ["trainer.accelerator"]
    if isinstance(cli.trainer.strategy, SingleDeviceStrategy):
        names.append("trainer.strategy")
    return {name: cli.config[name] for name in names if isinstance(cli.config[name], str)}


def score(checkpoint: Path, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """What ``validate`` says of the weights under other settings, or why it refuses."""
    inline = dump_yaml(unflatten(changes))
    found: dict[str, Any] = {"name": name, "val_loss": None, "val_bits_per_byte": None}
    try:
        cli = LabCLI("validate", [f"--ckpt_path={checkpoint}", f"--config={inline}"])
        cli.evaluate()
    except (UserError, SettingError) as error:
        return {**found, "refused": " ".join(str(error).split())}
    values = cli.model.validation
    return {**found, **{key: values[key] for key in ("val_loss", "val_bits_per_byte")}}


def sample(checkpoint: Path, device: torch.device) -> str:
    """A text of the weights, as the run itself writes one at a validation."""
    model = load_model(checkpoint, device)
    return sample_text(
        model.decoder,
        model.tokenizer,
        prompt="",
        max_new_tokens=SAMPLE_TOKENS,
        sampling=SamplingConfig(),
        seed=int(read_record(checkpoint).config["seed_everything"]),
    )


def read_sample(text: str, store: TokenStore) -> dict[str, Any]:
    """A sample, and the longest passage of it that stands in the training text."""
    read = store.tokenizer.decode(store.train[:LONGEST_TEXT_TOKENS].tolist())
    return {"sample": text, "passage": longest_shared(text, read)}


def look_at(
    checkpoint: Path, device: torch.device, decode: Mapping[str, int] | None, probe: bool
) -> dict[str, Any]:
    """What else a study asks of the last weights."""
    if decode is None and not probe:
        return {"causal": None, "decoding": None}
    decoder = load_model(checkpoint, device).decoder
    return {
        "causal": probe_causality(decoder).causal if probe else None,
        "decoding": None if decode is None else decoding_of(decoder, **decode),
    }


def decoding_of(decoder: Decoder, context: int, tokens: int) -> dict[str, Any]:
    """How fast ``tokens`` ids come behind ``context`` others, and the cache of 16 bits there."""
    cache = cache_bytes(decoder.config, context, torch.bfloat16)
    rate = tokens / time_decoding(decoder, context, tokens)
    return {"context": context, "tokens_per_second": rate, "cache_bytes": cache.seen}


def time_arm(**settings: Any) -> dict[str, Any]:
    """See :func:`llama_lab.studies.timing.time_step`."""
    return time_step(**settings)._asdict()


TASKS: dict[str, Callable[..., dict[str, Any]]] = {"train": train, "time": time_arm}
