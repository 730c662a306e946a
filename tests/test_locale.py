"""In a locale without UTF-8, names with other characters than ASCII work all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.training.conftest import TEXT, TINY

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows reads every name as Unicode")
ASCII_ONLY = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
MODEL = [f"--{name}={value}" for name, value in TINY.items()]


def call(folder: Path, *argv: str | bytes) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **ASCII_ONLY}
    words: list[str | bytes] = [sys.executable, "-m", "llama_lab", *argv]
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, timeout=120)


def succeeds(folder: Path, *argv: str) -> str:
    done = call(folder, *argv)
    err = done.stderr.decode("utf-8")
    assert done.returncode == 0, err
    assert "Traceback" not in err
    return done.stdout.decode("utf-8") + err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "Übung 文"
    place.mkdir()
    (place / "tëxt.txt").write_text(TEXT, encoding="utf-8")
    return place


@pytest.mark.slow
def test_a_run_with_such_names_is_made_resumed_scored_sampled_and_exported(folder: Path) -> None:
    paths = ("--data.cache_dir=càche", "--trainer.accelerator=cpu")
    own = [word for word in MODEL if not word.startswith(("--data.corpus", "--trainer.max_steps"))]
    succeeds(folder, "fit", "--data.corpus=tëxt.txt", *own, *paths, "--trainer.max_steps=2")
    [receipt] = folder.rglob("receipt.json")
    assert "tëxt.txt" in json.dumps(json.loads(receipt.read_bytes()), ensure_ascii=False)
    run = str(receipt.parent)
    succeeds(folder, "fit", f"--ckpt_path={run}", "--trainer.max_steps=4")
    succeeds(folder, "validate", f"--ckpt_path={run}")
    said = succeeds(
        folder, "generate", "--ckpt_path", run, "--prompt", TEXT[:4], "--max_new_tokens=4"
    )
    assert TEXT[:4] in said
    succeeds(folder, "runs")
    succeeds(folder, "export", run, "--output", "hinüber")
    succeeds(folder, "import", "hinüber", "--output", "zurück.ckpt")
    assert (folder / "zurück.ckpt").exists()


def test_tokenize_names_files_of_folders_as_they_are_spelt(folder: Path) -> None:
    (folder / "ordner").mkdir()
    (folder / "ordner" / "ä.txt").write_text(TEXT * 2, encoding="utf-8")
    for corpus in ("tëxt.txt", "ordner", str(folder / "ordner")):
        said = succeeds(folder, "tokenize", "--corpus", corpus, "--cache_dir", "càche")
        assert corpus in said
        assert "\\udc" not in said


@pytest.mark.parametrize("command", ["describe", "ablate", "lr-range", "bench", "tokenize"])
def test_help_is_printed(tmp_path: Path, command: str) -> None:
    succeeds(tmp_path, command, "--help")


def test_a_name_that_is_no_utf8_is_refused_by_its_bytes(folder: Path) -> None:
    done = call(folder, "tokenize", "--corpus", b"f\xfcr.txt")
    assert done.returncode == 2
    assert done.stderr == (
        b"llama-lab: error: --corpus f\\xfcr.txt: not UTF-8 text; give it, or name the file, in "
        b"UTF-8\n"
    )
    assert [path.name for path in folder.iterdir()] == ["tëxt.txt"]
