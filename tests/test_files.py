"""Files that are whole or absent."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import IO

import pytest

from llama_lab.errors import RunError
from llama_lab.files import write_atomically, write_synced


def test_a_write_that_fails_half_way_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path,
) -> None:
    target = tmp_path / "last.ckpt"
    target.write_bytes(b"old")

    def fill_the_disk(file: IO[bytes]) -> None:
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RunError, match="No space left"):
        write_atomically(target, fill_the_disk)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_an_interrupted_write_leaves_nothing_beside_the_old_file(tmp_path: Path) -> None:
    def interrupt(file: IO[bytes]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "new", interrupt)
    assert not list(tmp_path.iterdir())


def test_written_files_are_readable_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "file", lambda file: file.write(b"x"))
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_full_disk_that_another_error_hides_is_told_all_the_same(tmp_path: Path) -> None:
    def as_torch_does(file: IO[bytes]) -> None:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise RuntimeError("unexpected pos 64 vs 0") from error

    with pytest.raises(RunError, match="No space left"):
        write_atomically(tmp_path / "new", as_torch_does)
    assert not list(tmp_path.iterdir())


def test_a_new_file_takes_no_others_place(tmp_path: Path) -> None:
    write_synced(tmp_path / "file", b"first")
    with pytest.raises(FileExistsError):
        write_synced(tmp_path / "file", b"second")
    assert (tmp_path / "file").read_bytes() == b"first"
