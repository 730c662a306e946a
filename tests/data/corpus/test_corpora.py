"""Built-in corpora and text files arrive character for character, or are refused in one line."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from llama_lab.data.corpus.built_in import BUILT_IN, PublishedText
from llama_lab.data.corpus.readers.records import SourceRequest
from llama_lab.data.corpus.sources import Reading
from llama_lab.errors import UserError


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(address: str, timeout: float) -> io.BytesIO:
        raise urllib.error.URLError("network is unreachable")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Serves the text of ``published`` and lists the addresses asked for."""
    asked: list[str] = []

    def serve(address: str, timeout: float) -> io.BytesIO:
        assert timeout > 0
        asked.append(address)
        return io.BytesIO(TEXT.encode())

    monkeypatch.setattr(urllib.request, "urlopen", serve)
    return asked


TEXT = "First Citizen:\nBefore we proceed any further, hear me speak.\n"
PUBLISHED = PublishedText(
    file="play.txt",
    address="https://example.invalid/play.txt",
    sha256=hashlib.sha256(TEXT.encode()).hexdigest(),
)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, "play", PUBLISHED)


def read_corpus(corpus: str, **settings: Any) -> str:
    """All characters of one source."""
    return "".join(piece.text for piece in Reading(SourceRequest(corpus=corpus, **settings)))


def refusal(corpus: object, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        read_corpus(str(corpus), **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


def write(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


# ---- built-in corpora ---------------------------------------------------------------------------


def test_python_reference_is_the_topics_in_order_of_name() -> None:
    from pydoc_data.topics import topics

    text = read_corpus("python-reference")
    names = sorted(topics)
    assert text.startswith(topics[names[0]] + "\n" + topics[names[1]])
    assert text.endswith(topics[names[-1]])
    assert len(text) == sum(len(topic) for topic in topics.values()) + len(topics) - 1


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the text changes with Python's version"
)
def test_python_reference_of_python_3_11_has_its_known_size() -> None:
    text = read_corpus("python-reference")
    assert (len(text), len(set(text))) == (465_048, 103)


def test_tinyshakespeare_is_read_from_the_data_folder(test_data: Path) -> None:
    text = read_corpus("tinyshakespeare", data_dir=test_data)
    assert (len(text), len(set(text))) == (1_115_394, 65)


def test_a_download_is_kept_and_then_read_without_the_network(
    tmp_path: Path, play: None, served: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = tmp_path / "deep" / "data"
    assert read_corpus("play", data_dir=data_dir) == TEXT
    assert served == ["https://example.invalid/play.txt"]
    assert [file.name for file in data_dir.iterdir()] == ["play.txt"]
    assert read_corpus("play", data_dir=data_dir) == TEXT
    assert len(served) == 1


def test_offline_the_message_says_which_file_goes_where(tmp_path: Path) -> None:
    message = refusal("tinyshakespeare", data_dir=tmp_path)
    assert str(tmp_path / "tinyshakespeare.txt") in message
    assert BUILT_IN["tinyshakespeare"].address in message  # type: ignore[attr-defined]
    assert "network is unreachable" in message
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_other_content_is_refused_with_both_hashes(tmp_path: Path) -> None:
    path = write(tmp_path, "tinyshakespeare.txt", b"To be")
    message = refusal("tinyshakespeare", data_dir=tmp_path)
    assert hashlib.sha256(b"To be").hexdigest() in message
    assert "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed" in message
    assert str(path) in message


def test_a_download_with_other_content_is_refused_and_not_kept(
    tmp_path: Path, served: list[str]
) -> None:
    message = refusal("tinyshakespeare", data_dir=tmp_path)
    assert hashlib.sha256(TEXT.encode()).hexdigest() in message
    assert "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed" in message
    assert list(tmp_path.iterdir()) == []


def test_a_download_cut_off_by_the_disk_leaves_nothing(
    tmp_path: Path, play: None, served: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in refusal("play", data_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_an_encoding_for_a_built_in_corpus_is_refused_as_idle(name: str) -> None:
    message = refusal(name, encoding="gbk")
    assert message.startswith("--data.encoding gbk would do nothing")
    assert message.endswith("set --data.encoding null")


# ---- characters are kept ------------------------------------------------------------------------

KEPT = "a\r\nb\rc\n\x00\t\x0c\x85\u2028\u2029 e\u0301 é \U0001f468\u200d\U0001f469 \ufffe no end"


def test_nothing_in_the_text_is_changed(tmp_path: Path) -> None:
    path = write(tmp_path, "text.txt", KEPT.encode())
    assert read_corpus(str(path)) == KEPT


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (b"\xef\xbb\xbf", None),
        (b"\xef\xbb\xbf", "utf-8"),
        (b"\xef\xbb\xbf", "utf-8-sig"),
        (b"\xff\xfe", "utf-16"),
        (b"\xfe\xff", "utf-16"),
        (b"\xff\xfe", "utf-16-le"),
        (b"\xfe\xff", "utf-16-be"),
        (b"\xff\xfe\x00\x00", "utf-32"),
    ],
)
def test_one_byte_order_mark_at_the_start_is_dropped(
    tmp_path: Path, mark: bytes, encoding: str | None
) -> None:
    little = mark.startswith(b"\xff")
    codec = {2: "utf-16", 3: "utf-8", 4: "utf-32"}[len(mark)]
    if codec != "utf-8":
        codec += "-le" if little else "-be"
    text = "\ufeffa\ufeffb"  # a second mark, and one inside, are text
    path = write(tmp_path, "text.txt", mark + text.encode(codec))
    assert read_corpus(str(path), encoding=encoding) == text


@pytest.mark.parametrize(
    "name",
    [
        "crlf_only",
        "cr_only_mac",
        "crlf_bom_tab_nul",
        "unicode_mix",
        "one_line_1mb_no_newline",
        "looks_like_special_tokens",
        "trailing_spaces_no_final_newline",
    ],
)
def test_published_awkward_texts_come_back_byte_for_byte(test_data: Path, name: str) -> None:
    path = test_data / "awkward" / f"{name}.txt"
    assert read_corpus(str(path)).encode() == path.read_bytes().removeprefix(b"\xef\xbb\xbf")


# ---- bytes that are not UTF-8 -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "offset", "byte"),
    [
        (b"x" * 5000 + b"\xff" + b"y" * 5000, 5000, "0xFF"),
        ("caf\xe9 au lait".encode("latin-1"), 3, "0xE9"),
        ("a \u201cquote\u201d".encode("cp1252"), 2, "0x93"),
        ("ab\u6c49\u5b57".encode("gbk"), 2, "0xBA"),
        ("abc\u6c49".encode()[:-1], 3, "0xE6"),
        (b"\xef\xbb\xbfabc\xff", 6, "0xFF"),  # the mark counts: offsets are those of the file
        (b"a\xed\xa0\x80", 1, "0xED"),  # half of a surrogate pair
    ],
)
def test_an_invalid_byte_is_named_with_its_offset(
    tmp_path: Path, data: bytes, offset: int, byte: str
) -> None:
    path = write(tmp_path, "text.txt", data)
    message = refusal(path)
    assert f"byte {byte} at offset {offset} is not valid UTF-8" in message
    assert str(path) in message
    assert "--data.encoding" in message


@pytest.mark.parametrize(
    ("name", "encoding", "offset"),
    [
        ("latin1_invalid_utf8", "latin-1", None),
        ("cp1252_smart_quotes", "cp1252", None),
        ("gbk_chinese", "gbk", None),
        ("utf16le_bom", "utf-16", 0),
        ("utf8_mostly_ok_one_bad_byte", None, 5000),
        ("utf8_truncated_tail", None, None),
    ],
)
def test_published_files_in_other_encodings_are_refused_until_it_is_named(
    test_data: Path, name: str, encoding: str | None, offset: int | None
) -> None:
    path = test_data / "awkward" / f"{name}.txt"
    message = refusal(path)
    assert "at offset " in message
    assert "--data.encoding" in message
    if offset is not None:
        assert f"at offset {offset} " in message
    if encoding is not None:
        expected = path.read_bytes().decode(encoding)
        assert read_corpus(str(path), encoding=encoding) == expected


@pytest.mark.parametrize(
    ("codec", "mark", "remedy"),
    [
        ("utf-16-le", b"\xff\xfe", "utf-16"),
        ("utf-16-be", b"\xfe\xff", "utf-16"),
        ("utf-32-le", b"\xff\xfe\x00\x00", "utf-32"),
        ("utf-32-be", b"\x00\x00\xfe\xff", "utf-32"),
    ],
)
def test_a_wide_byte_order_mark_is_refused_with_the_encoding_to_name(
    tmp_path: Path, codec: str, mark: bytes, remedy: str
) -> None:
    path = write(tmp_path, "text.txt", mark + "hello \u6c49".encode(codec))
    assert refusal(path).endswith(f"set --data.encoding {remedy}")
    assert read_corpus(str(path), encoding=remedy) == "hello \u6c49"


@pytest.mark.parametrize("encoding", ["nonsense", "", "hex", "rot13", "undefined", "a\0b"])
def test_an_unknown_encoding_is_refused_even_for_an_empty_file(
    tmp_path: Path, encoding: str
) -> None:
    path = write(tmp_path, "text.txt", b"")
    assert refusal(path, encoding=encoding).startswith("--data.encoding ")


def test_an_encoding_that_yields_half_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "text.txt", b"ab+2AA-")
    assert b"ab+2AA-".decode("utf-7") == "ab\ud800"
    message = refusal(path, encoding="utf-7")
    assert "character 2 is U+D800" in message


def test_a_byte_that_is_invalid_in_the_named_encoding_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "text.txt", b"ab\x81")
    assert "byte 0x81 at offset 2 is not valid CP1252" in refusal(path, encoding="cp1252")


# ---- what is no text file -----------------------------------------------------------------------


def test_a_missing_file_lists_the_built_in_corpora(tmp_path: Path) -> None:
    message = refusal(tmp_path / "zzz.qqq")
    assert all(name in message for name in BUILT_IN)
    assert "did you mean" not in message


def test_a_misspelt_built_in_corpus_is_recognised() -> None:
    assert "did you mean tinyshakespeare?" in refusal("tinyshakespear")


def test_a_misspelt_file_is_recognised_beside_the_real_one(tmp_path: Path) -> None:
    real = write(tmp_path, "my_novel.txt", b"text")
    assert f"did you mean {real}?" in refusal(tmp_path / "my_nvoel.txt")


def test_a_file_under_a_missing_folder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "text.txt"
    assert "neither a file, a folder nor a built-in" in refusal(path)
    assert f"looked for {path};" in refusal(path)


@pytest.mark.parametrize("corpus", ["x" * 5000, "a\0b", "two\nlines"])
def test_impossible_file_names_are_refused_in_one_line(corpus: str) -> None:
    assert refusal(corpus).startswith("--data.corpus ")


def test_an_empty_folder_and_an_empty_name_are_refused(tmp_path: Path) -> None:
    assert "has no file to read" in refusal(tmp_path)
    assert "neither a file" in refusal("")


@pytest.mark.parametrize("ending", [".zip", ".PDF", ".npy", ".docx", ".bz2"])
def test_files_of_other_kinds_are_refused_though_they_decode(tmp_path: Path, ending: str) -> None:
    message = refusal(write(tmp_path, "corpus" + ending, b"plain words"))
    assert ending.lower() in message
    assert "put its text into" in message


@pytest.mark.parametrize("name", ["README", "notes.md", "program.py", "log.2024"])
def test_files_of_any_other_ending_are_text(tmp_path: Path, name: str) -> None:
    assert read_corpus(str(write(tmp_path, name, b"plain words"))) == "plain words"


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_a_file_without_text_is_refused(tmp_path: Path, data: bytes) -> None:
    assert "holds no text" in refusal(write(tmp_path, "text.txt", data))


@pytest.mark.parametrize("name", ["empty.txt", "only_bom.txt"])
def test_published_files_without_text_are_refused(test_data: Path, name: str) -> None:
    assert "holds no text" in refusal(test_data / "awkward" / name)


def test_a_file_named_like_a_built_in_corpus_is_reached_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "python-reference", b"my own")
    assert read_corpus("./python-reference") == "my own"
    assert len(read_corpus("python-reference")) > 100_000
