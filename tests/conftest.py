"""Fixtures for every room."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from llama_lab.cli import main
from llama_lab.data.store import preparation


@pytest.fixture(autouse=True, scope="session")
def _threads() -> Iterator[None]:
    """One thread, here and in the processes that tests start, or LLAMA_LAB_TEST_THREADS of them.

    Models this small are slower on several threads, and far slower on a busy machine.
    """
    threads, before = os.environ.get("LLAMA_LAB_TEST_THREADS", "1"), torch.get_num_threads()
    torch.set_num_threads(int(threads))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", threads)
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of published corpora and awkward files, which is not part of the repository."""
    folder = os.environ.get("LLAMA_LAB_TEST_DATA")
    if not folder:
        pytest.skip("LLAMA_LAB_TEST_DATA names no folder of test corpora")
    return Path(folder)


@pytest.fixture
def corpus_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The corpora that token stores were made or looked for with, one entry a reading."""
    read: list[str] = []
    whole = preparation.read_source

    def counted(request: Any, reading: Any) -> Any:
        read.append(request.name)
        return whole(request, reading)

    monkeypatch.setattr(preparation, "read_source", counted)
    return read


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must be refused; its one line, without the label."""

    def refused(*argv: str | Path) -> str:
        capsys.readouterr()
        assert main([str(word) for word in argv]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1, err
        assert err.startswith("llama-lab: error: ")
        return err.removeprefix("llama-lab: error: ").rstrip()

    return refused
