"""A request for a token store: the settings of its text, and the tokenizer that it uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from llama_lab.data.config import DEFAULT_VAL_FRACTION, ReadingConfig, TextConfig
from llama_lab.data.corpora import shown
from llama_lab.data.readers.records import SourceRequest
from llama_lab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class StoreRequest(TextConfig):
    """Everything that a token store is made from.

    Attributes:
        data_dir: Where built-in corpora are kept.
        tokenizer_state: The tokenizer to encode with; ``tokenizer`` and ``vocab_size`` are not
            looked at where it is given.
    """

    data_dir: Path = Path("data")
    tokenizer_state: dict[str, Any] | None = None

    @classmethod
    def of(cls, config: TextConfig, tokenizer_state: Mapping[str, Any] | None) -> StoreRequest:
        """The request that a config makes, with the tokenizer of a checkpoint, if any."""
        state = None if tokenizer_state is None else dict(tokenizer_state)
        return cls(**_values(config, TextConfig), tokenizer_state=state)

    def source(self, setting: str = "corpus") -> SourceRequest:
        """What to read for ``corpus`` or ``val_corpus``."""
        values = _values(self, ReadingConfig) | {"corpus": getattr(self, setting)}
        return SourceRequest(**values, data_dir=self.data_dir, setting=setting)

    @property
    def settings(self) -> list[str]:
        """The settings that name a source."""
        return ["corpus"] if self.val_corpus is None else ["corpus", "val_corpus"]

    @property
    def name(self) -> str:
        """The corpus as it was named."""
        return ", ".join(map(shown, self.source().sources))

    @property
    def cache_folder(self) -> Path:
        """Where stores are kept."""
        return Path(self.cache_dir)

    def flag(self, name: str) -> str:
        """A setting as it is typed."""
        return f"--data.{name}"


def _values(config: Any, kind: type) -> dict[str, Any]:
    """The values of the settings that ``kind`` declares."""
    return {each.name: getattr(config, each.name) for each in fields(kind)}


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
