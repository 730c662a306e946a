"""Token ids in files of equally many, written one after the other and mapped where they are read.

N tokens, S shards.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

SHARD_TOKENS = 1 << 28
OPEN_SHARDS = 64

Tokens = Any
"""A numpy array of ids, or :class:`ShardedTokens`: ``len``, ``dtype``, indices and slices."""


def shard_name(part: str, number: int) -> str:
    """``train.bin``, ``train.1.bin``, …"""
    return f"{part}.{number}.bin" if number else f"{part}.bin"


def n_shards(tokens: int, shard_tokens: int) -> int:
    """Files that so many tokens take; one where there are none."""
    return max(1, -(-tokens // shard_tokens))


class ShardedTokens:
    """The ids of one part, read by place as from an array ``[N]``.

    A shard is mapped when it is first read, and at most :data:`OPEN_SHARDS` are kept, so that
    memory does not depend on N.

    Args:
        folder: Of the store.
        part: ``train`` or ``validation``.
        dtype: Of the ids.
        n_tokens: N.
        shard_tokens: In each file but the last.
    """

    def __init__(
        self, folder: Path, part: str, dtype: np.dtype[Any], n_tokens: int, shard_tokens: int
    ) -> None:
        self.folder, self.part, self.dtype = folder, part, dtype
        self.n_tokens, self.shard_tokens = n_tokens, shard_tokens
        self.maps: OrderedDict[int, NDArray[Any]] = OrderedDict()

    def __len__(self) -> int:
        return self.n_tokens

    def __getstate__(self) -> dict[str, Any]:
        """Loader processes map for themselves."""
        return {**vars(self), "maps": OrderedDict()}

    @property
    def size(self) -> int:
        """N."""
        return self.n_tokens

    def shard(self, number: int) -> NDArray[Any]:
        """One file's ids, mapped."""
        if number in self.maps:
            self.maps.move_to_end(number)
        else:
            while len(self.maps) >= OPEN_SHARDS:
                self.maps.popitem(last=False)
            path = self.folder / shard_name(self.part, number)
            self.maps[number] = np.memmap(path, dtype=self.dtype, mode="r")
        return self.maps[number]

    def __getitem__(self, places: NDArray[np.integer[Any]] | slice) -> NDArray[Any]:
        """Ids at ``places``, an array of any shape with entries from 0, or a slice."""
        if isinstance(places, slice):
            places = np.arange(*places.indices(self.n_tokens), dtype=np.int64)
        places = np.asarray(places, dtype=np.int64)
        shards, within = np.divmod(places, self.shard_tokens)
        found = np.empty(places.shape, dtype=self.dtype)
        for number in np.unique(shards).tolist():
            here = shards == number
            found[here] = self.shard(number)[within[here]]
        return found


class PartWriter:
    """Writes one part's ids, shard by shard, and where its documents begin.

    Args:
        folder: Of the store, not published yet.
        part: ``train`` or ``validation``.
        dtype: Of the ids.
        with_documents: Whether the beginnings of documents are kept.
        shard_tokens: In each file but the last.
    """

    def __init__(
        self,
        folder: Path,
        part: str,
        dtype: np.dtype[Any],
        *,
        with_documents: bool,
        shard_tokens: int = SHARD_TOKENS,
    ) -> None:
        self.folder, self.part, self.dtype = folder, part, dtype
        self.shard_tokens, self.with_documents = shard_tokens, with_documents
        self.tokens, self.documents = 0, 0
        self.hashes: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.file: IO[bytes] | None = None
        self.name = ""
        self.hash = hashlib.sha256()
        self.ids_hash = hashlib.sha256()  # of all shards
        self.starts: IO[bytes] | None = None
        self.starts_hash = hashlib.sha256()
        self._open(shard_name(part, 0))

    def append(self, ids: NDArray[Any]) -> None:
        """Add ids, ``[n]``."""
        ids = np.ascontiguousarray(ids, dtype=self.dtype)
        while ids.size:
            number, filled = divmod(self.tokens, self.shard_tokens)
            if self.tokens and not filled:
                self._close()
                self._open(shard_name(self.part, number))
            now = ids[: self.shard_tokens - filled]
            self._write(now.data)
            self.ids_hash.update(now.data)
            self.tokens += now.size
            ids = ids[now.size :]

    def begin_document(self) -> None:
        """The next id is a document's first."""
        self.documents += 1
        if not self.with_documents:
            return
        if self.starts is None:
            self.starts = open(self.folder / f"{self.part}.documents.bin", "xb")  # noqa: SIM115
        data = self.tokens.to_bytes(8, "little")
        self.starts.write(data)
        self.starts_hash.update(data)

    def finish(self) -> None:
        """Force all to the disk."""
        self._close()
        if self.with_documents and self.starts is None:  # a part without a document
            self.starts = open(self.folder / f"{self.part}.documents.bin", "xb")  # noqa: SIM115
        if self.starts is not None:
            name = f"{self.part}.documents.bin"
            self.hashes[name], self.sizes[name] = self.starts_hash.hexdigest(), self.documents * 8
            _close_synced(self.starts)

    def _open(self, name: str) -> None:
        self.name, self.hash = name, hashlib.sha256()
        self.file = open(self.folder / name, "xb")  # noqa: SIM115 (closed by _close)
        self.sizes[name] = 0

    def _write(self, data: memoryview) -> None:
        assert self.file is not None
        self.file.write(data)
        self.hash.update(data)
        self.sizes[self.name] += data.nbytes

    def _close(self) -> None:
        assert self.file is not None
        self.hashes[self.name] = self.hash.hexdigest()
        _close_synced(self.file)
        self.file = None


def _close_synced(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
