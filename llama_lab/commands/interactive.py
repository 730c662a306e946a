"""The loop of ``llama-lab generate --interactive true``: a line in, a text out."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator

from llama_lab.commands.output import one_line
from llama_lab.commands.turns import Asked, Asker, say, write_turn
from llama_lab.commands.written import say_shared
from llama_lab.errors import UserError
from llama_lab.generation.completions import CompletionSettings
from llama_lab.generation.folder_files import refuse_without_template
from llama_lab.generation.passages import SharedPassages
from llama_lab.generation.prompts import refuse_idle_parsing
from llama_lab.names import is_utf8
from llama_lab.signals import interrupt_is_noted

PROMPT, RESET, QUIT = "> ", "/reset", "/quit"


class Loop:
    """Turns until the input ends.

    Without a chat template each line is a prompt of its own. With one the lines are a user's turns
    of one conversation, and the model sees all that was said before.

    Args:
        asker: Makes ids of lines.
        config: How a line is continued.
        shared: What texts are compared with.
    """

    def __init__(self, asker: Asker, config: CompletionSettings, shared: SharedPassages) -> None:
        self.asker, self.config, self.shared = asker, config, shared
        self.model, self.path, self.options = asker.model, asker.path, asker.options
        self.messages: list[dict[str, str]] = []
        self.turns = 0
        self.cut_is_said = False

    def run(self) -> None:
        """Answer every line.

        Raises:
            UserError: No line could be answered: there is no chat template, or no special token.
            RunError: The model's logits are not finite.
        """
        if self.options.chat:
            refuse_without_template(self.model.folder, self.path)
        refuse_idle_parsing(self.model.tokenizer, self.options.special_tokens)
        if sys.stdin.isatty():
            resets = f"{RESET} begins a new conversation; " if self.options.chat else ""
            say(f"{resets}{QUIT}, or the end of the input, ends; Ctrl-C stops a text")
        if self.options.prompt is not None:
            self._answer(self.options.prompt)
        for line in _lines():
            if line == QUIT:
                return
            if line == RESET:
                self._reset()
            else:
                self._answer(line)

    def _reset(self) -> None:
        if not self.options.chat:
            say(f"{RESET} would do nothing: without --chat true every line begins anew")
        self.messages, self.cut_is_said = [], False

    def _answer(self, line: str) -> None:
        """Write a turn. A line that is refused takes no seed and does not join the conversation."""
        if self.options.chat and not line:
            return
        messages = [*self.messages, {"role": "user", "content": line}]
        try:
            asked = self._asked(line, messages)
        except UserError as error:
            say(f"llama-lab: {one_line(error)}")
            return
        seed = (self.options.seed + self.turns) % 2**63
        self.turns += 1
        with interrupt_is_noted() as interrupted:
            written = write_turn(self.model, asked, self.config, seed=seed, stopped=interrupted)
        say_shared(self.shared, written)
        if self.options.chat:
            # Shown or not, special tokens are no part of what was said: the template writes them.
            answer = self.model.tokenizer.decode(written.ids)
            if written.ended == "stop_string":
                answer = written.text
            self.messages = [*messages, {"role": "assistant", "content": answer}]

    def _asked(self, line: str, messages: list[dict[str, str]]) -> Asked:
        if not is_utf8(line):
            raise UserError(f"{line}: not UTF-8 text; this line is left out")
        if not self.options.chat:
            asked = self.asker.ask(line, named="this line")
            self.asker.say_if_cut(asked, "this line")
            return asked
        asked = self.asker.ask_in_chat(messages)
        self.cut_is_said = self.cut_is_said or self.asker.say_if_cut(asked, "the conversation")
        return asked


def _lines() -> Iterator[str]:
    """Lines of standard input without their ends; at a terminal, with editing and history."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    edits = sys.stdin.isatty() and sys.stdout.isatty()
    if edits:
        with contextlib.suppress(ImportError):  # Windows, and builds without it, edit otherwise
            import readline  # noqa: F401 (its import is what gives input() editing and history)
    while True:
        if edits:
            try:
                yield input(PROMPT)
            except EOFError:
                return print()
        else:
            # Into the output of a pipe the mark of a prompt must not go.
            line = sys.stdin.readline()
            if not line:
                return
            yield line.removesuffix("\n").removesuffix("\r")
