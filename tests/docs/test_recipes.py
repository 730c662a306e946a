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


def with_recipes(folder: Path) -> None:
    """Put a package with all recipes applied into a folder."""
    if shutil.which("git") is None:
        pytest.skip("git, which applies the patches, is not installed")
    for name in ("llama_lab", "configs", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in RECIPES:
        # -C1: a patch holds as long as the lines next to it do.
        applied = subprocess.run(
            ["git", "apply", "-C1", str(path)],
            cwd=folder,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
            capture_output=True,
            text=True,
        )
        assert applied.returncode == 0, f"{path.name}: {applied.stderr}"


def use(folder: Path, *words: str) -> None:
    """Run ``use_recipes.py`` there."""
    with_recipes(folder)
    (folder / "here").mkdir()
    script = Path(__file__).parent / "use_recipes.py"
    used = subprocess.run(
        [sys.executable, str(script), str(folder / "docs"), *words],
        cwd=folder / "here",
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert used.returncode == 0, used.stderr[-2000:]
    assert used.stdout.endswith("all recipes work\n")


def test_what_the_recipes_add_trains_resumes_and_is_exported_or_refused(tmp_path: Path) -> None:
    use(tmp_path)


@pytest.mark.slow
def test_the_new_family_computes_what_transformers_does(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: the extra hf")
    use(tmp_path, "--against-transformers")
