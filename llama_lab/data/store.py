"""Token ids on disk: one folder for each content, written whole or not at all.

``<cache_dir>/<key>/`` holds ``train.bin`` and ``validation.bin`` (ids, little-endian),
``tokenizer.json`` (the tokenizer's state) and ``info.json``, which is written last and names the
size of every file. The key is a hash of all that the ids follow from, so a folder is never stale.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import shutil
import time
import uuid
from dataclasses import asdict, dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_lab.data.corpora import one_line, read_corpus, shown
from llama_lab.data.tokenizers import (
    Tokenizer,
    UnknownCharacters,
    settled_vocab_size,
    tokenizer_from_state,
    train_tokenizer,
)
from llama_lab.errors import RunError, UserError
from llama_lab.files import write_synced

FORMAT = 1  # part of every key: raise it when the files or what they hold change
PART_FILES = {"train": "train.bin", "validation": "validation.bin"}
TOKENIZER_FILE, INFO_FILE = "tokenizer.json", "info.json"
LARGEST_UINT16_VOCAB = 65536
ABANDONED_AFTER_SECONDS = 24 * 3600.0

Tokens = NDArray[np.uint16] | NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True)
class StoreRequest:
    """What a token store is made from."""

    corpus: str
    """A built-in corpus or a text file, as :func:`llama_lab.data.corpora.read_corpus` takes it."""
    tokenizer: str
    """Kind of tokenizer to train; not looked at where ``tokenizer_state`` is given."""
    vocab_size: int | None
    """Ids to train for; not looked at where ``tokenizer_state`` is given."""
    val_fraction: float
    """Share of the characters, from the end, that are the validation part: 0 < f <= 1."""
    encoding: str | None
    """Encoding of a text file; ``None`` means UTF-8."""
    cache_dir: Path
    """Where stores are kept."""
    data_dir: Path
    """Where built-in corpora are kept."""
    tokenizer_state: dict[str, Any] | None = None
    """Encode with this tokenizer instead of training one."""


@dataclass(frozen=True)
class PartInfo:
    """Sizes of one part."""

    characters: int
    bytes: int
    """In UTF-8."""
    tokens: int


@dataclass(frozen=True)
class StoreInfo:
    """What a store says about itself."""

    corpus: str
    """The name under which its text was first given."""
    corpus_sha256: str
    """Of the whole text in UTF-8."""
    train: PartInfo
    validation: PartInfo
    dtype: str
    """``uint16`` or ``uint32``."""
    digest: str
    """SHA-256 over the ids of both parts and the tokenizer's state."""


@dataclass(frozen=True)
class TokenStore:
    """A store opened for reading; the ids are mapped, not loaded."""

    folder: Path
    train: Tokens
    validation: Tokens
    tokenizer: Tokenizer
    info: StoreInfo

    @property
    def digest(self) -> str:
        """SHA-256 over the ids of both parts and the tokenizer's state."""
        return self.info.digest


def prepare_store(request: StoreRequest) -> Path:
    """The folder of the store for ``request``, written if it is not there or not whole.

    Processes may do this at once: the first to finish wins and the others take its folder.

    Raises:
        UserError: A setting, the corpus or the cache folder cannot be used.
    """
    fraction = exact_fraction(request.val_fraction)
    if request.tokenizer_state is None:
        settled_vocab_size(request.tokenizer, request.vocab_size)
    text = read_corpus(request.corpus, encoding=request.encoding, data_dir=request.data_dir)
    corpus_sha256 = _sha256(text.encode("utf-8"))
    if (trained := _trained_store(request, fraction, corpus_sha256)) is not None:
        return trained
    folder = request.cache_dir / _key(request, fraction, corpus_sha256)
    if _defect(folder) is not None:
        train_text, validation_text = split_text(text, fraction)
        tokenizer = _tokenizer_for(request, train_text, text)
        parts = {
            "train": _encode(tokenizer, train_text, request.corpus, "train"),
            "validation": _encode(tokenizer, validation_text, request.corpus, "validation"),
        }
        texts = {"train": train_text, "validation": validation_text}
        info = _describe(request.corpus, corpus_sha256, texts, parts, tokenizer)
        try:
            _publish(folder, parts, tokenizer, info)
        except OSError as error:
            kind = RunError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UserError
            raise kind(
                f"--data.cache_dir {shown(request.cache_dir)}: the token store cannot be written "
                f"({error.strerror or one_line(error)}); make room there or name another folder"
            ) from error
    return folder


def open_store(folder: Path) -> TokenStore:
    """Map a store that :func:`prepare_store` wrote.

    Raises:
        UserError: The folder is not a whole store.
    """
    defect = _defect(folder)
    if defect is not None:
        raise UserError(
            f"--data.cache_dir: {shown(folder)} is not a whole token store ({defect}); "
            "delete it and run again, which writes it anew"
        )
    info = _read_info(folder)
    state = json.loads((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
    return TokenStore(
        folder=folder,
        train=_map(folder / PART_FILES["train"], info.dtype),
        validation=_map(folder / PART_FILES["validation"], info.dtype),
        tokenizer=tokenizer_from_state(state),
        info=info,
    )


def exact_fraction(val_fraction: float) -> Fraction:
    """The decimal that was written, exactly: 0.1 is 1/10 and not the double next to it.

    Raises:
        UserError: It is not in (0, 1].
    """
    if not 0 < val_fraction <= 1:
        raise UserError(
            f"--data.val_fraction {val_fraction} is not above 0 and at most 1; "
            "set it to the validation part's share of the characters, such as 0.1"
        )
    return Fraction(Decimal(repr(float(val_fraction))))


def split_text(text: str, val_fraction: Fraction) -> tuple[str, str]:
    """The first floor((1 - val_fraction) * characters) characters, and the rest."""
    cut = math.floor((1 - val_fraction) * len(text))
    return text[:cut], text[cut:]


def _trained_store(request: StoreRequest, fraction: Fraction, corpus_sha256: str) -> Path | None:
    """The store of the run whose tokenizer is asked for, if it is still there.

    It was written under the settings that the tokenizer was trained with, and holds the same ids.
    """
    if request.tokenizer_state is None:
        return None
    plain = dataclasses.replace(request, tokenizer_state=None)
    try:
        folder = request.cache_dir / _key(plain, fraction, corpus_sha256)
    except UserError:  # settings under which nothing is trained
        return None
    if _defect(folder) is not None:
        return None
    state = json.loads((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
    return folder if _canonical(state) == _canonical(request.tokenizer_state) else None


def _key(request: StoreRequest, fraction: Fraction, corpus_sha256: str) -> str:
    if request.tokenizer_state is None:
        wanted = settled_vocab_size(request.tokenizer, request.vocab_size)
        tokenizer: dict[str, Any] = {"kind": request.tokenizer, "vocab_size": wanted}
    else:
        tokenizer = {"state_sha256": _sha256(_canonical(request.tokenizer_state))}
    inputs = {
        "format": FORMAT,
        "corpus_sha256": corpus_sha256,
        "tokenizer": tokenizer,
        "val_fraction": str(fraction),
    }
    return _sha256(_canonical(inputs))[:32]


def _tokenizer_for(request: StoreRequest, train_text: str, whole_text: str) -> Tokenizer:
    if request.tokenizer_state is not None:
        return tokenizer_from_state(request.tokenizer_state)
    return train_tokenizer(
        request.tokenizer,
        train_text=train_text,
        whole_text=whole_text,
        vocab_size=request.vocab_size,
    )


def _encode(tokenizer: Tokenizer, text: str, corpus: str, part: str) -> Tokens:
    try:
        ids = tokenizer.encode(text)
    except UnknownCharacters as error:
        raise UnknownCharacters(f"--data.corpus {shown(corpus)}, {part} part: {error}") from error
    return ids.astype("<u2" if tokenizer.vocab_size <= LARGEST_UINT16_VOCAB else "<u4")


def _describe(
    corpus: str,
    corpus_sha256: str,
    texts: dict[str, str],
    parts: dict[str, Tokens],
    tokenizer: Tokenizer,
) -> StoreInfo:
    sizes = {
        part: PartInfo(
            characters=len(text), bytes=len(text.encode("utf-8")), tokens=parts[part].size
        )
        for part, text in texts.items()
    }
    dtype = parts["train"].dtype.name
    header = {"dtype": dtype, "tokens": {part: ids.size for part, ids in parts.items()}}
    digest = hashlib.sha256(_canonical(header))
    for ids in parts.values():
        digest.update(ids.data)
    digest.update(_canonical(tokenizer.state()))
    return StoreInfo(
        corpus=corpus,
        corpus_sha256=corpus_sha256,
        train=sizes["train"],
        validation=sizes["validation"],
        dtype=dtype,
        digest=digest.hexdigest(),
    )


def _publish(folder: Path, parts: dict[str, Tokens], tokenizer: Tokenizer, info: StoreInfo) -> None:
    """Write a folder beside ``folder`` and rename it there; leaves nothing behind on failure."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        temporary.mkdir()
        contents: dict[str, bytes | memoryview] = {
            PART_FILES[part]: ids.data for part, ids in parts.items()
        }
        contents[TOKENIZER_FILE] = _canonical(tokenizer.state())
        for name, data in contents.items():
            write_synced(temporary / name, data)
        sizes = {name: (temporary / name).stat().st_size for name in contents}
        hashes = {name: _sha256(data) for name, data in contents.items()}
        record = {"format": FORMAT, **asdict(info), "sizes": sizes, "sha256": hashes}
        write_synced(temporary / INFO_FILE, json.dumps(record, indent=2).encode("ascii"))
        _sync_folder(temporary)
        _move_into_place(temporary, folder)
        _sync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move_into_place(temporary: Path, folder: Path) -> None:
    """Rename onto ``folder`` unless a whole store already stands there."""
    while _defect(folder) is not None:
        try:
            os.rename(temporary, folder)
            return
        except OSError:
            if not folder.exists():
                raise
        # A rename does not replace a folder with files in it: what is broken has to go first.
        if _defect(folder) is not None:
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


def _defect(folder: Path) -> str | None:
    """What keeps ``folder`` from being a whole store, or ``None``."""
    try:
        record = json.loads((folder / INFO_FILE).read_bytes())
        if record["format"] != FORMAT:
            return f"{INFO_FILE} is of format {record['format']}, not {FORMAT}"
        for name in (*PART_FILES.values(), TOKENIZER_FILE):
            size = (folder / name).stat().st_size
            if size != record["sizes"][name]:
                return f"{name} has {size} bytes, not {record['sizes'][name]}"
        if _sha256((folder / TOKENIZER_FILE).read_bytes()) != record["sha256"][TOKENIZER_FILE]:
            return f"{TOKENIZER_FILE} was changed"
        _read_info(folder)
    except OSError as error:
        return f"{Path(error.filename or folder).name}: {error.strerror or one_line(error)}"
    except (ValueError, KeyError, TypeError):
        return f"{INFO_FILE} is damaged"
    return None


def _read_info(folder: Path) -> StoreInfo:
    record = json.loads((folder / INFO_FILE).read_bytes())
    return StoreInfo(
        corpus=record["corpus"],
        corpus_sha256=record["corpus_sha256"],
        train=PartInfo(**record["train"]),
        validation=PartInfo(**record["validation"]),
        dtype=record["dtype"],
        digest=record["digest"],
    )


def _map(path: Path, dtype: str) -> Tokens:
    little_endian = np.dtype(dtype).newbyteorder("<")
    if path.stat().st_size == 0:  # nothing can be mapped
        return np.empty(0, dtype=little_endian)
    return np.memmap(path, dtype=little_endian, mode="r")


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _sync_folder(folder: Path) -> None:
    # Without this a power cut can undo a rename. Windows and some network drives do not offer it.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
