"""The notebook runs from its first cell to its last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NOTEBOOK = ROOT / "docs" / "first_contact.ipynb"


def test_the_notebook_runs_and_shows_what_it_promises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = pytest.importorskip("nbclient", reason="nbclient is not installed: the extra notebook")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed: the extra notebook")
    nbformat = pytest.importorskip("nbformat")
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), inherited])))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")], "outputs are not kept"
    run = client.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    run.execute()
    printed = "".join(
        output.get("text") or ""
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream"
    )
    assert "layer 4: stream" in printed
    assert "rope  learned" in printed
    assert "position                 differs" in printed
    assert printed.count(" equal\n") == 5
    # It leaves nothing where it was started.
    assert list(tmp_path.iterdir()) == []
