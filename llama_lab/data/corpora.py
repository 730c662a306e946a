"""Where text comes from: the built-in corpora and text files, each read as one string.

Characters arrive as they stand in the file. A byte-order mark at the start is dropped; line ends,
NUL, U+2028 and everything else are kept.
"""

from __future__ import annotations

import codecs
import difflib
import hashlib
import http.client
import importlib
import itertools
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llama_lab.errors import UserError
from llama_lab.files import replace_synced

DOWNLOAD_TIMEOUT_SECONDS = 30.0

# Endings of files that hold something else, though some would decode; others are read as text.
NOT_PLAIN_TEXT = {
    "records": (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".feather"),
    "compressed data": (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".tar", ".tgz", ".7z"),
    "a formatted document": (".pdf", ".doc", ".docx", ".odt", ".epub", ".rtf", ".xlsx"),
    "an image": (".png", ".jpg", ".jpeg", ".gif", ".webp"),
    "binary data": (".bin", ".npy", ".npz", ".pt", ".pth", ".ckpt", ".safetensors", ".sqlite"),
}

# UTF-32-LE begins with the two bytes of UTF-16-LE, so the longer marks are tried first.
WIDE_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# These codecs take the mark away themselves; a second U+FEFF after it belongs to the text.
CODECS_THAT_DROP_THE_MARK = frozenset({"utf-8-sig", "utf-16", "utf-32"})


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


def read_corpus(corpus: str, *, encoding: str | None = None, data_dir: Path = Path("data")) -> str:
    """The text of a built-in corpus or of a text file.

    A built-in's name wins over a file of that name; ``./NAME`` reaches the file.

    Args:
        corpus: A name in :data:`BUILT_IN`, or the path of a text file.
        encoding: The file's encoding; ``None`` means UTF-8. Refused with a built-in corpus.
        data_dir: Where built-in corpora that are not part of Python are kept.

    Raises:
        UserError: There is no such corpus or file, it is not a text file, it holds no text, a byte
            is invalid under the encoding, or ``encoding`` is unknown or would do nothing.
    """
    if corpus in BUILT_IN:
        if encoding is not None:
            raise UserError(
                f"--data.encoding {encoding} would do nothing: data.corpus {corpus} is built in; "
                "set --data.encoding null"
            )
        return BUILT_IN[corpus](data_dir)
    path = Path(corpus)
    _refuse_what_is_no_text_file(corpus, path)
    text = decode(_bytes_of(path), encoding, name=shown(corpus))
    if not text:
        raise UserError(
            f"--data.corpus {shown(corpus)}: the file holds no text; name one that does"
        )
    return text


def decode(data: bytes, encoding: str | None, *, name: str) -> str:
    """``data`` as text, strictly, without the byte-order mark that it may begin with.

    Args:
        data: All bytes of the file, so that offsets in errors are offsets in the file.
        encoding: ``None`` means UTF-8.
        name: The file's name for error messages.
    """
    codec = _codec_name(encoding)
    if codec in {"utf-8", "utf-8-sig"}:
        _refuse_wide_byte_order_mark(data, name)
    try:
        text = data.decode(codec)
    except UnicodeDecodeError as error:
        example = " (cp1252, gbk, …)" if encoding is None else ""
        raise UserError(
            f"--data.corpus {name}: byte 0x{data[error.start]:02X} at offset {error.start} is not "
            f"valid {codec.upper()} ({error.reason}); mend the file or name its true encoding with "
            f"--data.encoding{example}"
        ) from error
    except UnicodeError as error:
        raise UserError(
            f"--data.corpus {name}: cannot be read as {codec} ({one_line(error)}); "
            "name the file's own encoding with --data.encoding"
        ) from error
    if codec not in CODECS_THAT_DROP_THE_MARK:
        text = text.removeprefix("\ufeff")
    _refuse_surrogates(text, codec, name)
    return text


def shown(value: object) -> str:
    """``value`` as it is typed, or quoted where it would break the line or not be seen."""
    text = str(value)
    return text if text and text.isprintable() else repr(text)


def one_line(error: object) -> str:
    """What ``error`` says, on one line; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def _codec_name(encoding: str | None) -> str:
    try:
        codec = codecs.lookup("utf-8" if encoding is None else encoding).name
        # `hex`, `rot13` and the like are codecs but decode no text, which shows only at work.
        b" ".decode(codec, errors="replace")
    except (LookupError, ValueError) as error:
        raise UserError(
            f"--data.encoding {shown(encoding)} is not a text encoding that Python knows; "
            "name one, such as utf-8, utf-16, latin-1, cp1252 or gbk"
        ) from error
    return codec


def _refuse_wide_byte_order_mark(data: bytes, name: str) -> None:
    for mark, encoding in WIDE_BYTE_ORDER_MARKS:
        if data.startswith(mark):
            raise UserError(
                f"--data.corpus {name}: byte 0x{data[0]:02X} at offset 0 begins a byte-order mark "
                f"of {encoding.upper()}, not valid UTF-8; set --data.encoding {encoding}"
            )


def _refuse_surrogates(text: str, codec: str, name: str) -> None:
    # utf-7 and unicode_escape can yield halves of surrogate pairs, which no UTF-8 text can hold.
    if codec in {"utf-8", "utf-8-sig"}:
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"--data.corpus {name}: character {error.start} is U+{ord(text[error.start]):04X}, "
            f"half of a surrogate pair, under --data.encoding {codec}; "
            "mend the file or name its true encoding"
        ) from error


def _refuse_what_is_no_text_file(corpus: str, path: Path) -> None:
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, ValueError) as error:
        raise UserError(
            f"--data.corpus {shown(corpus)}: cannot be opened ({one_line(error)}); "
            f"name a text file or a built-in corpus ({', '.join(BUILT_IN)})"
        ) from error
    if not corpus or is_folder:
        raise UserError(
            f"--data.corpus {shown(corpus)}: is a folder; only text files are read, so name one"
        )
    if not exists:
        near = _near_name(corpus, path)
        hint = f"did you mean {shown(near)}?" if near else "name one of these or a text file"
        raise UserError(
            f"--data.corpus {shown(corpus)}: neither a file nor a built-in corpus "
            f"({', '.join(BUILT_IN)}); {hint}"
        )
    ending = path.suffix.lower()
    for content, endings in NOT_PLAIN_TEXT.items():
        if ending in endings:
            raise UserError(
                f"--data.corpus {shown(corpus)}: a {ending} file holds {content}; only text files "
                "are read, so put its text into one"
            )


def _near_name(corpus: str, path: Path) -> str | None:
    """The built-in or the sibling file whose name comes closest to ``corpus``, if any is close."""
    names = {name: name for name in BUILT_IN}
    try:
        siblings = itertools.islice(path.parent.iterdir(), 5000)
        names.update({file.name: str(file) for file in sorted(siblings) if file.is_file()})
    except OSError:
        pass
    near = difflib.get_close_matches(path.name, names, n=1)
    return names[near[0]] if near else None


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
