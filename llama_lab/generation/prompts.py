"""Prompts as ids."""

from __future__ import annotations

from collections.abc import Sequence

from llama_lab.data.config import SpecialTokens
from llama_lab.data.tokenizers.base import refuse_surrogates
from llama_lab.data.tokenizers.kinds import Tokenizer
from llama_lab.errors import UserError


def prompt_ids(
    tokenizer: Tokenizer,
    prompt: str | None,
    special: SpecialTokens = "text",
    *,
    named: str = "--prompt",
) -> tuple[list[int], str]:
    """The ids to condition on, and the text to print before the continuation.

    A tokenizer's start of a text comes first and is not printed. With no prompt, or an empty one,
    the text begins after that, else after the end of a text where the tokenizer has such an id,
    else after a line break, else after id 0.

    Args:
        tokenizer: The model's.
        prompt: The text.
        special: What the spelling of a special token is: ``text``, or the token (``parse``).
        named: What messages call the prompt.

    Raises:
        UserError: The prompt has characters that the tokenizer does not know, or the tokenizer no
            special tokens to parse.
    """
    refuse_idle_parsing(tokenizer, special)
    if not prompt:
        return [_start_id(tokenizer)], ""
    start = [] if tokenizer.start_of_text is None else [tokenizer.start_of_text]
    try:
        if special == "parse":
            return [*start, *parsed_ids(tokenizer, prompt)], prompt
        return [*start, *(int(i) for i in tokenizer.encode(prompt))], prompt
    except UserError as error:  # UnknownCharacters, or half of a surrogate pair
        raise UserError(f"{named}: {error}") from error


def refuse_idle_parsing(tokenizer: Tokenizer, special: SpecialTokens) -> None:
    """Refuse to parse special tokens where a text can spell none."""
    if special == "parse" and not tokenizer.parses_special:
        raise UserError(
            f"--special_tokens parse would do nothing: the tokenizer {tokenizer.kind} has no "
            "special tokens that a text can spell; set --special_tokens text"
        )


def parsed_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text in which the spelling of a special token is that token.

    Raises:
        UserError: A character is lost, or a token has no row in the model.
    """
    refuse_surrogates(text)
    (ids,) = tokenizer.encode_batch([text], special="parse")
    lost = [c for c in tokenizer.lost(text, ids) if not c.isspace()]  # tokens may take blanks along
    if lost:
        raise UserError(f"the tokenizer does not keep {lost[0]!r}; leave it out")
    if any(i >= tokenizer.vocab_size for i in ids):
        raise UserError(f"it spells the special token of id {max(ids)}, which the model has not")
    return [int(i) for i in ids]


def _start_id(tokenizer: Tokenizer) -> int:
    for special in (tokenizer.start_of_text, tokenizer.end_of_text):
        if special is not None:
            return special
    return tokenizer.pieces.index(b"\n") if b"\n" in tokenizer.pieces else 0


def token_ids(tokenizer: Tokenizer, tokens: Sequence[int | str], named: str) -> tuple[int, ...]:
    """Ids of tokens that are named by their ids, or by the spelling of a special token.

    Args:
        tokenizer: The model's.
        tokens: The names.
        named: The setting that messages name.

    Raises:
        UserError: There is no such token.
    """
    special = {name: id for id, name in tokenizer.special_names.items()}
    ids = []
    for token in tokens:
        id = special.get(token, -1) if isinstance(token, str) else token
        if not 0 <= id < tokenizer.vocab_size:
            names = ", ".join(special) or "none here"
            raise UserError(
                f"{named} {token}: no such token; give an id below {tokenizer.vocab_size} or a "
                f"special token ({names}), or use --stop for text"
            )
        ids.append(id)
    return tuple(ids)
