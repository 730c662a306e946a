"""A model that came from elsewhere, and the checkpoint that it becomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llama_lab.checkpoints import DECODER_PREFIX, KEY, own_part
from llama_lab.data.tokenizers.base import Tokenizer
from llama_lab.files import write_atomically
from llama_lab.interop.folders import refuse_existing
from llama_lab.model.decoder import DecoderConfig


@dataclass(frozen=True)
class ImportedModel:
    """All that a checkpoint needs.

    Attributes:
        config: The decoder.
        weights: Its tensors by logical name, float32.
        tokenizer: The tokenizer that its ids belong to.
        origin: What it was, such as ``llama``; kept in the checkpoint.
        folder: What a folder brought besides (``Companions.state``); kept in the checkpoint.
        notes: One line for each thing that is not kept.
    """

    config: DecoderConfig
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    origin: str
    folder: dict[str, Any] | None = None
    notes: Sequence[str] = ()


def write_checkpoint(path: Path, model: ImportedModel) -> None:
    """Write a checkpoint that generates, is scored, and gives a new run its weights.

    It is at step 0 and holds no optimiser: there is no run to go on with.

    Raises:
        UserError: ``path`` exists, or the folder that it should lie in does not.
        RunError: The disk is full or refuses.
    """
    refuse_existing(path)
    decoder = dataclasses.asdict(model.config)
    settings = {
        "model": {"decoder": decoder},
        "data": {"tokenizer": model.tokenizer.kind, "vocab_size": None},
        "trainer": {"precision": "32-true"},
    }
    contents = {
        "state_dict": {f"{DECODER_PREFIX}{name}": t for name, t in model.weights.items()},
        "global_step": 0,
        "epoch": 0,
        # Lightning asks for it before it reads anything else.
        "pytorch-lightning_version": metadata.version("lightning"),
        KEY: own_part(
            decoder=decoder,
            tokenizer=model.tokenizer.state(),
            config=settings,
            progress={"imported": model.origin},
            folder=model.folder,
        ),
    }
    write_atomically(path, lambda file: torch.save(contents, file))
