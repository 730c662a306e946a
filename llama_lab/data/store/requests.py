"""A request for a token store: the settings of its text, and the tokenizer that it uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from llama_lab.data.config import DEFAULT_VAL_FRACTION, ReadingConfig, TextConfig
from llama_lab.data.corpus.built_in import shown
from llama_lab.data.corpus.readers.records import SourceRequest
from llama_lab.data.tokenizers.base import Tokenizer
from llama_lab.data.tokenizers.kinds import (
    TOKENIZERS,
    CharTokenizer,
    resolved_vocab_size,
    tokenizer_class,
    tokenizer_from_state,
)
from llama_lab.data.tokenizers.paths import load_tokenizer
from llama_lab.errors import UserError


@dataclass(frozen=True, kw_only=True)
class StoreRequest(TextConfig):
    """Everything that a token store is made from.

    Attributes:
        data_dir: Where built-in corpora are kept.
        tokenizer_state: The tokenizer to encode with; ``tokenizer`` and ``vocab_size`` are not
            looked at where it is given.
        start_of_text: Id that stands in front of every document and of every window that is
            scored; ``None`` for none.
    """

    data_dir: Path = Path("data")
    tokenizer_state: dict[str, Any] | None = None
    start_of_text: int | None = None

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


def _values(config: Any, kind: type) -> dict[str, Any]:
    """The values of the settings that ``kind`` declares."""
    return {each.name: getattr(config, each.name) for each in fields(kind)}


def resolved_fraction(request: StoreRequest) -> Fraction | None:
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


def with_tokenizer(request: StoreRequest) -> StoreRequest:
    """``request``, with the tokenizer that it names by a path, and with the id of its beginnings.

    Raises:
        UserError: There is no such tokenizer, or a setting of it is impossible or would do nothing.
    """
    tokenizer: Tokenizer | type[Tokenizer]
    if request.tokenizer_state is not None:
        tokenizer = tokenizer_from_state(request.tokenizer_state)
    elif request.tokenizer in TOKENIZERS:
        resolved_vocab_size(request.tokenizer, request.vocab_size)
        tokenizer = tokenizer_class(request.tokenizer)
    else:
        tokenizer = load_tokenizer(request.tokenizer, request.flag("tokenizer"))
        if request.vocab_size is not None:
            raise UserError(
                f"{request.flag('vocab_size')} {request.vocab_size} would do nothing: "
                f"{request.flag('tokenizer')} {shown(request.tokenizer)} has its own vocabulary of "
                f"{tokenizer.vocab_size:,}; set {request.flag('vocab_size')} null"
            )
        request = replace(request, tokenizer_state=tokenizer.state())
    if request.special_tokens == "parse" and not tokenizer.parses_special:
        raise UserError(
            f"{request.flag('special_tokens')} parse would do nothing: the tokenizer "
            f"{tokenizer.kind} has no special tokens that a text can spell; "
            f"set {request.flag('special_tokens')} text"
        )
    if tokenizer.end_of_text is not None:
        because = f"the tokenizer {tokenizer.kind} has a token that ends every document"
        refuse_separator(request, because)
    separator = request.separating_text
    if separator == "":
        refuse_separator(request, "it is empty")
    if isinstance(tokenizer, CharTokenizer) and not set(separator or "") <= set(
        tokenizer.characters
    ):
        refuse_separator(request, "the model's vocabulary of characters lacks a character of it")
    return replace(request, start_of_text=_start_of_text(request, tokenizer))


def refuse_separator(request: StoreRequest, because: str) -> None:
    """Refuse a separator, if there is one."""
    if request.separator is not None:
        flag = request.flag("separator")
        raise UserError(
            f"{flag} {shown(request.separator)} cannot be used: {because}; set {flag} null"
        )


def _start_of_text(request: StoreRequest, tokenizer: Tokenizer | type[Tokenizer]) -> int | None:
    if request.begin_of_text is False:
        return None
    if request.begin_of_text is True and tokenizer.start_of_text is None:
        flag = request.flag("begin_of_text")
        raise UserError(
            f"{flag} true cannot be met: the tokenizer {tokenizer.kind} puts no token in front of "
            f"a text; set {flag} auto"
        )
    return tokenizer.start_of_text
