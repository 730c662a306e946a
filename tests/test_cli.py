"""The entry: it names every command, answers at once, and ends every run properly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from llama_lab import __version__, cli
from llama_lab.errors import RunError, Stopped, UserError

COMMANDS = (
    "fit",
    "validate",
    "test",
    "tokenize",
    "predict",
    "generate",
    "describe",
    "bench",
    "lr-range",
    "ablate",
    "runs",
    "import",
    "export",
    "consolidate",
)


def test_help_names_every_command_that_works_and_no_other(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    listed = out.split("commands:\n")[1].split("\n\n")[0].splitlines()
    assert tuple(line.split()[0] for line in listed) == COMMANDS
    assert all(len(line.split(maxsplit=1)[1]) > 15 for line in listed)


def test_help_needs_neither_torch_nor_lightning() -> None:
    code = (
        "import sys; from llama_lab.cli import main; main(['--help']);"
        "bad = {'torch', 'lightning', 'numpy', 'rich'} & set(sys.modules); sys.exit(bool(bad))"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def test_version(capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"llama-lab {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("no\nsuch thing"), 2, "llama-lab: error: no such thing\n"),
        (RunError("it broke"), 1, "llama-lab: error: it broke\n"),
        (Stopped(15, "stopped"), 143, "llama-lab: stopped\n"),
        (Stopped(2, "stopped"), 130, "llama-lab: stopped\n"),
        (KeyboardInterrupt(), 130, "llama-lab: interrupted\n"),
        (MemoryError(), 1, "llama-lab: error: no memory is left;"),
        (RuntimeError("CUDA out of memory. Tried\nmuch"), 1, "llama-lab: error: CUDA out of"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_ending_has_its_exit_code_and_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
    error: BaseException,
    code: int,
    line: str,
) -> None:
    def fail(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "dispatch", fail)
    assert cli.main(["fit"]) == code
    err = capsys.readouterr().err
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(argv: list[str]) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "dispatch", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["fit"])


EVERY = ("checkpoint_every", "diagnostics_every")


def test_every_setting_of_fit_is_a_documented_flag(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["fit", "--help"]) == 0
    out = capsys.readouterr().out
    text = " ".join(out.split())
    entries = [
        entry
        for entry in out.split("\n  --")[1:]
        if entry.startswith(("model.", "data.", "name", "ckpt_path", *EVERY))
    ]
    assert len(entries) > 40
    assert all(f"\n  --{flag} " in out for flag in EVERY)
    for entry in entries:
        flag, _, rest = entry.partition(" ")
        if "Path to a configuration file" in rest:
            continue
        line = " ".join(rest.split())
        assert "default:" in line, flag
        words = line.split("(type:")[0].split()
        assert len(words) >= 4, f"--{flag} has no documentation"
    assert "max_epochs" not in text
    assert "--trainer.val_check_interval VAL_CHECK_INTERVAL Optimiser steps" in text
    text = " ".join(" ".join(entries).split())
    for choices in (
        "{layernorm,rmsnorm,rmsnorm_offset,rmsnorm_plain,dyt}",
        "{pre,post,sandwich,reordered,parallel}",
        "{learned,sinusoidal,rope,alibi,none}",
    ):
        assert choices in text
