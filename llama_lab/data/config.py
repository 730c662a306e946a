"""Settings of the data: the text that is read, its tokenizer, and the batches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from llama_lab.errors import UserError

OnBadRecord = Literal["stop", "skip"]
Quoting = Literal["auto", "none", "csv"]
SpecialTokens = Literal["text", "parse"]
BeginOfText = Literal["auto"] | bool

DEFAULT_VAL_FRACTION = 0.1
ESCAPES = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\\\": "\\"}
ESCAPE = re.compile(r"\\[nrt\\]")


def unescaped(text: str) -> str:
    """A setting's text with its escapes resolved: line feed, carriage return, tab, backslash."""
    return ESCAPE.sub(lambda found: ESCAPES[found[0]], text)


@dataclass(frozen=True, kw_only=True)
class ReadingConfig:
    """Settings that decide what is read from a source."""

    corpus: str | list[str] = "python-reference"
    """The text to read: python-reference, tinyshakespeare, a file, a folder, a glob, - for standard
    input, an hf:// dataset, or a list of these. A file holds plain text, or records in .jsonl,
    .json, .csv, .tsv or .parquet; each may also be compressed (.gz or .zst)."""
    text_field: str | None = None
    """Name of the field or column that holds a record's text; null means "text"."""
    encoding: str | None = None
    """Encoding of text files, JSON and tables; null means UTF-8, and a file that is not UTF-8 is
    refused."""
    delimiter: str | None = None
    """Character between the fields of a table; null finds it in the header."""
    quoting: Quoting = "auto"
    """How quotation marks in a table are read: csv (they enclose a field), none (they are part of
    the text) or auto, which means none for tables with tabs and csv for others."""
    normalize_newlines: bool = False
    """Change every CR LF and CR to LF."""
    on_bad_record: OnBadRecord = "stop"
    """What to do with a record that has no text: stop the run, or skip the record and count it."""
    separator: str | None = None
    """Text that is added after every document that does not end in it, such as a newline; \\n, \\r,
    \\t and \\\\ are escapes; null adds nothing. It is for tokenizers that have no token for the end
    of a document, such as char."""

    def flag(self, name: str) -> str:
        """A setting as it is typed."""
        return f"--data.{name}"

    @property
    def separating_text(self) -> str | None:
        """``separator`` with its escapes resolved."""
        if self.separator is None:
            return None
        return unescaped(self.separator)


@dataclass(frozen=True, kw_only=True)
class TextConfig(ReadingConfig):
    """Settings that decide which tokens a corpus becomes."""

    special_tokens: SpecialTokens = "text"
    """How to read a special token that is spelt out in the corpus, such as <|endoftext|>: text
    (like any other text) or parse (as that token)."""
    val_fraction: float | None = None
    """Fraction of the text, at its end, that is held out for validation; a corpus of documents is
    divided between documents. Null means 0.1, or no part of corpus if val_corpus is set."""
    val_corpus: str | list[str] | None = None
    """Text to validate on, instead of a part of corpus; it takes the same values as corpus."""
    tokenizer: str = "char"
    """char (one id per character), bpe (byte-level, trained on the training part), the path of a
    tokenizer.json, or the path of a folder that holds one, or GPT-2's vocab.json and merges.txt. An
    imported model brings its own: huggingface, llama2c or ids."""
    vocab_size: int | None = None
    """Size of the bpe vocabulary; null means 1024. Refused for char."""
    begin_of_text: BeginOfText = "auto"
    """Put the tokenizer's begin-of-text token before every document and every window that is
    scored; auto follows the tokenizer's own template."""
    cache_dir: str = "data/cache"
    """Folder that holds the token stores."""


@dataclass(frozen=True, kw_only=True)
class DataConfig(TextConfig):
    """The text, its tokenizer and the batches."""

    context_length: int | None = None
    """Number of tokens per sequence; null means model.decoder.context_length."""
    document_mask: bool = False
    """Keep attention and positions inside each document; this needs a corpus of documents."""
    batch_size: int = 32
    """Number of sequences per optimiser step, over all devices and accumulation."""
    num_workers: int | None = None
    """Number of loader processes, which read the store from disk. Null chooses: a small corpus is
    kept on the device instead."""

    def __post_init__(self) -> None:
        lowest = {"batch_size": 1, "num_workers": 0, "context_length": 1}
        for name, least in lowest.items():
            value = getattr(self, name)
            if value is not None and value < least:
                null = "" if name == "batch_size" else ", or null"
                raise UserError(f"--data.{name} {value}: must be {least} or more{null}")
