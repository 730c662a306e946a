"""File endings: which reader each has, and which of them hold no text that is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from llama_lab.data.corpus.readers.json_records import read_json, read_json_lines
from llama_lab.data.corpus.readers.records import Piece, Records
from llama_lab.data.corpus.readers.streams import packing_of
from llama_lab.data.corpus.readers.tables import read_csv, read_tsv

Reader = Callable[[IO[bytes], str, Records], Iterator[Piece]]

# What an ending says of a file's content; other endings are plain text.
RECORD_READERS: dict[str, Reader] = {
    ".jsonl": read_json_lines,
    ".ndjson": read_json_lines,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": read_tsv,
}
PARQUET = ".parquet"

# Endings of files that hold something else, though some would decode.
NOT_READ = {
    "records in another format": (".arrow", ".feather", ".orc", ".avro"),
    "an archive or compressed data": (".bz2", ".xz", ".lz4", ".zip", ".tar", ".tgz", ".7z", ".rar"),
    "a formatted document": (".pdf", ".doc", ".docx", ".odt", ".epub", ".rtf", ".xlsx", ".pptx"),
    "an image": (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ico"),
    "sound or film": (".mp3", ".wav", ".ogg", ".flac", ".mp4", ".mkv", ".mov", ".avi"),
    "binary data": (
        *(".bin", ".npy", ".npz", ".pt", ".pth", ".ckpt", ".safetensors", ".sqlite", ".db"),
        *(".pyc", ".so", ".o", ".a", ".exe", ".dll", ".class", ".whl", ".woff", ".woff2", ".ttf"),
    ),
}
PLAIN_TEXT = (".txt", ".text", ".md")


def ending_of(path: Path) -> str:
    """The ending that says what a file holds, without that of its packing."""
    inner = path.with_suffix("") if packing_of(path) else path
    return inner.suffix.lower()
