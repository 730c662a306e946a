"""Sharded checkpoints: each process writes its own shards, and one small file says what they are.

``last.ckpt`` is a checkpoint as any other, without its tensors. They lie beside it in a folder such
as ``last.shards-120-5f2c9d1a``, written by ``torch.distributed.checkpoint``. The file names its
folder, and takes its own name only when all shards are on disk: so it stands for whole checkpoints
only, and replaces the one before in one step on every file system.
"""

from __future__ import annotations

import shutil
import uuid
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from llama_lab.checkpoints import SHARDED_KEY, load_file, shards_of
from llama_lab.errors import RunError, UserError
from llama_lab.files import write_atomically

WEIGHTS, STATES = "state_dict", "optimizer_states"
Tensors = dict[str, Tensor]


def save_sharded(checkpoint: dict[str, Any], path: Path, tag: str, is_first: bool) -> None:
    """Write a checkpoint whose tensors are divided; every process must call at the same time.

    Args:
        checkpoint: Lightning's dictionary, with weights and optimiser states as they are.
        path: The file that stands for it.
        tag: Tells this checkpoint's folder from those before; the same in every process.
        is_first: Whether this is the process that writes the file.

    Raises:
        RunError: The disk is full or refuses.
    """
    folder = path.with_name(f"{path.stem}.shards-{tag}")
    tensors, rest = taken_apart(checkpoint)
    if is_first:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    writer = FileSystemWriter(folder, sync_files=True)
    try:
        save(cast(dict[str, Any], tensors), storage_writer=writer)
    except (OSError, CheckpointException) as error:
        raise RunError(
            f"cannot write {folder} ({reason_of(error)}); what stood there before is untouched"
        ) from error
    if is_first:
        rest[SHARDED_KEY] = {
            "folder": folder.name,
            "tensors": {
                name: {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")}
                for name, t in tensors.items()
            },
        }
        write_atomically(path, lambda file: torch.save(rest, file))
        remove_shards(path, but=folder.name)


def new_tag(step: int) -> str:
    """A tag that no checkpoint had before, for one process to choose and all to use."""
    return f"{step}-{uuid.uuid4().hex[:8]}"


def remove_shards(path: Path, *, but: str | None = None) -> None:
    """Delete the folders of shards that a file stood for, except the one that it names now."""
    for folder in path.parent.glob(f"{path.stem}.shards-*"):
        if folder.name != but:
            shutil.rmtree(folder, ignore_errors=True)


def taken_apart(checkpoint: Mapping[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """The tensors of a checkpoint by one flat name each, and the checkpoint without them."""
    tensors: Tensors = {f"{WEIGHTS}.{n}": t for n, t in checkpoint[WEIGHTS].items()}
    states = []
    for i, optimizer in enumerate(checkpoint.get(STATES, [])):
        for number, state in optimizer["state"].items():
            for key, value in state.items():
                # AdamW counts its steps in a tensor.
                tensors[f"{STATES}.{i}.{number}.{key}"] = torch.as_tensor(value)
        states.append({"state": {}, "param_groups": optimizer["param_groups"]})
    return tensors, {**checkpoint, WEIGHTS: {}, STATES: states}


def put_together(rest: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """The checkpoint that :func:`taken_apart` made two of."""
    whole = {k: v for k, v in rest.items() if k != SHARDED_KEY}
    whole[WEIGHTS] = {
        name.removeprefix(f"{WEIGHTS}."): t
        for name, t in tensors.items()
        if name.startswith(f"{WEIGHTS}.")
    }
    states = [{**state, "state": {}} for state in rest.get(STATES, [])]
    for i, number, key, name in state_names(tensors):
        states[i]["state"].setdefault(number, {})[key] = tensors[name]
    if STATES in rest:
        whole[STATES] = states
    return whole


def state_names(names: Mapping[str, Any]) -> Iterator[tuple[int, int, str, str]]:
    """Optimiser, parameter's number in it, and key of each state among flat names."""
    for name in names:
        if name.startswith(f"{STATES}."):
            _, i, number, key = name.split(".", 3)
            yield int(i), int(number), key, name


def read_tensors(path: Path, contents: Mapping[str, Any], room: Mapping[str, Tensor]) -> Tensors:
    """The tensors of a sharded checkpoint, each divided as ``room`` has it and whole elsewhere.

    Args:
        path: The file that stands for it.
        contents: What is in the file.
        room: Tensors, by flat name, into whose like the values are read. Every process reads what
            it needs of its own.

    Raises:
        UserError: The shards are missing or damaged.
    """
    folder = path.with_name(contents[SHARDED_KEY]["folder"])
    saved = shards_of(contents)
    read: Tensors = {}
    for name, (shape, dtype) in saved.items():
        model = room.get(name)
        divides = isinstance(model, DTensor) and model.shape == shape
        read[name] = (
            torch.empty_like(model, dtype=dtype)
            if divides and model is not None
            else torch.empty(shape, dtype=dtype)
        )
    if not (folder / ".metadata").is_file():
        raise UserError(
            f"--ckpt_path {path}: its shards are missing: there is no whole folder "
            f"{folder.name} beside it; copy it together with the file"
        )
    try:
        reader = FileSystemReader(folder)
        with warnings.catch_warnings():
            # Each process reads for itself, which torch takes for an oversight.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(cast(dict[str, Any], read), storage_reader=reader, no_dist=True)
    except (OSError, RuntimeError, CheckpointException, EOFError, KeyError) as error:
        raise UserError(
            f"--ckpt_path {path}: its shards in {folder.name} cannot be read ({reason_of(error)}); "
            "take another checkpoint"
        ) from error
    return read


def reason_of(error: BaseException) -> str:
    """The first line of an error, or of the first process's among those that failed."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (cause, _) = next(iter(error.failures.items()))
        return f"process {rank}: {reason_of(cause)}"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def load_whole(path: str | Path) -> dict[str, Any]:
    """A checkpoint's dictionary on the CPU with all its tensors, sharded or not.

    Raises:
        UserError: See :func:`llama_lab.checkpoints.load_file` and :func:`read_tensors`.
    """
    contents = load_file(path, sharded=True)
    if SHARDED_KEY not in contents:
        return contents
    return put_together(contents, read_tensors(Path(path), contents, {}))


def copy_checkpoint(source: Path, target: Path) -> None:
    """Copy a checkpoint, its shards first, under another name."""
    contents = load_file(source, sharded=True, mmap=True)
    if SHARDED_KEY not in contents:
        with source.open("rb") as file:
            write_atomically(target, lambda out: shutil.copyfileobj(file, out))
        return
    shards = source.with_name(contents[SHARDED_KEY]["folder"])
    folder = target.with_name(f"{target.stem}.shards-{new_tag(int(contents['global_step']))}")
    shutil.copytree(shards, folder)
    contents[SHARDED_KEY]["folder"] = folder.name
    write_atomically(target, lambda out: torch.save(contents, out))
    remove_shards(target, but=folder.name)
