"""What a token store is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from llama_lab.data.corpora import shown
from llama_lab.data.sources import OnBadRecord, Quoting, SourceRequest
from llama_lab.data.tokenizer import SpecialTokens
from llama_lab.errors import UserError

DEFAULT_VAL_FRACTION = 0.1


@dataclass(frozen=True, kw_only=True)
class StoreRequest:
    """What a token store is made from."""

    corpus: str | Sequence[str]
    """Files, folders, globs, ``-``, ``hf://`` datasets and built-ins."""
    tokenizer: str
    """Kind of tokenizer to train, or the path of one; not looked at where ``tokenizer_state`` is
    given."""
    vocab_size: int | None
    """Ids to train for; not looked at where ``tokenizer_state`` is given."""
    val_fraction: float | None
    """Share of the characters, from the end, that are the validation part: 0 < f <= 1; ``None``
    means 0.1, or none with ``val_corpus``."""
    encoding: str | None
    """Encoding of text, JSON and tables; ``None`` means UTF-8."""
    cache_dir: Path
    """Where stores are kept."""
    data_dir: Path
    """Where built-in corpora are kept."""
    tokenizer_state: dict[str, Any] | None = None
    """Encode with this tokenizer instead of training one."""
    val_corpus: str | Sequence[str] | None = None
    """What the validation part is, in place of a share of ``corpus``."""
    text_field: str | None = None
    delimiter: str | None = None
    quoting: Quoting = "auto"
    normalize_newlines: bool = False
    on_bad_record: OnBadRecord = "stop"
    """These five as in :class:`SourceRequest`."""
    special_tokens: SpecialTokens = "text"
    """What the spelling of a special token is in the corpus: text, or the token (``parse``)."""

    def source(self, setting: str = "corpus") -> SourceRequest:
        """What to read for ``corpus`` or ``val_corpus``."""
        value = getattr(self, setting)
        return SourceRequest(
            corpus=(value,) if isinstance(value, str) else tuple(value),
            text_field=self.text_field,
            encoding=self.encoding,
            delimiter=self.delimiter,
            quoting=self.quoting,
            normalize_newlines=self.normalize_newlines,
            on_bad_record=self.on_bad_record,
            data_dir=self.data_dir,
            setting=setting,
        )

    @property
    def name(self) -> str:
        """The corpus as it was named."""
        return ", ".join(map(shown, self.source().corpus))

    def flag(self, name: str) -> str:
        """A setting as it is typed."""
        return f"--data.{name}"


def settled_fraction(request: StoreRequest) -> Fraction | None:
    """The share that is validated; ``None`` where the validation part is a corpus of its own."""
    if request.val_corpus is None:
        share = DEFAULT_VAL_FRACTION if request.val_fraction is None else request.val_fraction
        return exact_fraction(share, request.flag("val_fraction"))
    if request.val_fraction is not None:
        raise UserError(
            f"{request.flag('val_fraction')} {request.val_fraction} would do nothing: "
            f"{request.flag('val_corpus')} is the validation part; set one of them to null"
        )
    return None


def exact_fraction(val_fraction: float, flag: str = "--data.val_fraction") -> Fraction:
    """The decimal that was written, exactly: 0.1 is 1/10 and not the double next to it.

    Raises:
        UserError: It is not in (0, 1].
    """
    if not 0 < val_fraction <= 1:
        raise UserError(
            f"{flag} {val_fraction} is not above 0 and at most 1; "
            "set it to the validation part's share of the characters, such as 0.1"
        )
    return Fraction(Decimal(repr(float(val_fraction))))
