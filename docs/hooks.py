"""Hooks of the site's build: the reference pages are made here, and never kept."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

from generator import MissingPage, pages


def on_files(files: Files, config: Any) -> Files:
    """Add the reference pages; a command or a setting without a page ends the build."""
    try:
        made = pages()
    except MissingPage as error:
        raise PluginError(str(error)) from error
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files
