"""The tokens of step k, computed from (seed, sequence number) and never drawn.

Sequences are numbered from 0 over the whole run. A number fixes its window, a step fixes its
numbers, and neither depends on what was read before, so a run continues after any sequence on any
number of devices.

S sequences, C context length, N tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
UInt64Array = NDArray[np.uint64]

IGNORE = -100
"""The target of a position that is not scored."""

MASK_64 = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: the increment of splitmix64
FEISTEL_ROUNDS = 6
MOST_WAITING = 64


def mix64(values: UInt64Array) -> UInt64Array:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014): a bijection on 64-bit integers.

    Array arithmetic wraps modulo 2**64; numpy scalars would warn, so ``values`` must be an array.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def permute(indices: UInt64Array, keys: UInt64Array, size: int) -> UInt64Array:
    """The image of each index under the permutation of ``0 … size - 1`` that its key names.

    A Feistel network on the smallest b >= 2 bits that hold ``size - 1``, split into b // 2 high
    bits h and the low bits l. Its rounds alternate between ::

        h <- h xor (mix64(l + key + round * GOLDEN) cut to the bits of h)
        l <- l xor (mix64(h + key + round * GOLDEN) cut to the bits of l)

    Each is its own inverse, so the whole is a bijection on 2**b values. A value outside the range
    is sent through again until it lands inside (cycle walking), which leaves a bijection on the
    range and takes fewer than two passes on average, since 2**b < 2 * size for size > 2. No table
    is kept: memory does not depend on ``size``. Source: Black and Rogaway, "Ciphers with Arbitrary
    Finite Domains", 2002.

    Args:
        indices: ``[S]``, each below ``size``.
        keys: ``[S]``; indices with the same key share a permutation.
        size: Number of values permuted, at least 1.
    """
    bits = max(2, (size - 1).bit_length())
    low_bits = np.uint64(bits - bits // 2)
    high_mask = np.uint64(2 ** (bits // 2) - 1)
    low_mask = np.uint64(2 ** int(low_bits) - 1)

    def encrypt(values: UInt64Array, keys: UInt64Array) -> UInt64Array:
        high, low = values >> low_bits, values & low_mask
        for number in range(0, FEISTEL_ROUNDS, 2):
            high = high ^ (mix64(low + keys + _round_constant(number)) & high_mask)
            low = low ^ (mix64(high + keys + _round_constant(number + 1)) & low_mask)
        return (high << low_bits) | low

    values = encrypt(indices, keys)
    while (outside := values >= np.uint64(size)).any():
        values[outside] = encrypt(values[outside], keys[outside])
    return values


def _round_constant(number: int) -> np.uint64:
    return np.uint64(number * GOLDEN & MASK_64)


@dataclass(frozen=True)
class TrainingWindows:
    """The training windows of a corpus, epoch after epoch.

    In each epoch the tokens are cut into ``n_windows`` windows of C inputs (and one more token, the
    last target), end to end from an offset that is drawn from (seed, epoch), and every window is
    read once, in an order that is a permutation keyed by (seed, epoch).

    With q = floor((N - 1) / C) and the rest s = (N - 1) - q C, there are q windows where s = C - 1
    and else q - 1, so that the offset can take all of 0 … C - 1. Where q = 1 the one window
    remains, and its offset ranges over 0 … s.

    Args:
        n_tokens: N, up to 10**12 and beyond.
        context_length: C.
        seed: Any integer; only its low 64 bits count.

    Raises:
        ValueError: There are not even C + 1 tokens.
    """

    n_tokens: int
    context_length: int
    seed: int

    def __post_init__(self) -> None:
        if self.context_length < 1 or self.n_tokens < self.context_length + 1:
            raise ValueError(
                f"{self.n_tokens} tokens hold no window of {self.context_length} and a last target"
            )

    @property
    def n_windows(self) -> int:
        """Windows in an epoch; the same in every epoch."""
        most, rest = divmod(self.n_tokens - 1, self.context_length)
        return most if most == 1 or rest == self.context_length - 1 else most - 1

    @property
    def n_offsets(self) -> int:
        """How many values the offset of an epoch can take."""
        room = self.n_tokens - 1 - self.n_windows * self.context_length
        return min(self.context_length, room + 1)

    def epoch_of(self, sequences: Int64Array) -> Int64Array:
        """The epoch that each sequence number falls into."""
        return np.asarray(sequences, dtype=np.int64) // self.n_windows

    def passes(self, sequences_consumed: int) -> float:
        """How often the text has been read: targets consumed over targets in the text."""
        return sequences_consumed * self.context_length / (self.n_tokens - 1)

    def starts(self, sequences: Int64Array) -> Int64Array:
        """The first token of the window that each sequence reads, ``[S] -> [S]``.

        A pure function of (N, C, seed, number); the numbers may lie in different epochs.
        """
        numbers = np.asarray(sequences, dtype=np.int64).reshape(-1)
        epochs = numbers // self.n_windows
        indices = (numbers - epochs * self.n_windows).astype(np.uint64)
        seed_key = mix64(np.array([self.seed & MASK_64], dtype=np.uint64))
        keys = mix64(seed_key + epochs.astype(np.uint64) * np.uint64(GOLDEN))
        offsets = mix64(keys ^ np.uint64(GOLDEN)) % np.uint64(self.n_offsets)
        windows = permute(indices, keys, self.n_windows)
        return (offsets + windows * np.uint64(self.context_length)).astype(np.int64)


def microbatch_sequences(
    *, microbatch: int, batch_size: int, accumulation: int, rank: int, world_size: int
) -> Int64Array:
    """Numbers of the sequences that ``rank`` reads in its k-th microbatch, ``[rows]``.

    Step s consumes the numbers s * batch_size … (s + 1) * batch_size - 1, whatever the split.
    Within it microbatch m takes the m-th of ``accumulation`` equal runs, and rank r the r-th of
    ``world_size`` equal runs of that.

    Args:
        microbatch: k, counted from the first microbatch of step 0: k = s * accumulation + m.
        batch_size: Sequences in an optimiser step, over all ranks and microbatches.
        accumulation: Microbatches in a step.
        rank: r.
        world_size: Number of ranks.

    Raises:
        ValueError: ``batch_size`` is not a multiple of accumulation * world_size.
    """
    rows, rest = divmod(batch_size, accumulation * world_size)
    if rest:
        raise ValueError(
            f"batch size {batch_size} is no multiple of {accumulation} microbatches "
            f"times {world_size} ranks"
        )
    step, part = divmod(microbatch, accumulation)
    first = step * batch_size + (part * world_size + rank) * rows
    return np.arange(first, first + rows, dtype=np.int64)


def gather_windows(tokens: NDArray[np.integer], starts: Int64Array, length: int) -> Int64Array:
    """Runs of ``length`` tokens, one a row, ``[N], [S] -> [S, length]`` int64."""
    places = np.asarray(starts, dtype=np.int64)[:, None] + np.arange(length, dtype=np.int64)
    return np.asarray(tokens[places], dtype=np.int64)


def document_numbers(documents: NDArray[np.uint64], places: Int64Array) -> Int64Array:
    """Which document each place lies in, from 0 at the first of its row: ``[S, T]`` to the same.

    Args:
        documents: First token of every document, ascending.
        places: Places in the part, a window a row.
    """
    numbers = np.searchsorted(documents, places.astype(np.uint64), side="right").astype(np.int64)
    return numbers - numbers[:, :1]


@dataclass(frozen=True)
class ValidationWindows:
    """A split cut into windows that score each of its N - 1 targets exactly once.

    Window w reads tokens w C … w C + C - 1 and is scored on the token after each; context starts
    anew in every window, and the last one may be short.

    With ``start_of_text`` every window begins with that id in place of its first token, which is
    scored in the window before: the targets stay the same. Where the first target is that id, a
    document begins there, and the window is left as it is.

    Raises:
        ValueError: There are fewer than two tokens, so there is nothing to score.
    """

    n_tokens: int
    context_length: int
    start_of_text: int | None = None

    def __post_init__(self) -> None:
        if self.context_length < 1 or self.n_tokens < 2:
            raise ValueError(
                f"{self.n_tokens} tokens hold no target (context length {self.context_length})"
            )

    @property
    def n_targets(self) -> int:
        """N - 1: every token but the first."""
        return self.n_tokens - 1

    @property
    def n_windows(self) -> int:
        """ceil((N - 1) / C)."""
        return -(-self.n_targets // self.context_length)

    def rows(
        self, tokens: NDArray[np.integer], windows: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Inputs and targets of the given windows, both ``[S, C]`` int64.

        Past the end inputs are 0 and targets are :data:`IGNORE`. A window number of ``n_windows``
        or more gives a row of nothing else, so that every rank can run equally many batches.
        """
        firsts = np.asarray(windows, dtype=np.int64)[:, None] * self.context_length
        places = firsts + np.arange(self.context_length, dtype=np.int64)
        scored = places < self.n_targets
        # Unscored places read token 0 instead: `tokens` has nothing there.
        # Ids are unsigned: IGNORE has to meet them as int64.
        inputs = tokens[np.where(scored, places, 0)].astype(np.int64)
        targets = tokens[np.where(scored, places + 1, 0)].astype(np.int64)
        if self.start_of_text is not None:
            inputs[targets[:, 0] != self.start_of_text, 0] = self.start_of_text
        return np.where(scored, inputs, 0), np.where(scored, targets, IGNORE)


@dataclass(eq=False)
class OrderDigest:
    """A digest of which window each sequence number read; the order of its updates leaves no trace.

    Two lanes, each the sum modulo 2**64 over all pairs (sequence number n, window start w) of ::

        mix64(mix64(n + a) + w * GOLDEN + b)

    with its own a and b. Sums commute, so any split over ranks and microbatches gives the same
    digest, and the digests of parts add up to that of the whole. A pair read twice counts twice.

    The lanes are plain integers: ``OrderDigest(*digest.lanes)`` continues where ``digest`` stands.
    Updates wait for each other and are added up together, or a small model's step would notice.
    """

    first: int = 0
    second: int = 0
    waiting: list[tuple[UInt64Array, UInt64Array]] = field(default_factory=list, repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrderDigest) and self.lanes == other.lanes

    @property
    def lanes(self) -> tuple[int, int]:
        """The two sums."""
        self._add_up()
        return self.first, self.second

    @property
    def value(self) -> int:
        """Both lanes in one integer of 128 bits: first * 2**64 + second."""
        first, second = self.lanes
        return first << 64 | second

    def update(self, sequences: Int64Array, starts: Int64Array) -> None:
        """Add the pairs ``(sequences[i], starts[i])``."""
        numbers = np.asarray(sequences, dtype=np.int64).reshape(-1).astype(np.uint64)
        windows = np.asarray(starts, dtype=np.int64).reshape(-1).astype(np.uint64)
        if numbers.shape != windows.shape:
            raise ValueError(f"{numbers.size} sequences but {windows.size} window starts")
        self.waiting.append((numbers, windows))
        if len(self.waiting) == MOST_WAITING:
            self._add_up()

    def _add_up(self) -> None:
        if not self.waiting:
            return
        numbers, windows = (np.concatenate(parts) for parts in zip(*self.waiting, strict=True))
        self.waiting.clear()
        self.first = (self.first + _lane_sum(numbers, windows, 0x243F6A8885A308D3)) & MASK_64
        self.second = (self.second + _lane_sum(numbers, windows, 0x452821E638D01377)) & MASK_64

    def merge(self, other: OrderDigest) -> None:
        """Add all that ``other`` has seen."""
        first, second = other.lanes
        self.first = (self.first + first) & MASK_64
        self.second = (self.second + second) & MASK_64


def _lane_sum(numbers: UInt64Array, windows: UInt64Array, salt: int) -> int:
    # The salts are digits of pi; the shifted one makes a and b differ within a lane.
    inner = mix64(numbers + np.uint64(salt)) + windows * np.uint64(GOLDEN)
    return int(np.sum(mix64(inner + np.uint64(salt >> 1)), dtype=np.uint64))
