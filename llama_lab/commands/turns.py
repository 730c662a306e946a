"""One turn of ``llama-lab generate``: a prompt or a conversation as ids, and the text behind it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from jsonargparse import Namespace

from llama_lab.errors import UserError
from llama_lab.generation.folder_files import render_chat
from llama_lab.generation.generate import (
    LoadedModel,
    parsed_ids,
    prompt_ids,
    refuse_idle_parsing,
    stream_ids,
)
from llama_lab.generation.sampling import SamplingConfig


class Asked(NamedTuple):
    """What the model continues.

    Attributes:
        ids: Its ids.
        text: What is written in front of the continuation.
    """

    ids: list[int]
    text: str


def ask_plainly(
    model: LoadedModel, prompt: str | None, options: Namespace, *, named: str = "--prompt"
) -> Asked:
    """A prompt as it is; no prompt, or an empty one, begins a text.

    Args:
        model: Whose tokenizer is used.
        prompt: The text.
        options: The command's flags.
        named: What messages call the prompt.

    Raises:
        UserError: The tokenizer cannot read it.
    """
    asked = Asked(*prompt_ids(model.tokenizer, prompt, options.special_tokens, named=named))
    spelt = [name for name in model.tokenizer.special_names.values() if name in (prompt or "")]
    if spelt and options.special_tokens == "text":
        say(
            f"the prompt spells {', '.join(spelt)}, taken as text; --special_tokens parse "
            "takes it as the token"
        )
    return asked


def ask_in_chat(
    model: LoadedModel, path: Path, messages: list[dict[str, str]], options: Namespace
) -> Asked:
    """A conversation, by the chat template that the model came with, up to the model's turn.

    Raises:
        UserError: There is no template, it refuses the messages, or the tokenizer cannot read what
            it makes of them.
    """
    text = render_chat(model.folder, path, messages)
    refuse_idle_parsing(model.tokenizer, options.special_tokens)
    if not text:
        raise UserError(f"--chat true: the chat template of {path} makes an empty text of a turn")
    try:
        if model.tokenizer.parses_special:
            return Asked(parsed_ids(model.tokenizer, text), "")
        return Asked([int(i) for i in model.tokenizer.encode(text)], "")
    except UserError as error:
        raise UserError(f"--chat true: {error}") from error


def say_if_cut(model: LoadedModel, asked: Asked, named: str) -> bool:
    """Say that the model sees only the end of what was asked, where that is so."""
    context = model.decoder.config.context_length
    if len(asked.ids) <= context:
        return False
    say(
        f"{named} has {len(asked.ids):,} tokens and the model's context {context:,}: it sees "
        f"the last {context:,} only"
    )
    return True


def write_turn(
    model: LoadedModel,
    asked: Asked,
    sampling: SamplingConfig,
    options: Namespace,
    *,
    seed: int,
    stopped: Callable[[], bool] = lambda: False,
) -> list[int]:
    """Write what the model puts behind the prompt while it comes.

    Args:
        model: The model.
        asked: What it continues.
        sampling: How an id is chosen.
        options: The command's flags.
        seed: Of the draws.
        stopped: Asked between two tokens: whether the text ends here.

    Returns:
        The ids that were drawn.
    """
    started, drawn = time.perf_counter(), []
    sys.stdout.write(asked.text)
    sys.stdout.flush()
    for piece in stream_ids(
        model.decoder,
        model.tokenizer,
        asked.ids,
        at_start=not asked.text,
        max_new_tokens=options.max_new_tokens,
        sampling=sampling,
        seed=seed,
        shows_special=options.show_special_tokens,
        stopped=stopped,
    ):
        sys.stdout.write(piece.text)
        sys.stdout.flush()
        if piece.id is not None:
            drawn.append(piece.id)
    sys.stdout.write("\n")
    sys.stdout.flush()
    # A time in a log would make two equal calls differ, so it is for people at a terminal only.
    if sys.stderr.isatty():
        seconds = time.perf_counter() - started
        say(f"{len(drawn)} tokens, {len(drawn) / seconds:.0f} tokens/s")
    return drawn


def say(text: str) -> None:
    """Write a line to standard error."""
    print(text, file=sys.stderr, flush=True)
