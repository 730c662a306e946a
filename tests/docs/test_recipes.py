"""The worked diffs of the architecture page: each applies, and what it adds works everywhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.patch"))


def test_the_page_shows_every_recipe() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    shown = re.findall(r'^--8<-- "recipes/(.+)"$', page, re.MULTILINE)
    assert sorted(shown) == [path.name for path in RECIPES]


def test_what_the_recipes_add_trains_resumes_and_is_exported_or_refused(tmp_path: Path) -> None:
    if shutil.which("git") is None:
        pytest.skip("git, which applies the patches, is not installed")
    for folder in ("llama_lab", "configs", "docs"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    for path in RECIPES:
        # -C1: a patch holds as long as the lines next to it do.
        applied = subprocess.run(
            ["git", "apply", "-C1", str(path)],
            cwd=tmp_path,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
            capture_output=True,
            text=True,
        )
        assert applied.returncode == 0, f"{path.name}: {applied.stderr}"
    (tmp_path / "here").mkdir()
    used = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "use_recipes.py"), str(tmp_path / "docs")],
        cwd=tmp_path / "here",
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert used.returncode == 0, used.stderr[-2000:]
    assert used.stdout.endswith("all recipes work\n")
