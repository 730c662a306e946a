"""Settings of the data: which text is read, how it becomes tokens, how tokens become batches."""

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
    """What to read: python-reference, tinyshakespeare, a file, a folder, a glob, - for standard
    input, an hf:// dataset, or a list of these. Files are text, or records in .jsonl, .json, .csv,
    .tsv or .parquet, each also .gz or .zst."""
    text_field: str | None = None
    """Field or column that holds a record's text; null means text."""
    encoding: str | None = None
    """Encoding of text, JSON and tables; null means UTF-8, strictly."""
    delimiter: str | None = None
    """What divides a table's fields; null finds it in the header."""
    quoting: Quoting = "auto"
    """Whether quotation marks hold a table's field together (csv) or are text (none); auto means
    none between tabs, csv between others."""
    normalize_newlines: bool = False
    """Whether CR LF and CR become LF."""
    on_bad_record: OnBadRecord = "stop"
    """Whether a record without a text stops the run, or is left out and counted (skip)."""
    separator: str | None = None
    """Text that is put behind every document that does not end in it, such as a newline; \\n, \\r,
    \\t and \\\\ are escapes; null means none. It is for tokenizers without a token that ends a
    document, such as char."""

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
    """Whether a special token's spelling in the corpus, such as <|endoftext|>, is text like any
    other, or that token (parse)."""
    val_fraction: float | None = None
    """Part of the text, at its end, that is held out for validation, whole documents where there
    are documents; null means 0.1, or none with val_corpus."""
    val_corpus: str | list[str] | None = None
    """What to validate on, in place of a part of corpus; named as corpus is."""
    tokenizer: str = "char"
    """char (an id per character), bpe (byte-level, trained on the training part), or the path of a
    tokenizer.json, or of a folder that has one or GPT-2's vocab.json and merges.txt; huggingface,
    llama2c and ids come with an imported model."""
    vocab_size: int | None = None
    """Size of the bpe vocabulary; null means 1024. Refused for char."""
    begin_of_text: BeginOfText = "auto"
    """Whether the tokenizer's begin-of-text token stands in front of every document and of every
    window that is scored; auto follows the tokenizer's own template."""
    cache_dir: str = "data/cache"
    """Folder of the token stores."""


@dataclass(frozen=True, kw_only=True)
class DataConfig(TextConfig):
    """Settings of the data module."""

    context_length: int | None = None
    """Tokens per sequence; null means model.decoder.context_length."""
    document_mask: bool = False
    """Whether attention and positions stay inside a document; needs a corpus of documents."""
    batch_size: int = 32
    """Sequences per optimiser step, over all devices and accumulation."""
    num_workers: int | None = None
    """Null holds a small corpus on the device; a number reads the mapped store with that many
    loader processes."""

    def __post_init__(self) -> None:
        lowest = {"batch_size": 1, "num_workers": 0, "context_length": 1}
        for name, least in lowest.items():
            value = getattr(self, name)
            if value is not None and value < least:
                null = "" if name == "batch_size" else ", or null"
                raise UserError(f"--data.{name} {value}: must be {least} or more{null}")
