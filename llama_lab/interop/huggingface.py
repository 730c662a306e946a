"""Hugging Face folders: ``config.json``, safetensors, ``tokenizer.json``; in and out.

What a family's keys and tensors mean is in its table (``families.py``), which serves both ways.
Files are read with safetensors and JSON alone: nothing of a folder is ever run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llama_lab.checkpoints import GENERATION_CONFIG_FILE, Record
from llama_lab.data.tokenizers.imported import HuggingFaceTokenizer, IdsTokenizer
from llama_lab.data.tokenizers.kinds import tokenizer_from_state
from llama_lab.errors import UserError
from llama_lab.interop.companions import (
    Companions,
    generation_text,
    read_companions,
    special_ids,
)
from llama_lab.interop.families import FAMILIES, Family
from llama_lab.interop.folders import TensorFolder, write_folder, write_json, write_tensors
from llama_lab.interop.imported import ImportedModel
from llama_lab.interop.layouts import (
    decoder_shapes,
    layout_of,
    refuse_differences,
    to_half,
)
from llama_lab.interop.parts import Parts, config_of, differing, head_dim_of, parts_of, resolved
from llama_lab.interop.tokenizer_files import read_tokenizer, write_tokenizer
from llama_lab.interop.values import Values, read_json
from llama_lab.model.decoder import DecoderConfig
from llama_lab.model.settings import shown

CONFIG_FILE = "config.json"
SHARD_LIMIT = 5 * 10**9  # bytes, as transformers' own folders


# ---- in ------------------------------------------------------------------------------------------


def import_folder(folder: Path) -> ImportedModel:
    """The model in a Hugging Face folder.

    Raises:
        UserError: A file is missing, broken or hostile, the family or a part of it is unknown
            here, or a tensor is missing, left over or of another shape than the config says.
    """
    path = folder / CONFIG_FILE
    values, family, parts = _read_config(path)
    config = config_of(parts, str(path))
    files = TensorFolder(folder)
    stored = _stored_names(family, files, bool(parts.get("tie_embeddings")))
    _refuse_boasts(family, parts, {name: files.shapes[stored[name]] for name in stored}, path)
    try:
        layout = layout_of(family, config)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    refuse_differences(
        layout.shapes, {name: files.shapes[stored[name]] for name in stored}, str(folder)
    )
    found = read_companions(folder, values, parts["vocab_size"])
    tokenizer = read_tokenizer(folder, values, parts["vocab_size"], found)
    weights = layout.ours(lambda name: files.read(stored[name]))
    return ImportedModel(
        config, weights, tokenizer, family.model_type, folder=found.state(), notes=found.notes
    )


def read_decoder(folder: Path) -> DecoderConfig:
    """The decoder that a folder's ``config.json`` describes; its weights are left alone.

    Raises:
        UserError: The file is missing, broken or hostile, or this version lacks a part of it.
    """
    path = folder / CONFIG_FILE
    _, _, parts = _read_config(path)
    return config_of(parts, str(path))


def _read_config(path: Path) -> tuple[Values, Family, Parts]:
    values = Values(read_json(path), f"{path}: ")
    family = _family(values)
    return values, family, resolved(family.read(values))


def _family(values: Values) -> Family:
    name = values.get("model_type")
    if values.get("quantization_config") is not None:
        raise UserError(
            f"{values.where}quantization_config: this version reads unquantised weights; take the "
            "model's float32, float16 or bfloat16 folder"
        )
    if not isinstance(name, str) or name not in FAMILIES:
        values.refuse("model_type", f"this version reads {', '.join(FAMILIES)}")
    return FAMILIES[name]


def _stored_names(family: Family, files: TensorFolder, tied: bool) -> dict[str, str]:
    """Tensors by the family's full names, and the names that the files have for them.

    Tables and masks of old files are left out; so is a tied head that is stored as well.
    """
    bare = family.modules["embedding"].name.removeprefix(family.prefix) + ".weight"
    head = f"{family.modules['head'].name}.weight"
    stored = {
        name if bare not in files.shapes or name == head else family.prefix + name: name
        for name in files.shapes
        if not name.endswith(family.ignored or ("\0",))
    }
    embedding = f"{family.modules['embedding'].name}.weight"
    if tied and head in stored and embedding in stored:
        if not torch.equal(files.read(stored[head]), files.read(stored[embedding])):
            raise UserError(
                f"tensor {head} differs from {embedding}, though tie_word_embeddings is true: the "
                "model has one of the two; set tie_word_embeddings false, or remove the head"
            )
        del stored[head]
    return stored


def _refuse_boasts(
    family: Family, parts: Parts, shapes: Mapping[str, tuple[int, ...]], path: Path
) -> None:
    """Hold the config's sizes against the files before anything of those sizes is made."""
    embedding = f"{family.modules['embedding'].name}.weight"
    wanted = (parts["vocab_size"], parts["dim"])
    refuse_differences(
        {embedding: wanted}, {n: s for n, s in shapes.items() if n == embedding}, str(path.parent)
    )
    if parts["n_layers"] > len(shapes):
        raise UserError(
            f"{path}: {parts['n_layers']:,} layers, and the files hold {len(shapes):,} tensors"
        )


# ---- out -----------------------------------------------------------------------------------------


def export_checkpoint(record: Record, target: Path, *, shard_limit: int = SHARD_LIMIT) -> str:
    """Write a checkpoint as a Hugging Face folder, float32.

    A family that transformers gives a tokenizer of its own (qwen2) is written for a tokenizer that
    was imported, or for none. For others, a model of such a family goes out as another one (llama),
    with output biases of zero: it computes the same.

    Args:
        record: The checkpoint.
        target: The folder, which must not be there yet.
        shard_limit: Bytes above which the weights are divided into several files.

    Returns:
        The family, such as ``llama``, and what was added to the model, if anything.

    Raises:
        UserError: No family has the model's parts (the setting is named), the checkpoint's tensors
            are not those of its architecture, or the folder exists.
        RunError: The disk is full or refuses.
    """
    config = DecoderConfig.from_dict(record.decoder)
    tokenizer = tokenizer_from_state(record.tokenizer)
    _refuse_fault(record)
    is_imported = isinstance(tokenizer, HuggingFaceTokenizer | IdsTokenizer)
    said = config if is_imported else readable(config)
    family, keys = express(said)
    layout = layout_of(family, said)
    found = {name: tuple(tensor.shape) for name, tensor in record.weights.items()}
    refuse_differences(decoder_shapes(config), found, str(record.path))
    added = {n: torch.zeros(s) for n, s in decoder_shapes(said).items() if n not in found}
    weights = {**_for_half(config, record.weights), **added}
    companions = Companions.from_state(record.folder)
    ids = special_ids(companions, tokenizer)

    def write(folder: Path) -> None:
        write_json(folder / CONFIG_FILE, {**keys, **ids, **OF_EVERY_CONFIG})
        generation = generation_text(companions, tokenizer, ids)
        (folder / GENERATION_CONFIG_FILE).write_bytes(generation.encode("utf-8"))
        write_tokenizer(folder, tokenizer, config.context_length, companions)
        write_tensors(folder, layout.shapes, lambda name: layout.theirs(name, weights), shard_limit)

    write_folder(target, write)
    return f"{family.model_type} with output biases of zero" if added else family.model_type


OF_EVERY_CONFIG: dict[str, Any] = {"dtype": "float32", "torch_dtype": "float32", "use_cache": True}


def readable(config: DecoderConfig) -> DecoderConfig:
    """The decoder, or one that computes the same, of a family that takes any tokenizer.

    Raises:
        UserError: No family has the decoder's parts.
    """
    family, _ = express(config)
    if not family.has_own_tokenizer:
        return config
    # Zeros, which add nothing; families whose biases come all together then have the parts.
    return replace(config, attention=replace(config.attention, output_bias=True))


def express(config: DecoderConfig) -> tuple[Family, dict[str, Any]]:
    """The first family that has the decoder's parts, and the config that says so.

    Raises:
        UserError: There is none; it names what the nearest one lacks.
    """
    parts = parts_of(config)
    best: list[str] | None = None
    nearest = ""
    for family in FAMILIES.values():
        keys = family.write(parts)
        lacking = list(_lacking(family, parts, keys))
        if not lacking:
            return family, keys
        if best is None or len(lacking) < len(best):
            best, nearest = lacking, family.model_type
    assert best is not None
    raise UserError(
        f"no family of Hugging Face that this version writes has these parts; the nearest, "
        f"{nearest}, cannot express {', '.join(best)}"
    )


def _lacking(family: Family, parts: Parts, keys: Mapping[str, Any]) -> Iterator[str]:
    """The settings that the family's config for ``parts`` does not give back."""
    try:
        back = resolved(family.read(Values(keys, "")))
    except UserError as error:
        yield str(error)
        return
    for name in differing(parts, back):
        yield f"--model.decoder.{name} {shown(parts.get(name))}"


def _for_half(config: DecoderConfig, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The weights for rope's half pairing, which Hugging Face's models have."""
    if config.position.rope_pairing != "interleaved":
        return weights
    return to_half(weights, head_dim_of(parts_of(config)))


def _refuse_fault(record: Record) -> None:
    if record.fault is not None:
        raise UserError(
            f"{record.path}: was trained with --model.fault {record.fault}, which no other program "
            "would compute; export a model without one"
        )
