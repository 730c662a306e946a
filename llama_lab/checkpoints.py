"""Checkpoints: the contents of the file, and safe reading of it.

A checkpoint is Lightning's own dictionary with one key more, ``llama_lab``: plain numbers,
strings, lists and dicts, so that loading weights only is enough. With it a file is whole in
itself: architecture, tokenizer, settings and step.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_lab.errors import UserError

if TYPE_CHECKING:
    import torch

KEY = "llama_lab"
SHARDED_KEY = "sharded"
"""Says, in a file without tensors, where they are and of which shapes."""
# Files of a Hugging Face folder whose text a checkpoint keeps (:attr:`Record.folder`).
GENERATION_CONFIG_FILE = "generation_config.json"
TOKENIZER_CONFIG_FILE, NAMES_FILE = "tokenizer_config.json", "special_tokens_map.json"
TEMPLATE_FILE = "chat_template.jinja"
FORMAT = 1
DECODER_PREFIX = "decoder."
OWN_KEYS = ("decoder", "tokenizer", "config", "progress")
# What Lightning adds so that training can go on.
TRAINING_KEYS = ("optimizer_states", "lr_schedulers", "loops", "callbacks")


@dataclass(frozen=True)
class Record:
    """The part of a checkpoint that is llama-lab's own.

    Attributes:
        decoder: ``dataclasses.asdict`` of the resolved decoder config.
        tokenizer: The tokenizer's state.
        config: Every setting of the run, as the command line resolved it.
        progress: What the run had done: sequences consumed, order digest, seconds, ….
        weights: The decoder's tensors by logical name.
        step: Optimiser steps taken.
        resumable: Whether it holds all that a run needs to go on.
        fault: The mistake that was planted in the decoder, if any.
        folder: What the Hugging Face folder that it came from brought besides its weights: special
            ids and files; ``None`` where it came from none.
    """

    path: Path
    decoder: dict[str, Any]
    tokenizer: dict[str, Any]
    config: dict[str, Any]
    progress: dict[str, Any]
    weights: dict[str, torch.Tensor]
    step: int
    resumable: bool
    fault: str | None = None
    folder: dict[str, Any] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The run's settings; of a checkpoint made without the command line, what it implies."""
        if self.config:
            return self.config
        return {
            "model": {"decoder": self.decoder, "fault": self.fault},
            "data": {"tokenizer": self.tokenizer["kind"], "vocab_size": None},
        }


def load_file(path: str | Path, *, mmap: bool = False, sharded: bool = False) -> dict[str, Any]:
    """A checkpoint's dictionary on the CPU, weights-only.

    Args:
        path: The file.
        mmap: Leave the tensors in the file until they are used.
        sharded: Whether one whose tensors lie in a folder beside it will do, without them.

    Raises:
        UserError: The file is missing, cut off, sharded, or not a checkpoint of llama-lab.
    """
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            contents = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except FileNotFoundError as error:
        raise UserError(f"--ckpt_path {path}: no such file") from error
    except MemoryError:
        raise
    except Exception as error:  # the unpickler fails on foreign bytes in whatever way they lead it
        size = Path(path).stat().st_size if Path(path).is_file() else 0
        raise _not_whole(path, f"{size:,} bytes; cut off, or another kind of file") from error
    if not isinstance(contents, dict) or not isinstance(contents.get(KEY), dict):
        raise UserError(f"--ckpt_path {path}: not a checkpoint of llama-lab (no `{KEY}` in it)")
    migrated = migrate(contents, path)
    missing = [key for key in ("state_dict", "global_step") if key not in migrated]
    missing += [f"{KEY}.{key}" for key in OWN_KEYS if key not in migrated[KEY]]
    if missing:
        raise _not_whole(path, f"no {', '.join(missing)}")
    if SHARDED_KEY in migrated and not sharded:
        raise UserError(
            f"--ckpt_path {path}: a sharded checkpoint, whose tensors lie in the folder "
            f"{migrated[SHARDED_KEY]['folder']} beside it: make a single file of it with "
            f"`llama-lab consolidate {path} --output FILE`, and name that"
        )
    return migrated


def shards_of(contents: Mapping[str, Any]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Shape and type of each tensor of a sharded checkpoint, by its flat name."""
    import torch

    return {
        name: (torch.Size(of["shape"]), getattr(torch, of["dtype"]))
        for name, of in contents[SHARDED_KEY]["tensors"].items()
    }


def _not_whole(path: str | Path, why: str) -> UserError:
    return UserError(
        f"--ckpt_path {path}: not a whole checkpoint ({why}); "
        "take another one, such as best.ckpt or last.ckpt beside it"
    )


def newest_step(run: Path) -> int:
    """The optimiser step of a run's newest checkpoint; 0 where none can be read.

    Args:
        run: Its folder. The receipt says the step of each checkpoint, a moment after it is written:
            where a kill came between, the file that was written last knows.
    """
    steps = [0]
    receipt = run / "receipt.json"
    with contextlib.suppress(OSError, ValueError, KeyError):
        steps.append(int(json.loads(receipt.read_text(encoding="utf-8"))["steps"]))
    files = sorted((run / "checkpoints").glob("*.ckpt"), key=lambda f: f.stat().st_mtime_ns)
    with contextlib.suppress(UserError, IndexError):
        steps.append(int(load_file(files[-1], mmap=True, sharded=True)["global_step"]))
    return max(steps)


def checkpoint_of_step(step: int, candidates: Iterable[Path]) -> Path | None:
    """The first of some files that is a whole checkpoint of an optimiser step."""
    for path in candidates:
        with contextlib.suppress(UserError):
            if int(load_file(path, mmap=True, sharded=True)["global_step"]) == step:
                return path
    return None


def migrate(contents: dict[str, Any], path: str | Path) -> dict[str, Any]:
    """Bring an older file's own part to this version's fields; the one place that knows old ones.

    Raises:
        UserError: The file was written by a newer version, or its settings are damaged.
    """
    written = contents[KEY].get("format")
    if written != FORMAT:
        raise UserError(
            f"--ckpt_path {path}: checkpoint format {written}, this version reads {FORMAT}; "
            "install the version of llama-lab that wrote it"
        )
    config = contents[KEY].get("config", {})
    data = config.get("data", {}) if isinstance(config, dict) else None
    if not isinstance(data, dict):
        raise _not_whole(path, "its settings are damaged")
    if "corpus" in data and "begin_of_text" not in data:
        # A run of before there was the setting: its store was written without that token.
        data["begin_of_text"] = False
    return contents


def read_record(path: str | Path, *, sharded: bool = False) -> Record:
    """Read a checkpoint without Lightning.

    Args:
        path: The file.
        sharded: Whether a sharded one will do; its weights are then without values, on ``meta``.

    Raises:
        UserError: See :func:`load_file`.
    """
    contents = load_file(path, sharded=sharded)
    own = contents[KEY]
    tensors = contents["state_dict"]
    if SHARDED_KEY in contents:
        import torch

        tensors = {
            name.removeprefix("state_dict."): torch.empty(shape, dtype=dtype, device="meta")
            for name, (shape, dtype) in shards_of(contents).items()
        }
    weights = {
        name.removeprefix(DECODER_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(DECODER_PREFIX)
    }
    return Record(
        path=Path(path),
        decoder=own["decoder"],
        tokenizer=own["tokenizer"],
        config=own["config"],
        progress=own["progress"],
        weights=weights,
        step=int(contents["global_step"]),
        resumable=bool(own["config"]) and all(key in contents for key in TRAINING_KEYS),
        fault=own.get("fault"),
        folder=own.get("folder"),
    )


def check_weights(
    wanted: Mapping[str, torch.Tensor],
    record: Record,
    *,
    flag: str = "--ckpt_path",
    remedy: str = "the file was edited or put together from two models, take another checkpoint",
) -> None:
    """Hold a checkpoint's tensors against those of an architecture.

    Args:
        wanted: The architecture's ``state_dict``; ``meta`` tensors will do.
        record: The checkpoint.
        flag: The setting that names the checkpoint.
        remedy: What to do where they differ.

    Raises:
        UserError: A tensor is missing, surplus, or of another shape; it is named.
    """
    found = record.weights
    faults = [f"{name} is missing" for name in wanted if name not in found]
    faults += [f"{name} is not in the architecture" for name in found if name not in wanted]
    faults += [
        f"{name} has shape {list(found[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in found and found[name].shape != tensor.shape
    ]
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise UserError(
            f"{flag} {record.path}: weights and architecture differ: {faults[0]}{more}; {remedy}"
        )


def own_part(
    *,
    decoder: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    config: Mapping[str, Any],
    progress: Mapping[str, Any],
    fault: str | None = None,
    folder: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The value of the key ``llama_lab``."""
    from llama_lab import __version__

    return {
        "format": FORMAT,
        "version": __version__,
        "decoder": dict(decoder),
        "fault": fault,
        "tokenizer": dict(tokenizer),
        "config": dict(config),
        "progress": dict(progress),
        **({} if folder is None else {"folder": dict(folder)}),
    }
