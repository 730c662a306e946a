"""What a step reads: each window once an epoch, whatever the split and whatever came before."""

from __future__ import annotations

import io
import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_lab.data.batches import (
    IGNORE,
    OrderDigest,
    TrainingWindows,
    ValidationWindows,
    gather_windows,
    microbatch_sequences,
    mix64,
    permute,
)

SIZES = [1, 2, 3, 4, 5, 6, 7, 97, 101, 997, 7919]
SIZES += [2**k + d for k in (3, 4, 5, 8, 11, 12) for d in (-1, 0, 1)]


def permutation(size: int, key: int) -> list[int]:
    keys = mix64(np.full(size, key, dtype=np.uint64))
    return permute(np.arange(size, dtype=np.uint64), keys, size).tolist()


# ---- the permutation ----------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_every_index_comes_up_exactly_once(size: int) -> None:
    for key in range(5):
        assert sorted(permutation(size, key)) == list(range(size))


def test_large_ranges_are_permuted_without_a_table() -> None:
    size = 10**12 + 39
    indices = np.arange(0, size, size // 10_000, dtype=np.uint64)
    images = permute(indices, np.zeros_like(indices), size)
    assert int(images.max()) < size
    assert len(np.unique(images)) == len(indices)


def test_small_permutations_all_occur_about_equally_often() -> None:
    for size in (2, 3, 4):
        draws = 24_000
        keys = np.repeat(mix64(np.arange(draws, dtype=np.uint64)), size)
        images = permute(np.tile(np.arange(size, dtype=np.uint64), draws), keys, size)
        seen = Counter(map(tuple, images.reshape(draws, size).tolist()))
        orders = len(list(itertools.permutations(range(size))))
        assert len(seen) == orders
        expected = draws / orders
        assert all(abs(count - expected) < 0.15 * expected for count in seen.values())


@pytest.mark.parametrize("size", [5, 33, 100])
def test_an_index_lands_everywhere_about_equally_often(size: int) -> None:
    draws = 200 * size
    keys = mix64(np.arange(draws, dtype=np.uint64))
    for index in (0, 1, size - 1):
        images = permute(np.full(draws, index, dtype=np.uint64), keys, size)
        counts = np.bincount(images.astype(np.int64), minlength=size)
        chi_square = float(((counts - 200) ** 2 / 200).sum())
        # Mean size - 1 and variance 2 (size - 1): five standard deviations.
        assert chi_square < size - 1 + 5 * (2 * (size - 1)) ** 0.5


def test_neighbours_do_not_stay_neighbours() -> None:
    order = np.array(permutation(4001, 3))
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.06  # 1 / sqrt(4000) is 0.016
    assert np.mean(np.abs(np.diff(order)) == 1) < 0.005


# ---- training windows ---------------------------------------------------------------------------


@pytest.mark.parametrize("context", [1, 2, 3, 8])
def test_each_epoch_reads_disjoint_windows_inside_the_text_once(context: int) -> None:
    for n_tokens in range(context + 1, 8 * context + 4):
        windows = TrainingWindows(n_tokens, context, seed=5)
        for epoch in range(6):
            first = epoch * windows.n_windows
            starts = windows.starts(np.arange(first, first + windows.n_windows))
            ordered = np.sort(starts)
            assert ordered[0] >= 0
            assert ordered[-1] + context + 1 <= n_tokens
            assert (np.diff(ordered) == context).all()
            assert 0 <= ordered[0] < windows.n_offsets


@pytest.mark.parametrize(
    ("n_tokens", "context", "n_windows", "n_offsets"),
    [
        (9, 8, 1, 1),  # one window, no room
        (13, 8, 1, 5),  # one window, four tokens to spare
        (16, 8, 1, 8),
        (17, 8, 1, 8),  # two would fit, but only at offset 0
        (23, 8, 1, 8),
        (24, 8, 2, 8),  # exactly room for two at each of the eight offsets
        (25, 8, 2, 8),
        (32, 8, 3, 8),
        (10, 1, 9, 1),  # windows of one token have one offset
    ],
)
def test_as_many_windows_as_leave_room_for_every_offset(
    n_tokens: int, context: int, n_windows: int, n_offsets: int
) -> None:
    windows = TrainingWindows(n_tokens, context, seed=0)
    assert (windows.n_windows, windows.n_offsets) == (n_windows, n_offsets)


def test_offsets_change_with_the_epoch_and_cover_their_range() -> None:
    windows = TrainingWindows(100, 8, seed=1)
    epochs = np.arange(400)
    firsts = [
        int(windows.starts(epoch * windows.n_windows + np.arange(windows.n_windows)).min())
        for epoch in epochs
    ]
    counts = Counter(firsts)
    assert set(counts) == set(range(8))
    assert all(20 < count < 90 for count in counts.values())  # 50 each, 6.6 either way


def test_order_changes_with_the_epoch_and_the_seed() -> None:
    windows = TrainingWindows(10_000, 8, seed=1)
    n = windows.n_windows
    first = (windows.starts(np.arange(n)) // 8).tolist()
    second = (windows.starts(np.arange(n, 2 * n)) // 8).tolist()
    other = (TrainingWindows(10_000, 8, seed=2).starts(np.arange(n)) // 8).tolist()
    for one, two in itertools.combinations([first, second, other], 2):
        assert sum(a == b for a, b in zip(one, two, strict=True)) < 10  # chance gives about 1


def test_any_sequence_is_known_without_history() -> None:
    windows = TrainingWindows(333, 7, seed=9)
    numbers = np.arange(5 * windows.n_windows)
    together = windows.starts(numbers)  # straddles five epochs
    alone = [int(windows.starts(np.array([number]))[0]) for number in numbers]
    assert together.tolist() == alone
    shuffled = np.random.default_rng(0).permutation(numbers)
    assert windows.starts(shuffled).tolist() == together[shuffled].tolist()


def test_the_order_is_the_same_in_every_release() -> None:
    # Checkpoints keep only how many sequences were read: these numbers may never change.
    windows = TrainingWindows(1000, 16, seed=42)
    assert windows.starts(np.arange(58, 66)).tolist() == [180, 628, 740, 211, 867, 339, 291, 739]


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 + 5])
def test_huge_runs_and_texts_do_not_overflow(seed: int) -> None:
    windows = TrainingWindows(10**12, 4096, seed=seed)
    numbers = np.array([0, 2**40, 2**62 - 1, 2**62], dtype=np.int64)
    with np.errstate(all="raise"):
        starts = windows.starts(numbers)
    assert (starts >= 0).all()
    assert (starts + 4097 <= 10**12).all()
    assert windows.epoch_of(numbers).tolist() == [int(n) // windows.n_windows for n in numbers]


def test_passes_count_how_often_the_text_was_read() -> None:
    windows = TrainingWindows(1001, 10, seed=0)
    assert windows.passes(0) == 0
    assert windows.passes(250) == 2.5
    assert windows.epoch_of(np.array([0, 98, 99, 198])).tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize(("n_tokens", "context"), [(8, 8), (0, 1), (5, 0)])
def test_a_text_without_a_window_is_an_error(n_tokens: int, context: int) -> None:
    with pytest.raises(ValueError, match="hold no window"):
        TrainingWindows(n_tokens, context, seed=0)


def test_gathered_rows_are_the_tokens_from_each_start() -> None:
    tokens = np.arange(60_000, 60_100, dtype=np.uint16)
    rows = gather_windows(tokens, np.array([3, 95, 0]), 5)
    assert rows.dtype == np.int64
    assert rows.tolist() == [[60_000 + s + i for i in range(5)] for s in (3, 95, 0)]


# ---- who reads what in a step -------------------------------------------------------------------


@given(
    st.sampled_from([(1, 1), (1, 4), (4, 1), (2, 2), (3, 2), (2, 3), (12, 1), (1, 12)]),
    st.integers(1, 3),
    st.integers(0, 10**9),
)
def test_ranks_and_microbatches_together_read_the_step(
    split: tuple[int, int], times: int, step: int
) -> None:
    accumulation, world_size = split
    batch_size = 12 * times
    read = [
        microbatch_sequences(
            microbatch=step * accumulation + part,
            batch_size=batch_size,
            accumulation=accumulation,
            rank=rank,
            world_size=world_size,
        )
        for part in range(accumulation)
        for rank in range(world_size)
    ]
    assert {len(rows) for rows in read} == {batch_size // (accumulation * world_size)}
    # In this order the slices join without a gap, so a microbatch of all ranks is contiguous too.
    expected = np.arange(step * batch_size, (step + 1) * batch_size)
    assert np.concatenate(read).tolist() == expected.tolist()


def test_a_batch_that_cannot_be_shared_evenly_is_an_error() -> None:
    with pytest.raises(ValueError, match="batch size 10 is no multiple of 2 microbatches"):
        microbatch_sequences(microbatch=0, batch_size=10, accumulation=2, rank=0, world_size=2)


# ---- validation windows -------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 60), st.integers(1, 20), st.integers(1, 7))
def test_each_target_is_scored_once_after_the_token_before_it(
    n_tokens: int, context: int, batch: int
) -> None:
    tokens = np.random.default_rng(n_tokens).permutation(n_tokens).astype(np.uint16) + 7
    windows = ValidationWindows(n_tokens, context)
    scored = []
    for first in range(0, windows.n_windows, batch):  # the last batch runs past the end
        inputs, targets = windows.rows(tokens, np.arange(first, first + batch))
        assert inputs.shape == targets.shape == (batch, context)
        assert inputs.dtype == targets.dtype == np.int64
        kept = targets != IGNORE
        assert (inputs[~kept] == 0).all()
        scored += list(zip(inputs[kept].tolist(), targets[kept].tolist(), strict=True))
    assert scored == list(zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True))
    assert len(scored) == windows.n_targets


def test_a_window_begins_where_the_one_before_it_was_scored_last() -> None:
    inputs, targets = ValidationWindows(8, 3).rows(np.arange(10, 18), np.arange(4))
    assert inputs.tolist() == [[10, 11, 12], [13, 14, 15], [16, 0, 0], [0, 0, 0]]
    assert targets.tolist() == [
        [11, 12, 13],
        [14, 15, 16],
        [17, IGNORE, IGNORE],
        [IGNORE, IGNORE, IGNORE],
    ]


@pytest.mark.parametrize("n_tokens", [0, 1])
def test_a_split_without_a_target_is_an_error(n_tokens: int) -> None:
    with pytest.raises(ValueError, match="hold no target"):
        ValidationWindows(n_tokens, 8)


# ---- the digest of the order --------------------------------------------------------------------


def digest(sequences: list[int], starts: list[int]) -> OrderDigest:
    result = OrderDigest()
    result.update(np.array(sequences, dtype=np.int64), np.array(starts, dtype=np.int64))
    return result


def test_the_digest_is_the_same_for_every_split_and_order() -> None:
    windows = TrainingWindows(5000, 8, seed=3)
    values = set()
    for accumulation, world_size in [(1, 1), (4, 1), (1, 3), (2, 2)]:
        ranks = [OrderDigest() for _ in range(world_size)]
        for rank in reversed(range(world_size)):
            for microbatch in range(10 * accumulation):
                rows = microbatch_sequences(
                    microbatch=microbatch,
                    batch_size=12,
                    accumulation=accumulation,
                    rank=rank,
                    world_size=world_size,
                )
                ranks[rank].update(rows, windows.starts(rows))
        total = OrderDigest()
        for part in ranks:
            total.merge(part)
        values.add(total.value)
    assert len(values) == 1
    assert values.pop() > 2**64


def test_the_digest_notices_every_change() -> None:
    base = digest([0, 1, 2], [80, 8, 40])
    changed = [
        digest([0, 1, 2], [8, 80, 40]),  # two windows swapped
        digest([0, 1, 2], [81, 8, 40]),
        digest([1, 2, 3], [80, 8, 40]),
        digest([0, 1], [80, 8]),
        digest([0, 1, 2, 2], [80, 8, 40, 40]),  # one read twice
        digest([80, 8, 40], [0, 1, 2]),
        digest([0, 1, 2], [79, 9, 40]),  # equal sums
        digest([], []),
    ]
    for lane in (0, 1):
        assert len({other.lanes[lane] for other in [base, *changed]}) == len(changed) + 1
    assert base.lanes[0] != base.lanes[1]


def test_the_digest_continues_from_plain_integers_in_a_weights_only_checkpoint() -> None:
    windows = TrainingWindows(5000, 8, seed=3)
    rows = np.arange(1000)
    whole = OrderDigest()
    whole.update(rows, windows.starts(rows))

    first = OrderDigest()
    first.update(rows[:300], windows.starts(rows[:300]))
    file = io.BytesIO()
    torch.save({"order": first.lanes}, file)
    file.seek(0)
    resumed = OrderDigest(*torch.load(file, weights_only=True)["order"])
    resumed.update(rows[300:], windows.starts(rows[300:]))
    assert resumed == whole
    assert resumed.value == whole.value == whole.first * 2**64 + whole.second
    assert all(type(lane) is int and 0 <= lane < 2**64 for lane in whole.lanes)


def test_the_digest_refuses_sequences_without_starts() -> None:
    with pytest.raises(ValueError, match="2 sequences but 1 window starts"):
        digest([1, 2], [8])


def test_windows_begin_with_the_begin_of_text_token_and_keep_their_targets() -> None:
    start = 99
    tokens = np.array([start, 1, 2, 3, 4, 5, 6, start, 7, 8, 9])
    inputs, targets = ValidationWindows(11, 3, start).rows(tokens, np.arange(5))
    plain = ValidationWindows(11, 3).rows(tokens, np.arange(5))
    np.testing.assert_array_equal(targets, plain[1])
    # The third window scores the beginning of a document first, the fourth is short, and the fifth
    # lies behind the end.
    expected = [[99, 1, 2], [99, 4, 5], [6, 99, 7], [99, 0, 0], [0, 0, 0]]
    assert inputs.tolist() == expected
