"""The package as users get it: configs found from anywhere, in a checkout and in a wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from llama_lab.cli import main
from llama_lab.configs import find_config, new_run_folder, newest_checkpoint
from llama_lab.errors import UserError

ROOT = Path(__file__).parent.parent
SHIPPED = (
    "llama.yaml",
    "transformer-2017.yaml",
    "attention-is-all-you-need.yaml",
    "nanogpt-cpu.yaml",
    "nanogpt-char.yaml",
    "llama-bpe.yaml",
)


def test_a_wheel_carries_the_configs_and_finds_them(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="the build backend is not installed")
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    wheel = next(tmp_path.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
        names = archive.namelist()
    assert "llama_lab/data/datamodule.py" in names
    assert {"llama_lab/reports/report.css", "llama_lab/reports/report.js"} <= set(names)
    assert not [n for n in names if n.startswith(("tests/", "logs/"))]
    code = "from llama_lab.configs import find_config; print(find_config('llama').read_text())"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == (ROOT / "configs/llama.yaml").read_text().strip()


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configs_are_found_from_any_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert yaml.safe_load(find_config(name).read_text())["model"]
    assert find_config(Path(name).stem) == find_config(name)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / name).write_text("trainer: {max_steps: 1}\n")
    assert find_config(name) == Path("configs") / name
    (tmp_path / name).write_text("trainer: {max_steps: 2}\n")
    assert find_config(name) == Path(name)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configs_parse_into_a_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", name, "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["name"] == Path(name).stem


@pytest.mark.parametrize("older", ["transformer-2017", "attention-is-all-you-need"])
def test_the_compared_models_are_trained_alike(older: str) -> None:
    new, old = (
        yaml.safe_load((ROOT / "configs" / f"{name}.yaml").read_text()) for name in ("llama", older)
    )
    assert new["model"].pop("decoder") != old["model"].pop("decoder")
    assert new == old


def test_run_folders_count_up_and_fill_no_gap(tmp_path: Path) -> None:
    assert new_run_folder(tmp_path, "a").name == "run_0"
    (tmp_path / "a" / "run_7").mkdir()
    (tmp_path / "a" / "run_x").mkdir()
    assert new_run_folder(tmp_path, "a").name == "run_8"
    assert new_run_folder(tmp_path, "b").name == "run_0"


def test_without_any_run_the_newest_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="llama-lab fit"):
        newest_checkpoint(tmp_path, "best")
