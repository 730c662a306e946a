"""Ids in several files are read as one array, however many there are."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path

import numpy as np
import pytest

from llama_lab.data.batches import TrainingWindows, ValidationWindows, gather_windows
from llama_lab.data.store import preparation, shards
from llama_lab.data.store import token_store as store_module
from llama_lab.data.store.preparation import prepare_store
from llama_lab.data.store.shards import ShardedTokens, shard_name
from llama_lab.data.store.token_store import open_store
from llama_lab.data.tokenizers.kinds import CharTokenizer
from tests.data.store.test_store import request

TEXT = "".join(f"line {i} of a text in many files\n" for i in range(200))


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a hundred ids."""
    monkeypatch.setattr(preparation, "SHARD_TOKENS", 100)
    monkeypatch.setattr(shards, "OPEN_SHARDS", 3)


@pytest.mark.usefixtures("small_shards")
def test_a_store_in_many_files_holds_what_one_file_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(prepare_store(request(tmp_path, TEXT)))
    assert isinstance(store.train, ShardedTokens)
    cut = len(TEXT) * 9 // 10
    assert (store.folder / shard_name("train", (cut - 1) // 100)).is_file()
    assert store.tokenizer.decode(store.train[:]) == TEXT[:cut]
    assert store.tokenizer.decode(store.validation[:]) == TEXT[cut:]
    whole = np.asarray(store.train[:])
    starts = TrainingWindows(len(whole), 30, 0).starts(np.arange(300))
    rows = gather_windows(pickle.loads(pickle.dumps(store.train)), starts, 31)
    np.testing.assert_array_equal(rows, gather_windows(whole, starts, 31))
    windows = ValidationWindows(len(store.validation), 30)
    numbers = np.arange(windows.n_windows + 1)
    for got, expected in zip(
        windows.rows(store.validation, numbers),
        windows.rows(np.asarray(store.validation[:]), numbers),
        strict=True,
    ):
        np.testing.assert_array_equal(got, expected)
    monkeypatch.undo()
    one = open_store(prepare_store(request(tmp_path, TEXT, cache_dir=tmp_path / "other")))
    assert one.digest == store.digest


@pytest.mark.usefixtures("small_shards")
def test_a_missing_file_is_a_broken_store(tmp_path: Path) -> None:
    folder = prepare_store(request(tmp_path, TEXT))
    (folder / "train.7.bin").unlink()
    assert "train.7.bin" in str(store_module.defect(folder))
    assert prepare_store(request(tmp_path, TEXT)) == folder
    assert store_module.defect(folder) is None


def test_a_store_of_a_trillion_tokens_opens_at_once_and_gives_its_batches(tmp_path: Path) -> None:
    n_tokens, per_shard = 10**12, 1 << 33
    files = -(-n_tokens // per_shard)
    tokenizer = CharTokenizer("abc")
    folder = tmp_path / "store"

    def write(temporary: Path) -> store_module.StoreInfo:
        for number in range(files):
            with open(temporary / shard_name("train", number), "wb") as file:
                file.truncate(min(per_shard, n_tokens - number * per_shard) * 2)  # sparse
        (temporary / "validation.bin").touch()
        part = store_module.PartInfo(n_tokens, n_tokens, n_tokens)
        empty = store_module.PartInfo(0, 0, 0)
        return store_module.StoreInfo("x", "x", part, empty, "uint16", "x", per_shard)

    try:
        store_module.publish(folder, tokenizer, write)
    except OSError as error:
        pytest.skip(f"this file system holds no sparse files of this size ({error})")
    windows = TrainingWindows(n_tokens, 1024, 0)
    sequences = np.array([0, 5, 10**8, 3 * 10**9], dtype=np.int64)
    planted = windows.starts(sequences) + 1000
    for number, place in enumerate(planted.tolist(), 1):
        shard, within = divmod(place, per_shard)
        with open(folder / shard_name("train", shard), "r+b") as file:
            file.seek(within * 2)
            file.write(number.to_bytes(2, "little"))
    began = time.process_time()
    store = open_store(folder)
    rows = gather_windows(store.train, windows.starts(sequences), 1025)
    assert time.process_time() - began < 1.0
    expected = np.zeros((4, 1025), dtype=np.int64)
    expected[np.arange(4), 1000] = [1, 2, 3, 4]
    np.testing.assert_array_equal(rows, expected)
    assert len(store.train.maps) <= 8
    assert json.loads((folder / "info.json").read_text())["format"] == store_module.FORMAT
