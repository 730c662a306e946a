"""Models loaded from their checkpoints, ready to generate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

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
    with torch.device("meta"):
        check_weights(Decoder(config).state_dict(), record)
    model = build_model(config, record.weights, tokenizer, device, folder=record.folder)
    plant_fault(model.decoder, cast("FaultKind | None", record.fault))
    return replace(model, step=record.step, fault=record.fault)


def build_model(
    config: DecoderConfig,
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    device: str | torch.device,
    *,
    folder: dict[str, Any] | None = None,
) -> LoadedModel:
    """A model from its parts, in eval mode, at step 0.

    Args:
        config: Its architecture.
        weights: Its tensors by name.
        tokenizer: Whose ids it knows.
        device: Where it computes.
        folder: What came with an imported model.
    """
    with torch.device("meta"):  # no weights are drawn that these would only replace
        decoder = Decoder(config)
    decoder.to_empty(device=device)
    decoder.load_state_dict(weights, strict=True)
    return LoadedModel(decoder.eval(), tokenizer, 0, folder=folder)
