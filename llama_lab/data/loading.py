"""The batches of each optimiser step, as torch's loaders take them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from llama_lab.data.batches import (
    TrainingWindows,
    ValidationWindows,
    document_numbers,
    gather_windows,
    microbatch_sequences,
)
from llama_lab.data.store.shards import Tokens

Bounds = NDArray[np.uint64] | None
"""First token of every document of a part; ``None`` where documents are not kept apart."""


class Batch(NamedTuple):
    """Sequences of one microbatch. B sequences, T time.

    Attributes:
        inputs: Token ids [B, T].
        targets: The next token of each, IGNORE (-100) where there is none to score [B, T].
        sequences: Global number of each sequence since step 0 [B]. They stay numpy arrays: what
            is recorded of a batch must not cost a copy back from the device.
        starts: First token of each sequence's window [B].
        documents: Which document of its row each input belongs to, where documents are kept apart
            [B, T].
    """

    inputs: torch.Tensor
    targets: torch.Tensor
    sequences: np.ndarray
    starts: np.ndarray
    documents: torch.Tensor | None = None


@dataclass(frozen=True)
class Share:
    """Which part of every optimiser step this process computes."""

    batch_size: int
    accumulation: int
    rank: int
    world_size: int

    @property
    def rows(self) -> int:
        """Sequences in one microbatch of this process."""
        return self.batch_size // (self.accumulation * self.world_size)

    def sequences(self, microbatch: int) -> np.ndarray:
        """Global numbers of the sequences in this process's ``microbatch``-th batch."""
        return microbatch_sequences(
            microbatch=microbatch,
            batch_size=self.batch_size,
            accumulation=self.accumulation,
            rank=self.rank,
            world_size=self.world_size,
        )


class MappedBatches(Dataset[Batch]):
    """Microbatch ``k`` read from the mapped store: item ``k`` is a whole batch."""

    def __init__(
        self,
        tokens: Tokens,
        windows: TrainingWindows,
        share: Share,
        documents: Bounds = None,
    ) -> None:
        self.tokens, self.windows, self.share = tokens, windows, share
        self.documents = documents

    def __getitem__(self, microbatch: int) -> Batch:
        sequences = self.share.sequences(microbatch)
        starts = self.windows.starts(sequences)
        rows = gather_windows(self.tokens, starts, self.windows.context_length + 1)
        ids = torch.from_numpy(rows.astype(np.int64))
        places = starts[:, None] + np.arange(self.windows.context_length)
        numbers = numbers_of(self.documents, places)
        return Batch(ids[:, :-1], ids[:, 1:], sequences, starts, numbers)


class DeviceBatches:
    """The same batches, gathered on the device that holds the whole corpus."""

    # Sequences whose windows are computed together: a microbatch at a time would cost a small
    # model on a fast device a noticeable part of its step.
    BLOCK = 4096

    def __init__(
        self,
        tokens: torch.Tensor,
        windows: TrainingWindows,
        share: Share,
        start: int,
        documents: Bounds = None,
    ) -> None:
        self.tokens, self.windows, self.share, self.start = tokens, windows, share, start
        self.documents = (
            None
            if documents is None
            else torch.from_numpy(documents.astype(np.int64)).to(tokens.device)
        )
        self.steps = torch.arange(windows.context_length + 1, device=tokens.device)

    def __iter__(self) -> Iterator[Batch]:
        block = max(1, self.BLOCK // self.share.rows)
        for first in itertools.count(self.start, block):
            numbers = range(first, first + block)
            sequences = np.stack([self.share.sequences(number) for number in numbers])
            starts = self.windows.starts(sequences.reshape(-1)).reshape(sequences.shape)
            places = torch.from_numpy(starts).to(self.tokens.device)
            for k in range(block):
                read = places[k, :, None] + self.steps
                ids = self.tokens[read].long()
                apart = None
                if self.documents is not None:
                    apart = torch.searchsorted(
                        self.documents, read[:, :-1].contiguous(), right=True
                    )
                yield Batch(ids[:, :-1], ids[:, 1:], sequences[k], starts[k], apart)


class Endless(Sampler[int]):
    """Microbatch numbers from ``start`` on: the step budget ends a run, never the data."""

    def __init__(self, start: int) -> None:
        self.start = start

    def __iter__(self) -> Iterator[int]:
        microbatch = self.start
        while True:
            yield microbatch
            microbatch += 1


class ValidationBatches:
    """This process's share of the held-out windows; every process has equally many batches.

    (DDP synchronises buffers on each forward, so an unequal number would hang.)
    """

    def __init__(
        self,
        tokens: Tokens,
        windows: ValidationWindows,
        rows: int,
        rank: int,
        world_size: int,
        documents: Bounds = None,
    ) -> None:
        self.tokens, self.windows, self.rows = tokens, windows, rows
        self.documents = documents
        self.rank, self.world_size = rank, world_size

    def __len__(self) -> int:
        return -(-self.windows.n_windows // (self.rows * self.world_size))

    def __iter__(self) -> Iterator[Batch]:
        length = self.windows.context_length
        for k in range(len(self)):
            first = (k * self.world_size + self.rank) * self.rows
            numbers = np.arange(first, first + self.rows, dtype=np.int64)
            inputs, targets = self.windows.rows(self.tokens, numbers)
            places = numbers[:, None] * length + np.arange(length)
            yield Batch(
                torch.from_numpy(inputs),
                torch.from_numpy(targets),
                numbers,
                numbers * length,
                numbers_of(self.documents, places),
            )


def numbers_of(documents: Bounds, places: np.ndarray) -> torch.Tensor | None:
    """The documents of places ``[B, T]``, where they are kept apart."""
    return None if documents is None else torch.from_numpy(document_numbers(documents, places))


def keep(batch: Any) -> Any:
    """The collate function of a loader whose items are batches already."""
    return batch
