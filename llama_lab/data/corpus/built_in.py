"""The built-in corpora, each read as one string."""

from __future__ import annotations

import hashlib
import http.client
import importlib
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llama_lab.errors import UserError
from llama_lab.files import replace_synced
from llama_lab.names import spelt

DOWNLOAD_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class PublishedText:
    """A text that is looked up in the data folder first and downloaded where it is not there.

    Whichever way it comes, its bytes must have the published SHA-256.
    """

    file: str
    address: str
    sha256: str

    def __call__(self, data_dir: Path) -> str:
        path = (data_dir / self.file).absolute()
        if path.exists():
            data = _bytes_of(path)
            self._check(
                data, str(path), f"delete it, or name it by its path: --data.corpus {shown(path)}"
            )
        else:
            data = self._download(path)
            self._check(data, self.address, f"put the right file at {path}")
            _save(path, data)
        return data.decode("utf-8")

    def _download(self, path: Path) -> bytes:
        try:
            with urllib.request.urlopen(self.address, timeout=DOWNLOAD_TIMEOUT_SECONDS) as response:
                data: bytes = response.read()
                return data
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise UserError(
                f"--data.corpus {path.stem}: no file at {path}, and it cannot be downloaded "
                f"({one_line(reason)}); fetch {self.address} and put it there"
            ) from error

    def _check(self, data: bytes, origin: str, remedy: str) -> None:
        arrived = hashlib.sha256(data).hexdigest()
        if arrived != self.sha256:
            raise UserError(
                f"--data.corpus {Path(self.file).stem}: {origin} has sha256 {arrived}, "
                f"not {self.sha256}; {remedy}"
            )


def python_reference(_data_dir: Path) -> str:
    """The language reference that Python carries for ``help()``: the topics in order of name."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise UserError(
            "--data.corpus python-reference: this Python was installed without pydoc_data; "
            "name a text file or another built-in corpus"
        ) from error
    return "\n".join(topics[name] for name in sorted(topics))


BUILT_IN: dict[str, Callable[[Path], str]] = {
    "python-reference": python_reference,
    "tinyshakespeare": PublishedText(
        file="tinyshakespeare.txt",
        address="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
}


def shown(value: object) -> str:
    """``value`` as it is typed, or quoted where it would break the line or not be seen.

    Bytes of a file name that are not UTF-8 are escaped.
    """
    text = spelt(str(value))
    return text if text and text.isprintable() else repr(text)


def one_line(error: object) -> str:
    """What ``error`` says, on one line; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"--data.corpus {shown(path)}: cannot be read ({error.strerror or one_line(error)}); "
            "make it readable or name another file"
        ) from error


def _save(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_synced(path, data)
    except OSError as error:
        raise UserError(
            f"--data.corpus {path.stem}: the download cannot be kept at {path} "
            f"({error.strerror or one_line(error)}); make room there or put the file there"
        ) from error
