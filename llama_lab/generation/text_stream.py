"""Text that appears while its ids come: whole characters, up to a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple

from llama_lab.data.tokenizers.kinds import Tokenizer


class TextStream:
    """Ids to text while they come: a character split over ids appears once it is complete.

    From the start of a text, the pushed and the finishing texts together equal
    ``tokenizer.decode`` of all ids.

    Args:
        tokenizer: Whose ids come.
        at_start: Whether they begin a text: behind a prompt, a blank in front is a blank.
        shows_special: Whether a special id appears as its name, else as nothing.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, at_start: bool = True, shows_special: bool = False
    ) -> None:
        self._pieces = tokenizer.pieces
        self._names = tokenizer.special_names if shows_special else {}
        self._drop_space = at_start and tokenizer.leads_with_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, id: int) -> str:
        """The characters that ``id`` completes, maybe none."""
        if id in self._names:
            return self.finish() + self._names[id]
        piece = self._pieces[id]
        if self._drop_space and piece:
            piece, self._drop_space = piece.removeprefix(b" "), False
        return self._utf8.decode(piece)

    def finish(self) -> str:
        """U+FFFD for the bytes of a character that never became whole, else nothing.

        :class:`~llama_lab.generation.completions.Continuation` does without: where a text ends in
        the middle of a character, that character is left out.
        """
        return self._utf8.decode(b"", final=True)


class StopStrings:
    """Text up to the first of some strings; what may be the beginning of one is held back.

    Args:
        strings: None of them empty.

    Attributes:
        found: Whether one of them came.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = strings
        self.found = False
        self._held = ""

    def push(self, text: str) -> str:
        """The text that belongs to no stop string, whatever follows."""
        text = self._held + text
        ends = [begin for begin in map(text.find, self.strings) if begin >= 0]
        self.found = bool(ends)
        shown = min(ends, default=len(text) - self._n_open(text))
        self._held = "" if self.found else text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return held

    def _n_open(self, text: str) -> int:
        """How many of the last characters may be the beginning of a stop string."""
        longest = max(map(len, self.strings), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(string.startswith(text[-length:]) for string in self.strings):
                return length
        return 0


class Piece(NamedTuple):
    """What one id adds to a text.

    Attributes:
        text: The characters that it completes, maybe none.
        id: The id; None for what is left at the end of the text.
    """

    text: str
    id: int | None
