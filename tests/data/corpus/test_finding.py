"""Links are followed once, nothing can hang, and whatever is left out is named."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.data.corpus.test_sources import documents, reading, refusal

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with a text, and a folder beside it with two."""
    for name in ("corpus/5.txt", "beside/1.txt", "beside/inner/2.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(name)
    return tmp_path / "corpus"


def told(*sources: object) -> str:
    source = reading(*sources)
    assert list(source)
    return "; ".join(source.tally.lines())


def test_linked_folders_and_files_are_read_at_their_place(corpus: Path) -> None:
    (corpus / "3").symlink_to("../beside")
    (corpus / "9.txt").symlink_to(corpus / "5.txt")
    (corpus / "7.txt").symlink_to("../beside/inner/2.txt")
    found = ["beside/1.txt", "beside/inner/2.txt", "corpus/5.txt"]
    for source in (corpus, corpus / "**", corpus / "**" / "*.txt"):
        assert documents(source) == found
        words = told(source)
        assert "2 path(s) skipped: a file that is read already" in words
        assert f"{corpus}/9.txt as {corpus}/5.txt" in words
        assert f"{corpus}/7.txt as {corpus}/3/inner/2.txt" in words


def test_a_hard_link_is_read_once_and_told(corpus: Path) -> None:
    os.link(corpus / "5.txt", corpus / "6.txt")
    assert documents(corpus) == ["corpus/5.txt"]
    assert f"{corpus}/6.txt as {corpus}/5.txt" in told(corpus)


def test_sources_that_overlap_are_read_once_and_told(corpus: Path) -> None:
    sources = (corpus / "5.txt", corpus, corpus / "*.txt")
    assert documents(*sources) == ["corpus/5.txt"]
    assert f"2 path(s) skipped: a file that is read already ({corpus}/5.txt, " in told(*sources)
    assert "is named twice" in refusal(corpus / "5.txt", corpus / "5.txt")


@pytest.mark.parametrize("pattern", ["", "**", "**/*.txt"])
def test_links_that_lead_round_in_circles_are_left_out_and_named(
    corpus: Path, pattern: str
) -> None:
    (corpus / "up").symlink_to("..")  # beyond the corpus, and back into it
    (corpus / "here").symlink_to(".")
    (corpus / "in").symlink_to("../beside")
    (corpus / "in too").symlink_to("../beside")
    (corpus.parent / "beside" / "back").symlink_to(corpus)
    source = corpus / pattern
    assert documents(source) == ["corpus/5.txt", "beside/1.txt", "beside/inner/2.txt"]
    words = told(source)
    assert f"a link to a folder that holds the link ({corpus}/here, {corpus}/up)" in words
    assert f"{corpus}/in too as {corpus}/in" in words
    assert f"{corpus}/in/back as {corpus}" in words


@pytest.mark.parametrize("pattern", ["", "*", "**"])
def test_a_link_that_leads_nowhere_is_named(corpus: Path, pattern: str) -> None:
    (corpus / "gone.txt").symlink_to("nowhere")
    (corpus / "self.txt").symlink_to("self.txt")
    words = told(corpus / pattern)
    assert f"a link that leads nowhere ({corpus}/gone.txt, {corpus}/self.txt)" in words
    line = refusal(corpus / "gone.txt")
    assert "is a link to nowhere, which is not there" in line


@pytest.mark.parametrize("pattern", ["", "*", "**"])
def test_pipes_and_sockets_of_a_folder_are_left_out_and_named(
    corpus: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(corpus / "pipe.txt")
    monkeypatch.chdir(corpus)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("socket")
        words = told(corpus / pattern)
    assert f"a named pipe, which may never end ({corpus}/pipe.txt)" in words
    assert f"a socket, which may never end ({corpus}/socket)" in words


def test_a_pipe_that_is_named_itself_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("from a pipe",))
    writer.start()
    source = reading(pipe)
    assert (source.identity, source.total_bytes) == (None, None)
    assert [piece.text for piece in source] == ["from a pipe"]
    writer.join()
    os.mkfifo(tmp_path / "pipe.parquet")
    assert "save it to a file" in refusal(tmp_path / "pipe.parquet")


def test_a_device_is_refused_by_name() -> None:
    assert refusal("/dev/zero").startswith("--data.corpus /dev/zero: is a device, not a file")


def test_a_folder_that_a_glob_names_is_told_of(corpus: Path) -> None:
    (corpus / "inner").mkdir()
    words = f"a folder, which a glob enters only for ** ({corpus}/inner)"
    assert words in told(corpus / "*")


def test_a_link_that_comes_later_changes_what_is_told(corpus: Path) -> None:
    before = reading(corpus).identity
    (corpus / "gone.txt").symlink_to("nowhere")
    assert reading(corpus).identity != before


@pytest.fixture
def without() -> Iterator[Callable[[str, int], Path]]:
    """Gives a folder of which one path has other rights, to somebody who is not root."""
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "a.txt").write_text("text")
        (folder / "inner").mkdir()
        (folder / "inner" / "b.txt").write_text("text")

        def without(path: str, mode: int) -> Path:
            (folder / path).chmod(mode)
            if user == 0:
                os.seteuid(65534)
            return folder

        yield without
        os.seteuid(user)
        (folder / "inner").chmod(0o755)


@pytest.mark.parametrize("pattern", ["", "**", "*/*"])
@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
def test_a_folder_without_rights_is_refused_by_name(
    without: Callable[[str, int], Path], pattern: str, mode: int
) -> None:
    folder = without("inner", mode)
    line = refusal(folder / pattern)
    assert line.startswith(f"--data.corpus {folder}/inner")
    assert "cannot be opened (Permission denied); make it readable" in line


def test_a_file_without_rights_is_refused_by_name(without: Callable[[str, int], Path]) -> None:
    folder = without("a.txt", 0)
    assert refusal(folder).startswith(f"--data.corpus {folder}/a.txt: cannot be read (Permission")
