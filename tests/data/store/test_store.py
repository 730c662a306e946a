"""A store holds exactly the ids of its text, is found again by content, and is whole or absent."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llama_lab.data.corpus.readers.records import Piece
from llama_lab.data.corpus.splitting import split
from llama_lab.data.corpus.spool import Spool
from llama_lab.data.store import preparation
from llama_lab.data.store import token_store as store_module
from llama_lab.data.store.notes import between_documents
from llama_lab.data.store.preparation import prepare_store
from llama_lab.data.store.requests import StoreRequest, exact_fraction
from llama_lab.data.store.token_store import open_store
from llama_lab.data.tokenizers.kinds import (
    END_OF_TEXT,
    CharTokenizer,
    UnknownCharacters,
    train_tokenizer,
)
from llama_lab.errors import UserError

TEXT = "To be, or not to be,\r\nthat is the question:\n" * 40 + "é中😀"


def request(folder: Path, text: str = TEXT, **changes: Any) -> StoreRequest:
    corpus = folder / "text.txt"
    corpus.write_bytes(text.encode())
    settings: dict[str, Any] = {
        "corpus": str(corpus),
        "tokenizer": "char",
        "vocab_size": None,
        "val_fraction": 0.1,
        "encoding": None,
        "cache_dir": folder / "cache",
        "data_dir": folder,
    }
    return StoreRequest(**(settings | changes))


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def entries(folder: Path) -> list[str]:
    """What a folder holds, but for the notes of what sources held."""
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return [name for name in names if name != "sources"]


# ---- what it holds ------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "size"), [("char", None), ("bpe", 300)])
def test_the_parts_decode_to_the_text_and_its_sizes_are_stated(
    tmp_path: Path, kind: str, size: int | None
) -> None:
    store = open_store(prepare_store(request(tmp_path, tokenizer=kind, vocab_size=size)))
    cut = len(TEXT) * 9 // 10
    assert store.tokenizer.decode(store.train) == TEXT[:cut]
    assert store.tokenizer.decode(store.validation) == TEXT[cut:]
    assert store.tokenizer.kind == kind
    for part, text, ids in (
        (store.info.train, TEXT[:cut], store.train),
        (store.info.validation, TEXT[cut:], store.validation),
    ):
        assert (part.characters, part.bytes) == (len(text), len(text.encode()))
        assert part.tokens == len(ids)
    assert store.info.corpus == str(tmp_path / "text.txt")
    assert store.info.corpus_sha256 == hashlib.sha256(TEXT.encode()).hexdigest()


def test_ids_are_mapped_read_only_and_not_loaded(tmp_path: Path) -> None:
    store = open_store(prepare_store(request(tmp_path)))
    assert isinstance(store.train, np.memmap)
    assert not store.train.flags.writeable
    assert store.train.dtype == np.uint16


def test_bpe_is_trained_on_the_training_part_alone(tmp_path: Path) -> None:
    text = "ab " * 900 + "xy " * 100
    store = open_store(
        prepare_store(request(tmp_path, text, tokenizer="bpe", vocab_size=258, val_fraction=0.1))
    )
    assert b"ab" in store.tokenizer.pieces or b" a" in store.tokenizer.pieces
    expected = train_tokenizer("bpe", train_text=text[:2700], whole_text="", vocab_size=258)
    assert store.tokenizer.state() == expected.state()


@pytest.mark.parametrize(("size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_ids_above_65535_are_stored_right(tmp_path: Path, size: int, dtype: type) -> None:
    text = "".join(map(chr, range(0x10000, 0x10000 + size)))
    store = open_store(prepare_store(request(tmp_path, text, val_fraction=0.5)))
    assert store.tokenizer.vocab_size == size
    assert store.train.dtype == store.validation.dtype == dtype
    assert np.concatenate([store.train, store.validation]).tolist() == list(range(size))


def test_a_given_tokenizer_encodes_the_text_instead_of_a_trained_one(tmp_path: Path) -> None:
    state = CharTokenizer("zyx" + "".join(sorted(set(TEXT)))).state()
    wanted = request(tmp_path, tokenizer_state=state, val_fraction=1.0)
    store = open_store(prepare_store(wanted))
    assert store.tokenizer.state() == state
    assert store.tokenizer.decode(store.validation) == TEXT
    assert store.train.size == 0
    assert store.train.dtype == store.validation.dtype
    assert store.info.train.tokens == 0


def test_characters_that_a_given_tokenizer_lacks_are_named_with_corpus_and_part(
    tmp_path: Path,
) -> None:
    state = CharTokenizer("abc").state()
    with pytest.raises(UnknownCharacters, match=r"text\.txt, validation part: .*'d' \(U\+0064\)"):
        prepare_store(request(tmp_path, "abcd", tokenizer_state=state, val_fraction=0.5))
    assert entries(tmp_path / "cache") == []


# ---- the split ----------------------------------------------------------------------------------


def test_tinyshakespeare_splits_where_everybody_splits_it(test_data: Path, tmp_path: Path) -> None:
    wanted = request(tmp_path, corpus="tinyshakespeare", data_dir=test_data)
    store = open_store(prepare_store(wanted))
    assert (len(store.train), len(store.validation)) == (1_003_854, 111_540)


@pytest.mark.parametrize(
    ("fraction", "characters", "train"),
    [
        (0.1, 1_115_394, 1_003_854),
        (0.1, 10, 9),  # 10 * (1 - 0.1) is 9.0 in floating point, …
        (0.3, 10, 7),
        (0.7, 10, 3),  # … but 10 * (1 - 0.7) is 3.0000000000000004
        (0.9, 10, 1),  # and 10 * (1 - 0.9) is 0.9999999999999998
        (0.01, 100, 99),
        (1e-05, 100_000, 99_999),
        (1.0, 7, 0),
        (1, 7, 0),
        (0.1, 1, 0),
    ],
)
def test_the_split_is_the_decimal_that_was_written(
    fraction: float, characters: int, train: int
) -> None:
    spool = Spool(Path(), are_records=False)
    text = "é" * train + "中" * (characters - train)
    spool.fill([Piece(text[:7], False), Piece(text[7:], True)], lambda: None)
    (head, tail), words = split({"corpus": spool}, exact_fraction(fraction))
    assert "".join(piece.text for piece in head.pieces()) == "é" * train
    assert "".join(piece.text for piece in tail.pieces()) == "中" * (characters - train)
    assert words.startswith(f"the last {characters - train:,} of {characters:,} characters")


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan"), float("inf")])
def test_an_impossible_val_fraction_is_refused(tmp_path: Path, fraction: float) -> None:
    message = refusal(lambda: prepare_store(request(tmp_path, val_fraction=fraction)))
    assert message.startswith(f"--data.val_fraction {fraction} ")


# ---- found again --------------------------------------------------------------------------------


def test_a_second_call_finds_the_store_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare_store(request(tmp_path))
    monkeypatch.setattr(preparation, "_written", None)
    monkeypatch.setattr(store_module, "write_synced", None)
    assert prepare_store(request(tmp_path)) == first
    assert entries(tmp_path / "cache") == [first.name]


def test_the_folder_follows_the_content_not_the_name(tmp_path: Path) -> None:
    first = prepare_store(request(tmp_path))
    moved = tmp_path / "elsewhere.txt"
    moved.write_bytes(TEXT.encode("utf-16"))
    assert prepare_store(request(tmp_path, corpus=str(moved), encoding="utf-16")) == first
    default = request(tmp_path, tokenizer="bpe")
    stated = request(tmp_path, tokenizer="bpe", vocab_size=1024)
    assert prepare_store(default) == prepare_store(stated)


def test_every_input_that_changes_the_ids_changes_the_folder(tmp_path: Path) -> None:
    requests: list[dict[str, Any]] = [
        {},
        {"text": TEXT + "."},
        {"val_fraction": 0.2},
        {"tokenizer": "bpe", "vocab_size": 300},
        {"tokenizer": "bpe", "vocab_size": 301},
        {"tokenizer": "bpe", "vocab_size": 300, "special_tokens": "parse"},
        {"tokenizer_state": CharTokenizer("".join(sorted(set(TEXT), reverse=True))).state()},
    ]
    folders = [prepare_store(request(tmp_path, **changes)) for changes in requests]
    assert len(set(folders)) == len(folders)


def test_the_spelling_of_a_special_token_is_that_token_where_asked(tmp_path: Path) -> None:
    stories = [f"story {i} has an end" for i in range(65)]  # the split is within the 59th
    text = END_OF_TEXT.join(stories)
    asked: dict[str, Any] = {"tokenizer": "bpe", "vocab_size": 600, "special_tokens": "parse"}
    store = open_store(prepare_store(request(tmp_path, text, **asked)))
    ids = np.concatenate([store.train[:], store.validation[:]])
    assert (ids == 0).sum() == len(stories) - 1
    assert not any(b"<" in piece[1:] or b"|" in piece[1:] for piece in store.tokenizer.pieces)
    between = np.split(ids, np.flatnonzero(ids == 0))
    assert [store.tokenizer.decode(part) for part in between] == stories
    plain = open_store(prepare_store(request(tmp_path, text, **asked | {"special_tokens": "text"})))
    assert 0 not in plain.train[:]
    assert any(b"endoftext" in piece for piece in plain.tokenizer.pieces)


def test_a_given_tokenizer_finds_the_store_of_the_run_that_trained_it(tmp_path: Path) -> None:
    trained = prepare_store(request(tmp_path))
    state = CharTokenizer("".join(sorted(set(TEXT)))).state()
    assert prepare_store(request(tmp_path, tokenizer_state=state)) == trained
    (trained / "train.bin").unlink()  # no whole store any more
    assert prepare_store(request(tmp_path, tokenizer_state=state)) != trained


def test_the_digest_tells_ids_and_tokenizers_apart_and_nothing_else(tmp_path: Path) -> None:
    def digest(name: str, text: str = "abcabc", **changes: Any) -> str:
        (tmp_path / name).mkdir(exist_ok=True)
        return open_store(prepare_store(request(tmp_path / name, text, **changes))).digest

    base = digest("a")
    assert len(bytes.fromhex(base)) == 32
    assert digest("b") == base
    # The same vocabulary given instead of trained gives the same ids under another key.
    assert digest("c", tokenizer_state=CharTokenizer("abc").state()) == base
    others = [
        digest("d", "abcabb"),
        digest("e", "abcabc", val_fraction=0.5),
        digest("f", "xyzxyz"),  # the same ids, another tokenizer
        digest("g", tokenizer_state=CharTokenizer("cba").state()),
    ]
    assert len({base, *others}) == 5


# ---- whole or absent ----------------------------------------------------------------------------


def damage_nothing_listed(folder: Path) -> None:
    (folder / "info.json").unlink()


def damage_missing_part(folder: Path) -> None:
    (folder / "train.bin").unlink()


def damage_short_part(folder: Path) -> None:
    os.truncate(folder / "validation.bin", 3)


def damage_tokenizer(folder: Path) -> None:
    data = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(data.replace(b"T", b"Z"))


def damage_info(folder: Path) -> None:
    (folder / "info.json").write_bytes(b'{"format": 2')


def damage_format(folder: Path) -> None:
    record = json.loads((folder / "info.json").read_bytes())
    (folder / "info.json").write_text(json.dumps(record | {"format": 0}))


def damage_fields(folder: Path) -> None:
    record = json.loads((folder / "info.json").read_bytes())
    del record["train"]["bytes"]
    (folder / "info.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    "damage",
    [
        damage_nothing_listed,
        damage_missing_part,
        damage_short_part,
        damage_tokenizer,
        damage_info,
        damage_format,
        damage_fields,
    ],
)
def test_a_broken_store_is_refused_and_prepared_anew(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = prepare_store(request(tmp_path))
    digest = open_store(folder).digest
    damage(folder)
    message = refusal(lambda: open_store(folder))
    assert message.startswith("--data.cache_dir: ")
    assert str(folder) in message
    assert prepare_store(request(tmp_path)) == folder
    store = open_store(folder)
    assert store.digest == digest
    assert store.tokenizer.decode([*store.train, *store.validation]) == TEXT
    assert entries(tmp_path / "cache") == [folder.name]


def test_a_missing_store_is_refused(tmp_path: Path) -> None:
    assert "is not a whole token store" in refusal(lambda: open_store(tmp_path / "none"))


def test_what_a_killed_writer_leaves_is_never_taken_for_a_store(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path;"
        "from llama_lab.data.store import token_store as store;"
        "from llama_lab.data.store.preparation import *;"
        "from llama_lab.data.store.requests import *;"
        "whole = store.write_synced\n"
        "def half(path, data):\n"
        "    if path.name != sys.argv[2]: return whole(path, data)\n"
        "    path.write_bytes(bytes(data)[: len(data) // 2])\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "store.write_synced = half\n"
        "folder = Path(sys.argv[1])\n"
        "prepare_store(StoreRequest(corpus=str(folder / 'text.txt'), tokenizer='char',"
        "vocab_size=None, val_fraction=0.1, encoding=None, cache_dir=folder / 'cache',"
        "data_dir=folder))"
    )
    wanted = request(tmp_path)
    for name in ("tokenizer.json", "info.json"):
        run = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path), name],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
        )
        assert run.returncode == -signal.SIGKILL
    assert len(entries(tmp_path / "cache")) == 2
    assert all(name.startswith(".") for name in entries(tmp_path / "cache"))

    old = tmp_path / "cache" / entries(tmp_path / "cache")[0]
    os.utime(old, (time.time() - 90_000,) * 2)
    store = open_store(prepare_store(wanted))
    assert store.tokenizer.decode([*store.train, *store.validation]) == TEXT
    assert not old.exists()  # long abandoned; the younger one might be at work still
    assert len(entries(tmp_path / "cache")) == 2


def _prepare_at_once(wanted: StoreRequest, barrier: Any, queue: Any) -> None:
    barrier.wait()
    queue.put(str(prepare_store(wanted)))


def test_processes_that_write_at_once_end_with_one_store(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(3), context.Queue()
    wanted = request(tmp_path)
    arguments = (wanted, barrier, queue)
    processes = [context.Process(target=_prepare_at_once, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    folders = {queue.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(timeout=60)
    assert len(folders) == 1
    folder = Path(folders.pop())
    assert entries(tmp_path / "cache") == [folder.name]
    store = open_store(folder)
    assert store.tokenizer.decode([*store.train, *store.validation]) == TEXT


def test_every_file_is_on_the_disk_before_the_store_takes_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[int] = set()
    sync, rename = os.fsync, os.rename

    def record_sync(handle: int) -> None:
        sync(handle)
        synced.add(os.fstat(handle).st_ino)

    def check_then_rename(source: Path, target: Path) -> None:
        assert {entry.stat().st_ino for entry in [source, *source.iterdir()]} <= synced
        rename(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(os, "rename", check_then_rename)
    folder = prepare_store(request(tmp_path))
    assert len(entries(folder)) == 4
    assert folder.parent.stat().st_ino in synced


@pytest.mark.parametrize("broken", [False, True])
def test_a_writer_that_is_overtaken_takes_the_other_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    wanted = request(tmp_path)
    other = prepare_store(dataclasses.replace(wanted, cache_dir=tmp_path / "other"))
    if broken:
        damage_short_part(other)
    inode = other.stat().st_ino
    synced = store_module._sync_folder

    def overtaken(folder: Path) -> None:
        synced(folder)
        if other.exists():
            shutil.move(other, tmp_path / "cache" / other.name)

    monkeypatch.setattr(store_module, "_sync_folder", overtaken)
    folder = prepare_store(wanted)
    assert (folder.stat().st_ino == inode) is not broken
    assert open_store(folder).digest
    assert entries(tmp_path / "cache") == [folder.name]


# ---- disks that refuse --------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_cache_folder_that_is_a_file_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "cache").write_text("occupied")
    cache = tmp_path / "cache" / below
    message = refusal(lambda: prepare_store(request(tmp_path, cache_dir=cache)))
    assert message.startswith(f"--data.cache_dir {cache}: ")


@pytest.mark.skipif(sys.platform == "win32", reason="limits on file sizes are POSIX")
def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path: Path) -> None:
    program = (
        "import resource, sys; from pathlib import Path;"
        "from llama_lab.data.store.preparation import *;"
        "from llama_lab.data.store.requests import *;"
        "from llama_lab.errors import UserError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "folder = Path(sys.argv[1])\n"
        "try:\n"
        "    prepare_store(StoreRequest(corpus=str(folder / 'text.txt'), tokenizer='char',"
        "vocab_size=None, val_fraction=0.1, encoding=None, cache_dir=folder / 'cache',"
        "data_dir=folder))\n"
        "except UserError as error: print(error)"
    )
    request(tmp_path)
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.startswith(f"--data.cache_dir {tmp_path / 'cache'}: the token store cannot")
    assert "File too large" in run.stdout
    assert entries(tmp_path / "cache") == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_cache_folder_is_refused_unless_the_store_is_there(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = prepare_store(request(tmp_path))
    cache.chmod(0o500)
    try:
        assert prepare_store(request(tmp_path)) == first
        message = refusal(lambda: prepare_store(request(tmp_path, val_fraction=0.5)))
        assert message.startswith(f"--data.cache_dir {cache}: ")
    finally:
        cache.chmod(0o700)


def test_bad_settings_are_refused_before_anything_is_read_or_written(tmp_path: Path) -> None:
    missing = {"corpus": str(tmp_path / "none.txt")}
    for settings, flag in (
        ({"vocab_size": 500}, "--data.vocab_size"),
        ({"tokenizer": "bpe", "vocab_size": 12}, "--data.vocab_size"),
        ({"tokenizer": "word"}, "--data.tokenizer"),
        ({"val_fraction": 2.0}, "--data.val_fraction"),
        ({"special_tokens": "parse"}, "--data.special_tokens"),  # char has none
        ({"begin_of_text": True}, "--data.begin_of_text true"),
        ({"tokenizer": "bpe", "separator": "; "}, "--data.separator ; "),
        ({"separator": ""}, "--data.separator ''"),
        ({"separator": "é", "tokenizer_state": CharTokenizer("a").state()}, "--data.separator é"),
        ({"special_tokens": "parse", "tokenizer_state": CharTokenizer("a").state()}, "--data.sp"),
    ):
        wanted = request(tmp_path, **missing, **settings)
        assert refusal(lambda wanted=wanted: prepare_store(wanted)).startswith(flag)  # type: ignore[misc]
    assert not (tmp_path / "cache").exists()


def test_a_separator_would_do_nothing_in_one_running_text(tmp_path: Path) -> None:
    wanted = request(tmp_path, separator="\\n")
    message = refusal(lambda: prepare_store(wanted))
    assert "one running text; set --data.separator null" in message


def test_what_stands_between_documents_of_characters_is_said(tmp_path: Path) -> None:
    records = tmp_path / "d.jsonl"
    records.write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(20)))
    plain = request(tmp_path, corpus=str(records))
    parted = dataclasses.replace(plain, separator="\\n")
    said = {}
    for wanted in (plain, parted):
        store = open_store(prepare_store(wanted))
        said[wanted.separator] = between_documents(wanted, store)
    ((_, nothing),), ((_, newline),) = said[None], said["\\n"]
    assert "nothing stands between two documents" in nothing
    assert "'\\n' follows every document" in newline
    assert store.tokenizer.decode(store.train).startswith("text 0\ntext 1\n")
    running = request(tmp_path)
    assert between_documents(running, open_store(prepare_store(running))) == []
    bpe = dataclasses.replace(plain, tokenizer="bpe", vocab_size=260)
    assert between_documents(bpe, open_store(prepare_store(bpe))) == []
