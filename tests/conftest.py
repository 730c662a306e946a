"""Fixtures for every room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of published corpora and awkward files, which is not part of the repository."""
    folder = os.environ.get("LLAMA_LAB_TEST_DATA")
    if not folder:
        pytest.skip("LLAMA_LAB_TEST_DATA names no folder of test corpora")
    return Path(folder)
