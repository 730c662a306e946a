"""Token ids on disk: one folder for each content, written whole or not at all.

``<cache_dir>/<key>/`` holds, for the parts ``train`` and ``validation``, ids in shards
(``train.bin``, ``train.1.bin``, …; little-endian) and, where the text is made of documents, the
place of each one's first token (``train.documents.bin``, uint64); ``tokenizer.json`` (the
tokenizer's state) and ``info.json``, which is written last and names the size of every file. The
key is a hash of all that the ids follow from, so a folder is never stale.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_lab.data.corpus.built_in import one_line, shown
from llama_lab.data.store.shards import SHARD_TOKENS, ShardedTokens, Tokens, n_shards, shard_name
from llama_lab.data.tokenizers.kinds import Tokenizer, tokenizer_from_state
from llama_lab.errors import UserError
from llama_lab.files import write_synced

FORMAT = 2  # part of every key: raise it when the files or what they hold change
PARTS = ("train", "validation")
TOKENIZER_FILE, INFO_FILE = "tokenizer.json", "info.json"
ABANDONED_AFTER_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class PartInfo:
    """Sizes of one part."""

    characters: int
    bytes: int
    """In UTF-8."""
    tokens: int
    documents: int | None = None
    """``None`` where the text is a running one."""


@dataclass(frozen=True)
class StoreInfo:
    """What a store says about itself."""

    corpus: str
    """The name under which its text was first given."""
    corpus_sha256: str
    """Of the whole text in UTF-8, and of the sizes of its documents, if it is made of them."""
    train: PartInfo
    validation: PartInfo
    dtype: str
    """``uint16`` or ``uint32``."""
    digest: str
    """SHA-256 over the ids of both parts and the tokenizer's state."""
    shard_tokens: int = SHARD_TOKENS
    """Ids in every shard of a part but the last."""
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of every file of ids and documents."""
    report: Mapping[str, Any] = field(default_factory=dict)
    """What was met on the way: the split, what was left out, long documents, characters that the
    training part lacks."""

    @property
    def start_of_text(self) -> int | None:
        """Id in front of every document, and of every window that is scored; maybe none."""
        about = self.report.get("begin_of_text")  # older stores have none
        return None if about is None else int(about["id"])

    @property
    def piped(self) -> bool:
        """Whether some of its text came through a pipe, so that it cannot be read again."""
        sources = self.report.get("sources", {})
        return any(about.get("piped", False) for about in sources.values())


@dataclass(frozen=True)
class TokenStore:
    """A store opened for reading; the ids are mapped, not loaded."""

    folder: Path
    train: Tokens
    validation: Tokens
    tokenizer: Tokenizer
    info: StoreInfo
    train_documents: NDArray[np.uint64] | None = None
    """First token of every document, ascending; ``None`` where the text is a running one."""
    validation_documents: NDArray[np.uint64] | None = None

    @property
    def digest(self) -> str:
        """SHA-256 over the ids of both parts and the tokenizer's state."""
        return self.info.digest


def open_store(folder: Path, corpus: str | None = None) -> TokenStore:
    """Map a store that was prepared. What it takes does not grow with the text.

    Args:
        folder: Of the store.
        corpus: What its text is called now; ``None`` keeps the name under which it was first read.

    Raises:
        UserError: The folder is not a whole store.
    """
    wrong = defect(folder)
    if wrong is not None:
        raise UserError(
            f"--data.cache_dir: {shown(folder)} is not a whole token store ({wrong}); "
            "delete it and run again, which writes it anew"
        )
    info = _read_info(folder)
    if corpus is not None:
        info = dataclasses.replace(info, corpus=corpus)
    state = json.loads((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
    return TokenStore(
        folder=folder,
        train=_map(folder, "train", info),
        validation=_map(folder, "validation", info),
        tokenizer=tokenizer_from_state(state),
        info=info,
        train_documents=_documents(folder, "train", info),
        validation_documents=_documents(folder, "validation", info),
    )


def find_store(cache_dir: Path, digest: str, *, piped: bool = False) -> Path | None:
    """The folder of a whole store with this digest, if there is one.

    Args:
        cache_dir: Where stores are kept.
        digest: SHA-256 over the ids of both parts and the tokenizer's state.
        piped: Take only a store whose text came through a pipe.
    """
    for info in sorted(cache_dir.glob(f"[!.]*/{INFO_FILE}")):
        if defect(info.parent) is None:
            about = _read_info(info.parent)
            if about.digest == digest and (about.piped or not piped):
                return info.parent
    return None


def publish(folder: Path, tokenizer: Tokenizer, write: Callable[[Path], StoreInfo]) -> None:
    """Write a folder beside ``folder`` and rename it there; leaves nothing behind on failure,
    no empty folders either.

    Args:
        folder: Of the store.
        tokenizer: Whose ids it holds.
        write: Writes the files of ids into the folder that it is given, onto the disk.
    """
    missing = [parent for parent in folder.parents if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        temporary.mkdir()
        info = write(temporary)
        state = canonical(tokenizer.state())
        write_synced(temporary / TOKENIZER_FILE, state)
        record = {"format": FORMAT, **asdict(info), "tokenizer_sha256": sha256(state)}
        write_synced(temporary / INFO_FILE, json.dumps(record, indent=2).encode("ascii"))
        _sync_folder(temporary)
        _move_into_place(temporary, folder)
        _sync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for parent in missing:
            with contextlib.suppress(OSError):  # the store is in it
                parent.rmdir()


def _move_into_place(temporary: Path, folder: Path) -> None:
    """Rename onto ``folder`` unless a whole store already stands there."""
    while defect(folder) is not None:
        try:
            os.rename(temporary, folder)
            return
        except OSError:
            if not folder.exists():
                raise
        # A rename does not replace a folder with files in it: what is broken has to go first.
        if defect(folder) is not None:
            broken = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
            with contextlib.suppress(FileNotFoundError):  # another process moved it first
                os.rename(folder, broken)
            shutil.rmtree(broken, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Delete what a killed process left of this store long ago; a young one may be at work."""
    for left_over in folder.parent.glob(f".{folder.name}.*"):
        with contextlib.suppress(FileNotFoundError):  # its writer just finished
            if time.time() - left_over.stat().st_mtime > ABANDONED_AFTER_SECONDS:
                shutil.rmtree(left_over, ignore_errors=True)


def defect(folder: Path) -> str | None:
    """What keeps ``folder`` from being a whole store, or ``None``."""
    try:
        record = json.loads((folder / INFO_FILE).read_bytes())
        if record["format"] != FORMAT:
            return f"{INFO_FILE} is of format {record['format']}, not {FORMAT}"
        info = _read_info(folder)
        for name, size in _files(info).items():
            here = (folder / name).stat().st_size
            if here != size:
                return f"{name} has {here} bytes, not {size}"
        if sha256((folder / TOKENIZER_FILE).read_bytes()) != record["tokenizer_sha256"]:
            return f"{TOKENIZER_FILE} was changed"
    except OSError as error:
        return f"{Path(error.filename or folder).name}: {error.strerror or one_line(error)}"
    except (ValueError, KeyError, TypeError):
        return f"{INFO_FILE} is damaged"
    return None


def _files(info: StoreInfo) -> dict[str, int]:
    """Every file of ids and documents that must be there, and its bytes."""
    width = np.dtype(info.dtype).itemsize
    files = {}
    for part in PARTS:
        about: PartInfo = getattr(info, part)
        for number in range(n_shards(about.tokens, info.shard_tokens)):
            left = about.tokens - number * info.shard_tokens
            files[shard_name(part, number)] = min(left, info.shard_tokens) * width
        if about.documents is not None:
            files[f"{part}.documents.bin"] = about.documents * 8
    return files


def _read_info(folder: Path) -> StoreInfo:
    record = json.loads((folder / INFO_FILE).read_bytes())
    values = {each.name: record[each.name] for each in fields(StoreInfo)}
    parts = {part: PartInfo(**values[part]) for part in PARTS}
    return StoreInfo(**{**values, **parts})


def _map(folder: Path, part: str, info: StoreInfo) -> Tokens:
    dtype = np.dtype(info.dtype).newbyteorder("<")
    n_tokens = getattr(info, part).tokens
    if n_tokens == 0:  # nothing can be mapped
        return np.empty(0, dtype=dtype)
    if n_tokens <= info.shard_tokens:
        return np.memmap(folder / shard_name(part, 0), dtype=dtype, mode="r")
    return ShardedTokens(folder, part, dtype, n_tokens, info.shard_tokens)


def _documents(folder: Path, part: str, info: StoreInfo) -> NDArray[np.uint64] | None:
    n = getattr(info, part).documents
    if not n:
        return None if n is None else np.empty(0, dtype="<u8")
    return np.memmap(folder / f"{part}.documents.bin", dtype="<u8", mode="r")


def file_digest(path: Path, digest: Any) -> None:
    """Add a file's bytes to a hash."""
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)


def canonical(value: object) -> bytes:
    """``value`` as JSON, in one spelling."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def sha256(data: bytes) -> str:
    """In hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _sync_folder(folder: Path) -> None:
    # Without this a power cut can undo a rename. Windows and some network drives do not offer it.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
