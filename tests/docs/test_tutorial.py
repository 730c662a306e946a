"""Every command line of the tutorial runs as it stands, in order, at a tiny size."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from llama_lab.cli import main

TUTORIAL = Path(__file__).parent.parent.parent / "docs" / "tutorial.md"
WORDS = "The cat sat on the mat and the dog lay by the door while the rain fell on the roof. "
TINY_MODEL = (
    *("--model.decoder.dim=8", "--model.decoder.n_layers=1", "--model.decoder.context_length=8"),
    *("--data.context_length=8", "--data.batch_size=4"),
)
TINY = {
    "fit": (
        *TINY_MODEL,
        "--model.schedule.warmup_steps=1",
        "--trainer.max_steps=4",
        "--trainer.val_check_interval=2",
    ),
    "ablate": (
        *TINY_MODEL,
        "--model.schedule.warmup_steps=1",
        "--trainer.max_steps=2",
        "--trainer.val_check_interval=2",
    ),
    "lr-range": (*TINY_MODEL, "--steps=20", "--repeats=1"),
    "generate": ("--max_new_tokens=8",),
}


def blocks(language: str) -> list[str]:
    fenced = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [body for name, body in fenced.findall(TUTORIAL.read_text()) if name == language]


def lines() -> list[str]:
    found = [line for block in blocks("") for line in block.splitlines()]
    assert all(line.startswith("llama-lab ") for line in found)
    return found


def tiny(words: list[str]) -> list[str]:
    """The same call, small; what a resumed run may not change is left as it is."""
    command = words[0]
    if "--ckpt_path" in words:
        return [*words[: words.index("--trainer.max_steps")], "--trainer.max_steps", "6"]
    if command == "ablate":  # one seed and one process, so that the test is short
        words = [*words[: words.index("--jobs")], "--seeds=[0]"]
    return [*words, *TINY.get(command, ())]


def test_the_commands_of_the_tutorial_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("scipy", reason="scipy is not installed: the extra lab")
    pytest.importorskip("plotly", reason="plotly is not installed: the extra lab")
    monkeypatch.chdir(tmp_path)
    Path("my.txt").write_text("".join(f"{i} {WORDS}" for i in range(40)))
    (study,) = blocks("yaml")
    Path("my-study.yaml").write_text(study)
    commands = [shlex.split(line)[1:] for line in lines()]
    for words in commands:
        assert main(tiny(words)) == 0, f"{words}: {capsys.readouterr().err}"
        if words[0] == "runs":
            listed = capsys.readouterr().out
            assert "mine-learned" in listed
            assert "position.kind learned" in listed
    used = {words[0] for words in commands}
    assert {"tokenize", "describe", "fit", "generate", "validate", "ablate", "export"} <= used
    for left in (
        *("logs/mine/run_0/receipt.json", "logs/mine-learned/run_0/receipt.json"),
        *("logs/studies/my-study/report.html", "my-model/config.json"),
    ):
        assert Path(left).is_file(), left
