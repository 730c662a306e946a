"""Models loaded from their checkpoints, ready to generate."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from llama_lab.checkpoints import check_weights, read_record
from llama_lab.data.tokenizers.kinds import Tokenizer, tokenizer_from_state
from llama_lab.errors import UserError
from llama_lab.inspect.faults import FaultKind, plant_fault
from llama_lab.model.decoder import Decoder, DecoderConfig


@dataclass(frozen=True)
class LoadedModel:
    """A checkpoint, ready to generate.

    Attributes:
        decoder: In eval mode, float32, on the device that was asked for.
        tokenizer: The one it was trained with.
        step: Optimiser steps taken.
        fault: The mistake that was planted in the decoder, if any.
        folder: What came with an imported model: its special ids and files.
    """

    decoder: Decoder
    tokenizer: Tokenizer
    step: int
    fault: str | None = None
    folder: dict[str, Any] | None = None


def load_model(path: str | Path, device: str | torch.device = "cpu") -> LoadedModel:
    """Rebuild a model from its checkpoint alone.

    Raises:
        UserError: The file is no checkpoint, or its tensors are not the ones that its architecture
            asks for.
        SettingError: Its architecture or its fault is refused.
    """
    record = read_record(path)
    config = DecoderConfig.from_dict(record.decoder)
    tokenizer = tokenizer_from_state(record.tokenizer)
    if config.vocab_size is not None and config.vocab_size < tokenizer.vocab_size:
        raise UserError(
            f"--ckpt_path {path}: its tokenizer has {tokenizer.vocab_size} ids, its decoder only "
            f"{config.vocab_size} (vocab_size); the file was put together from two models"
        )
    with torch.device("meta"):  # no weights are drawn that the file's would only replace
        decoder = Decoder(config)
    check_weights(decoder.state_dict(), record)
    decoder.to_empty(device=device)
    decoder.load_state_dict(record.weights, strict=True)
    plant_fault(decoder, cast("FaultKind | None", record.fault))
    return LoadedModel(decoder.eval(), tokenizer, record.step, record.fault, record.folder)
