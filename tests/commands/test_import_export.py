"""``llama-lab import`` and ``export`` through the entry, and what can be done with the result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from llama_lab.checkpoints import read_record
from llama_lab.cli import main

WEIGHTS = "logs/name/run_0/checkpoints/best.ckpt"


def run(*argv: str) -> None:
    assert main(list(argv)) == 0


@pytest.fixture
def imported(write_run, here: Path) -> Path:
    """A checkpoint that went out and came in again."""
    write_run("bpe")
    run("export", "logs/name/run_0/checkpoints/best.ckpt", "--output", "folder")
    run("import", "folder", "--output", "in.ckpt")
    return here / "in.ckpt"


def test_both_say_on_standard_error_what_they_made(write_run, here, capsys) -> None:
    write_run()
    run("export", "best", "--output", "folder")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"folder: llama, from {Path(WEIGHTS)}\n"
    run("import", "folder", "--output", "in.ckpt")
    assert capsys.readouterr().err.startswith("in.ckpt: llama, ")


def test_the_same_text_comes_out_of_the_model_that_went_out_and_came_in(imported, capsys) -> None:
    texts = []
    for path in (WEIGHTS, "in.ckpt"):
        capsys.readouterr()
        run("generate", "--ckpt_path", path, "--prompt", "the cat", "--max_new_tokens", "20")
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_describe_counts_an_imported_model(imported, capsys) -> None:
    run("describe", "in.ckpt")
    assert "2 layers of width 16" in capsys.readouterr().out


DATA = ["--data.corpus", "text.txt", "--trainer.accelerator", "cpu"]


def test_an_imported_model_is_scored(imported, capsys) -> None:
    Path("text.txt").write_text("the cat sat on the mat, the café 日本 😀\n" * 40, encoding="utf-8")
    run("validate", "--ckpt_path", "in.ckpt", *DATA)
    assert float(capsys.readouterr().out.splitlines()[0].split()[1]) > 0


def test_fit_goes_on_with_its_weights_and_then_with_its_own_run(imported, capsys, refused) -> None:
    Path("text.txt").write_text("the cat sat on the mat, the café 日本 😀\n" * 40, encoding="utf-8")
    fit = ["fit", *DATA, "--name", "on", "--trainer.val_check_interval", "2"]
    rate = ["--model.optimizer.lr", "1e-9"]
    run(*fit, *rate, "--model.init_from", "in.ckpt", "--trainer.max_steps", "2")
    record = read_record("logs/on/run_0/checkpoints/last.ckpt")
    before = read_record("in.ckpt")
    assert record.tokenizer == before.tokenizer
    for name, tensor in before.weights.items():
        torch.testing.assert_close(record.weights[name], tensor, rtol=0, atol=1e-6)
    run("fit", "--ckpt_path", "last", "--name", "on", "--trainer.max_steps", "3")
    run("export", "logs/on/run_0", "--output", "trained")
    line = refused(*fit, "--model.init_from", "in.ckpt", "--model.decoder.dim", "32")
    assert "--model.decoder.dim is 16 there and 32 here" in line
    line = refused("fit", "--ckpt_path", "in.ckpt")
    assert "in.ckpt lacks what a run needs to go on" in line
    assert "--model.init_from in.ckpt" in line


def test_what_makes_no_sense_is_refused_in_one_line(imported, refused) -> None:
    for argv, words in (
        (["import", "folder"], "output is missing"),
        (["import", "nowhere", "--output", "b.ckpt"], "nowhere: no such folder or file"),
        (["import", "folder", "--output", "in.ckpt"], "--output in.ckpt: it is there already"),
        (["import", "folder", "--output", "no/b.ckpt"], "there is no folder"),
        (
            ["import", "folder", "--tokenizer", "t.bin", "--output", "b.ckpt"],
            "--tokenizer t.bin would do nothing",
        ),
        (["import", "in.ckpt", "--output", "b.ckpt"], "--tokenizer null: in.ckpt is a file"),
        (["import", "folder", "--outptu", "b.ckpt"], "did you mean --output?"),
        (["export", "in.ckpt", "--output", "folder"], "--output folder: it is there already"),
        (["export", "nowhere.ckpt", "--output", "new"], "nowhere.ckpt: no such file"),
        (["export", "folder/config.json", "--output", "new"], "not a whole checkpoint"),
    ):
        assert words in refused(*argv)
    assert not Path("b.ckpt").exists()
    assert not Path("new").exists()


@pytest.mark.parametrize("command", ["import", "export"])
def test_help_needs_no_torch_and_documents_every_flag(command: str, here: Path) -> None:
    code = (
        "import sys; from llama_lab.cli import main; main(sys.argv[1:]);"
        "assert not {'torch', 'lightning', 'tokenizers'} & set(sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run(
        [sys.executable, "-c", code, command, "--help"],
        env={"PYTHONPATH": str(root), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert "--output OUTPUT" in result.stdout
    assert "safetensors" in result.stdout


def test_the_package_reads_and_writes_folders_without_transformers(imported) -> None:
    code = (
        "import sys; sys.modules['transformers'] = None;"
        "from llama_lab.cli import main;"
        "sys.exit(main(['import', 'folder', '--output', 'b.ckpt'])"
        " or main(['export', 'b.ckpt', '--output', 'again']))"
    )
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
