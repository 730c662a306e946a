"""One turn of ``llama-lab generate``: a prompt or a conversation as ids, and the text behind it."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jsonargparse import Namespace
from rich.console import Console
from rich.text import Text

from llama_lab.commands.prompt_files import Prompt
from llama_lab.data.tokenizers.kinds import Tokenizer
from llama_lab.errors import UserError
from llama_lab.generation.completions import (
    Completion,
    CompletionSettings,
    Request,
    complete,
)
from llama_lab.generation.folder_files import render_chat
from llama_lab.generation.loading import LoadedModel
from llama_lab.generation.prompts import parsed_ids, prompt_ids, refuse_idle_parsing


class Asked(NamedTuple):
    """What the model continues.

    Attributes:
        ids: Its ids.
        text: What is written in front of the continuation.
        fields: What else the prompt's JSON line holds.
    """

    ids: list[int]
    text: str
    fields: dict[str, Any]


class Asker:
    """Prompts and conversations as ids, as the command's flags say.

    Args:
        model: Whose tokenizer and chat template are used.
        path: Its checkpoint.
        options: The command's flags.
    """

    def __init__(self, model: LoadedModel, path: Path, options: Namespace) -> None:
        self.model, self.path, self.options = model, path, options

    def ask_all(self, prompts: Iterator[Prompt]) -> Iterator[Asked]:
        """All prompts, read as they are needed; the first one now.

        Raises:
            UserError: See :meth:`ask` and :meth:`ask_in_chat`.
        """
        first = self.ask_once(next(prompts))
        return itertools.chain([first], map(self.ask_once, prompts))

    def ask_once(self, prompt: Prompt) -> Asked:
        """A prompt of its own; with ``--chat true`` a user's only turn."""
        if self.options.chat:
            asked = self.ask_in_chat([{"role": "user", "content": prompt.text or ""}])
        else:
            asked = self.ask(prompt.text, named=prompt.named)
        self.say_if_cut(asked, prompt.named)
        return asked._replace(fields=prompt.fields)

    def ask(self, prompt: str | None, *, named: str) -> Asked:
        """A prompt as it is; no prompt, or an empty one, begins a text.

        Args:
            prompt: The text.
            named: What messages call the prompt.

        Raises:
            UserError: The tokenizer cannot read it.
        """
        tokenizer, special = self.model.tokenizer, self.options.special_tokens
        ids, text = prompt_ids(tokenizer, prompt, special, named=named)
        spelt = [name for name in tokenizer.special_names.values() if name in (prompt or "")]
        if spelt and special == "text":
            say(
                f"the prompt spells {', '.join(spelt)}, taken as text; --special_tokens parse "
                "takes it as the token"
            )
        return Asked(ids, text, {})

    def ask_in_chat(self, messages: list[dict[str, str]]) -> Asked:
        """A conversation, by the chat template that the model came with, up to the model's turn.

        Raises:
            UserError: There is no template, it refuses the messages, or the tokenizer cannot read
                what it makes of them.
        """
        tokenizer = self.model.tokenizer
        text = render_chat(self.model.folder, self.path, messages)
        refuse_idle_parsing(tokenizer, self.options.special_tokens)
        if not text:
            raise UserError(
                f"--chat true: the chat template of {self.path} makes an empty text of a turn"
            )
        try:
            if tokenizer.parses_special:
                return Asked(parsed_ids(tokenizer, text), "", {})
            return Asked([int(i) for i in tokenizer.encode(text)], "", {})
        except UserError as error:
            raise UserError(f"--chat true: {error}") from error

    def say_if_cut(self, asked: Asked, named: str) -> bool:
        """Say that the model sees only the end of what was asked, where that is so."""
        context = self.model.decoder.config.context_length
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
    config: CompletionSettings,
    *,
    seed: int,
    stopped: Callable[[], bool] = lambda: False,
) -> Completion:
    """Write what the model puts behind the prompt while it comes.

    Args:
        model: The model.
        asked: What it continues.
        config: How it is continued.
        seed: Of the draws.
        stopped: Asked between two tokens: whether the text ends here.

    Returns:
        The continuation.
    """
    request = Request(asked.ids, asked.text, seed)
    view = TokenView(model.tokenizer) if config.n_top else None
    if view is None:
        write(asked.text)
    completion = None
    for event in complete(model, [request], config, stopped=stopped):
        if view is None:
            write(event.piece.text)
        elif event.drawn is not None:
            view.show(event.drawn.id, event.drawn.logprob, event.drawn.top)
        completion = event.completion or completion
    assert completion is not None
    if view is None:
        write("\n")
    # A time in a log would make two equal calls differ, so it is for people at a terminal only.
    if sys.stderr.isatty():
        n_drawn, seconds = len(completion.ids), completion.seconds
        say(f"{n_drawn} tokens, {n_drawn / seconds:.0f} tokens/s")
    return completion


def write(text: str) -> None:
    """Write to standard output at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


class TokenView:
    """A line for each token: its probability, and what else the model weighed.

    At a terminal the token is coloured by its probability: green from one half on, yellow from one
    tenth on, else red.

    Args:
        tokenizer: Whose tokens they are.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.names, self.pieces = tokenizer.special_names, tokenizer.pieces
        self.console = Console(file=sys.stdout, highlight=False, soft_wrap=True)

    def show(self, id: int, logprob: float | None, top: Iterable[tuple[int, float]]) -> None:
        """Write the line of one token."""
        chance = math.exp(-math.inf if logprob is None else logprob)
        colour = "green" if chance >= 0.5 else "yellow" if chance >= 0.1 else "red"
        line = Text(f"{self._spelt(id):<16} {chance:6.1%}", style=colour)
        for other, likely in top:
            line.append(f"   {self._spelt(other)} {math.exp(likely):.1%}", style="default")
        self.console.print(line)

    def _spelt(self, id: int) -> str:
        name = self.names.get(id)
        return name or repr(self.pieces[id].decode("utf-8", errors="backslashreplace"))


def say(text: str) -> None:
    """Write a line to standard error."""
    print(text, file=sys.stderr, flush=True)
