"""In a locale without UTF-8, names with other characters than ASCII work all the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.conftest import TEXT

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows reads every name as Unicode")
ASCII_ONLY = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


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


CONFIG = """
model:
  decoder: {dim: 8, n_layers: 1, context_length: 8, attention: {n_heads: 2}}
  schedule: {warmup_steps: 1}
data: {corpus: tëxt.txt, batch_size: 4}
trainer: {accelerator: cpu, max_steps: 2}
"""
STUDY = """
description: One switch.
expectation: None.
base: größe.yaml
seeds: 2
arms:
  öhne: {model.decoder.norm.kind: layernorm}
"""
RUN = "würzel/logs/läuf/run_0"
BEST = f"{RUN}/checkpoints/best.ckpt"
PROMPT = "2 文"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a config, a study, texts, a run and its export, all of such names."""
    place = tmp_path_factory.mktemp("Übung 文")
    (place / "größe.yaml").write_text(CONFIG, encoding="utf-8")
    (place / "stüdie.yaml").write_text(STUDY, encoding="utf-8")
    (place / "decöder.yaml").write_text("{dim: 8, n_layers: 1, attention: {n_heads: 2}}")
    for name in ("tëxt.txt", "prüf.txt"):
        (place / name).write_text(TEXT.replace("times", "文"), encoding="utf-8")
    data = ("--data.corpus=tëxt.txt", "--data.val_corpus=prüf.txt", "--data.cache_dir=càche")
    root = ("--trainer.default_root_dir=würzel", "--name=läuf")
    succeeds(place, "fit", "--config=größe.yaml", *data, *root)
    succeeds(place, "export", BEST, "--output=hinüber")
    shutil.copy(place / BEST, place / "köpie.ckpt")
    return place


FIT = ("fit", "--config=größe.yaml")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "made"),
    [
        ((*FIT, "--name=änders"), "logs/änders/run_0/receipt.json"),
        ((*FIT, f"--model.init_from={BEST}", "--name=vön"), "logs/vön/run_0/receipt.json"),
        ((*FIT, "--data.tokenizer=hinüber", "--name=töken"), "logs/töken/run_0/receipt.json"),
        ((*FIT, "--model.decoder=decöder.yaml", "--name=döc"), "logs/döc/run_0/receipt.json"),
        (("fit", f"--ckpt_path={RUN}", "--trainer.max_steps=4"), f"{RUN}/receipt.json"),
        (
            (
                "fit",
                "--ckpt_path=köpie.ckpt",
                "--trainer.max_steps=6",
                "--trainer.default_root_dir=zwëig",
            ),
            "zwëig/logs/läuf/run_0/receipt.json",
        ),
        (("validate", f"--ckpt_path={RUN}"), None),
        (("test", f"--ckpt_path={BEST}"), None),
        (("generate", f"--ckpt_path={RUN}", f"--prompt={PROMPT}", "--max_new_tokens=4"), None),
        (("describe", "größe.yaml", "--model.decoder.vocab_size=64"), None),
        (("describe", RUN, "--format=json"), None),
        (("describe", "hinüber"), None),
        (("tokenize", "--corpus=tëxt.txt", "--tokenizer=hinüber", "--cache_dir=störe"), "störe"),
        (("export", RUN, "--output=aüs"), "aüs/model.safetensors"),
        (("import", "hinüber", "--output=zurück.ckpt"), "zurück.ckpt"),
        (("lr-range", "größe.yaml", "--steps=20", "--output=räten"), "räten/report.html"),
        (("lr-range", "größe.yaml", "--steps=20"), "logs/lr-range/größe/report.html"),
        (("bench", "größe.yaml", "--data.corpus=tëxt.txt"), None),
        (("ablate", "--config=stüdie.yaml"), "logs/studies/stüdie/report.html"),
        (("runs", "--root=würzel", "--name=läuf"), None),
        (("runs", "--root=würzel", "--format=json"), None),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_every_command_takes_such_paths(
    trained: Path, argv: tuple[str, ...], made: str | None
) -> None:
    said = succeeds(trained, *argv)
    assert "\\udc" not in said
    assert "\\x" not in said
    if made is not None:
        assert (trained / made).exists()
    if argv[0] == "generate":
        assert PROMPT in said
    if argv[0] == "runs":
        assert "läuf" in said


@pytest.mark.slow
def test_the_files_of_a_run_tell_such_names_as_they_are(trained: Path) -> None:
    run = trained / RUN
    receipt = json.loads((run / "receipt.json").read_bytes())
    assert receipt["store"]["corpus"] == receipt["config"]["data"]["corpus"] == "tëxt.txt"
    assert receipt["config"]["data"]["cache_dir"] == "càche"
    assert "val_corpus: prüf.txt" in (run / "config.yaml").read_text(encoding="utf-8")
    assert list(run.glob("events.out.tfevents.*"))


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
