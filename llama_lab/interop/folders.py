"""Folders of safetensors: read without trust, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor

from llama_lab.errors import RunError, UserError
from llama_lab.files import json_bytes, umask
from llama_lab.interop.layouts import Shape
from llama_lab.interop.values import LARGEST_INDEX, missing, read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = ("F64", "F32", "F16", "BF16")


class TensorFolder:
    """The tensors of a folder: names, shapes and types are known at once, data on request.

    The headers alone are read here. safetensors itself refuses a header that its file does not
    bear out, and a file cannot make anything run.

    Attributes:
        shapes: Every tensor's shape.

    Raises:
        UserError: There is no safetensors file, one is broken, or the index is not to be trusted.
    """

    def __init__(self, folder: Path) -> None:
        self.shapes: dict[str, Shape] = {}
        self._file_of: dict[str, Path] = {}
        index = self._index(folder)
        files = [folder / SINGLE] if index is None else sorted({folder / n for n in index.values()})
        for file in files:
            self._read_header(file)
        if index is None:
            return
        for name, file_name in index.items():
            if self._file_of.get(name) != folder / file_name:
                raise UserError(f"{folder / INDEX}: tensor {name} is missing from {file_name}")

    @staticmethod
    def _index(folder: Path) -> dict[str, str] | None:
        """Each tensor's file where there are several, else ``None``."""
        if os.path.lexists(folder / SINGLE):
            return None
        if not os.path.lexists(folder / INDEX):
            pickles = sorted(p.name for p in folder.glob("*.bin")) + sorted(
                p.name for p in folder.glob("*.pt*")
            )
            also = f" (there is {pickles[0]}, a pickle, which could run code)" if pickles else ""
            raise UserError(f"{folder}: holds no {SINGLE} and no {INDEX}{also}; convert it first")
        places = read_json(folder / INDEX, most=LARGEST_INDEX).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise UserError(f"{folder / INDEX}: has no weight_map")
        for name, file_name in places.items():
            is_plain = isinstance(file_name, str) and Path(file_name).name == file_name
            if not is_plain or "\\" in file_name or not file_name.endswith(".safetensors"):
                raise UserError(
                    f"{folder / INDEX}: tensor {name} is said to be in {str(file_name)[:80]!r}, "
                    "which is not the name of a safetensors file in that folder"
                )
        return places

    def _read_header(self, path: Path) -> None:
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                tensor = file.get_slice(name)
                if tensor.get_dtype() not in DTYPES:
                    raise UserError(
                        f"{path}: tensor {name} is of type {tensor.get_dtype()}; this version "
                        f"reads {', '.join(DTYPES)}, so convert a quantised model first"
                    )
                if name in self.shapes:
                    raise UserError(f"{path}: tensor {name} is in two files")
                self.shapes[name] = tuple(tensor.get_shape())
                self._file_of[name] = path

    def read(self, name: str) -> Tensor:
        """One tensor, as it is stored."""
        path = self._file_of[name]
        with _opened(path) as file:
            return file.get_tensor(name)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    if not path.is_file():
        raise UserError(f"{path}: {missing(path)}")
    try:
        _refuse_long_header(path)
        with safetensors.safe_open(str(path), framework="pt") as file:
            yield file
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not a whole safetensors file ({reason})") from error


def _refuse_long_header(path: Path) -> None:
    """safetensors reads headers of 100 MB, and takes a gigabyte of memory and minutes for it."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > LARGEST_INDEX:
        raise ValueError(f"a header of {size:,} bytes is too large")


def write_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Make a folder that is there whole or not at all.

    Args:
        target: The folder; it must not be there.
        write: Writes the files into the folder that it is given, which is then renamed.

    Raises:
        UserError: ``target`` exists, or the folder that it should lie in does not.
        RunError: The disk is full or refuses.
    """
    refuse_existing(target)
    temporary = None
    try:
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
        write(temporary)
        for file in temporary.iterdir():
            _force_to_disk(file)
        os.chmod(temporary, 0o777 & ~umask())
        os.rename(temporary, target)
    except BaseException as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        if not isinstance(error, OSError | safetensors.SafetensorError):
            raise
        raise RunError(f"cannot write {target} ({error}); nothing is left of it") from error


def refuse_existing(target: Path) -> None:
    """Refuse an output that is there already, or whose folder is not."""
    if target.exists() or target.is_symlink():
        raise UserError(f"--output {target}: it is there already; give another name, or remove it")
    if not target.absolute().parent.is_dir():
        raise UserError(f"--output {target}: there is no folder {target.absolute().parent}")


def write_tensors(
    folder: Path, shapes: Mapping[str, Shape], tensor: Callable[[str], Tensor], limit: int
) -> None:
    """Write float32 tensors, in one file or, above ``limit`` bytes, in several with an index.

    Args:
        folder: Where to.
        shapes: The tensors, in the order in which they are written.
        tensor: Gives one by name; no more than one file's are held at once.
        limit: Bytes of one file; a single tensor may be larger.
    """
    shards = list(_shards(shapes, limit))
    places: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        name = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        # `format` is what transformers asks for before it reads a file.
        save_file({n: tensor(n) for n in names}, folder / name, metadata={"format": "pt"})
        places |= dict.fromkeys(names, name)
    if len(shards) > 1:
        total = sum(_bytes(shape) for shape in shapes.values())
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": places})


def _shards(shapes: Mapping[str, Shape], limit: int) -> Iterator[list[str]]:
    names: list[str] = []
    size = 0
    for name, shape in shapes.items():
        if names and size + _bytes(shape) > limit:
            yield names
            names, size = [], 0
        names.append(name)
        size += _bytes(shape)
    yield names


def _bytes(shape: Shape) -> int:
    return torch.Size(shape).numel() * 4


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file as people read it."""
    path.write_bytes(json_bytes(content))


def _force_to_disk(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
    # safetensors makes its files for their owner alone.
    os.chmod(file, 0o666 & ~umask())
