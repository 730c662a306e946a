"""Names whose bytes are not UTF-8 are told by their bytes, or refused before a file is written."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llama_lab.cli import main
from llama_lab.commands.output import write_utf8
from llama_lab.errors import UserError
from llama_lab.files import json_bytes
from llama_lab.names import is_utf8, spelt
from llama_lab.yaml_text import parse_yaml
from tests.runs.conftest import TEXT, flags

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows reads every name as Unicode")
LATIN = os.fsdecode(b"caf\xe9")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, on a file system that bears such names."""
    try:
        (tmp_path / LATIN).mkdir()
    except OSError:
        pytest.skip("this file system takes names in UTF-8 alone")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_bytes_are_spelt_and_every_other_character_stays() -> None:
    assert spelt(f"é 文 {LATIN} \ud800") == "é 文 caf\\xe9 \\ud800"
    assert is_utf8("é 文 𐍈")
    assert not is_utf8(LATIN)


def test_json_brings_the_name_back() -> None:
    file = json_bytes({"corpus": LATIN, "text": "é"})
    assert "é".encode() in file
    assert json.loads(file.decode("utf-8")) == {"corpus": LATIN, "text": "é"}


def test_a_stream_tells_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    write_utf8()
    print(f"ü {LATIN}", flush=True)
    assert written.getvalue() == "ü caf\\xe9\n".encode()


def test_a_working_directory_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.chdir(folder / LATIN)
    Path("text.txt").write_text(TEXT)
    said = refused("fit", *flags())
    assert said.startswith("the working directory: ")
    assert said.endswith("/caf\\xe9 is not UTF-8 text; rename the folder")
    assert os.listdir() == ["text.txt"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("LLAMA_LAB_DATA__CORPUS", LATIN), (f"LLAMA_LAB_{LATIN}", "1"), ("PL_TRAINER_X", LATIN)],
)
def test_a_variable_is_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    monkeypatch.setenv(name, value)
    said = refused("fit")
    assert said == (
        f"environment variable {spelt(name)} {spelt(value)}: not UTF-8 text; give it, or name the "
        "file, in UTF-8"
    )


def test_the_newest_run_is_refused_before_it_goes_on(
    folder: Path, refused: Callable[..., str]
) -> None:
    run = Path("logs", LATIN, "run_0", "checkpoints")
    run.mkdir(parents=True)
    for argv in (("fit", "--ckpt_path=last"), ("generate",), ("export", "best", "--output=out")):
        said = refused(*argv)
        assert said.endswith("logs/caf\\xe9/run_0 is not UTF-8 text; rename the folder")


def test_a_file_of_a_corpus_is_told_by_its_bytes(
    folder: Path, refused: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(json.dumps({"text": line}) + "\n" for line in TEXT.splitlines()[:60])
    (folder / LATIN / f"{LATIN}.jsonl").write_text("{broken\n" + rows)
    argv = ("tokenize", "--corpus", ".", "--format=json")
    assert refused(*argv).startswith("--corpus caf\\xe9/caf\\xe9.jsonl, line 1: ")
    assert main([*argv, "--on_bad_record=skip"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)
    assert is_utf8(out)
    assert "udce9" not in out


@pytest.mark.parametrize("text", ["data: a\x07b", '"\\udce9"', '{"\\ud800": 1}'])
def test_yaml_refuses_what_is_no_text(text: str) -> None:
    with pytest.raises(UserError, match=r"^c\.yaml: not a YAML file"):
        parse_yaml(text, "c.yaml")


def test_yaml_joins_the_two_halves_that_json_escapes() -> None:
    assert parse_yaml(json.dumps({"𐍈": "🙂"}), "c.json") == {"𐍈": "🙂"}
