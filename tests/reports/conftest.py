"""Fixtures for reports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.reports.browser import Browser, chromium, find_chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A real browser, one for all pages."""
    path = find_chromium()
    if path is None:
        pytest.skip("chromium is not installed")
    with chromium(path) as browser:
        yield browser
