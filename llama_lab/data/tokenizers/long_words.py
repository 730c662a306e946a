"""Words of GPT-2's pattern that are too long for learning pairs, and where to cut them.

The library's learner takes time with the square of a word's length, and a text without blanks (DNA,
digits, one endless line) is one word. Such a word is cut behind every :data:`LONGEST_WORD`
characters, counted from its own beginning, so that a place depends on the text alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from tokenizers import Regex, pre_tokenizers

LONGEST_WORD = 1024
MAY_BE_LONG = re.compile(rf"\S{{{LONGEST_WORD}}}|\s{{{LONGEST_WORD}}}")

# As the library's ByteLevel splits with `use_regex`. Source: Radford et al., 2019, `encoder.py`.
WORDS_OF_GPT2 = pre_tokenizers.Split(
    Regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"),
    "isolated",
)
LONGEST_SPECIAL = 13  # characters of <|endoftext|>, which no cut may divide


def split_of_words(longest: int | None) -> pre_tokenizers.PreTokenizer:
    """GPT-2's split of a text into words, each of ``longest`` characters at most."""
    if longest is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return pre_tokenizers.Sequence(
        [
            WORDS_OF_GPT2,
            pre_tokenizers.Split(Regex(rf"[\s\S]{{1,{longest}}}"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def words_of(text: str) -> Iterator[range]:
    """Where each word of ``text`` begins and ends."""
    for _, (start, end) in WORDS_OF_GPT2.pre_tokenize_str(text):
        yield range(start, end)


class BoundedWords:
    """Texts whose long words are cut.

    Attributes:
        found_long: Whether a word was cut so far.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = texts
        self.found_long = False

    def __iter__(self) -> Iterator[str]:
        for text in self.texts:
            if MAY_BE_LONG.search(text):
                yield from self._cut(text)
            else:
                yield text

    def _cut(self, text: str) -> Iterator[str]:
        done = 0
        for word in words_of(text):
            if len(word) <= LONGEST_WORD:
                continue
            self.found_long = True
            for place in range(word.start, word.stop, LONGEST_WORD):
                if place > done:
                    yield text[done:place]
                done = place
        yield text[done:]


def last_place_between_words(text: str, longest: int | None) -> int:
    """The last place where a text without blanks may be cut, whatever follows; 0 where none is.

    Args:
        text: From the beginning of a document, or from a place where it was cut.
        longest: Characters of the longest word; ``None`` where words are not cut.
    """
    for word in reversed(list(words_of(text))):
        # Two characters of the word stay behind the place: one alone could be the apostrophe of
        # 's, or the blank of a word that is still to come.
        inside = (len(word) - 2) // longest * longest if longest else 0
        for place in (word.start + max(0, inside), word.start):
            divides_special = "<" in text[max(0, place - LONGEST_SPECIAL) : place]
            after_blank = place == word.start and text[place - 1 : place].isspace()
            if 0 < place < len(text) - 1 and not divides_special and not after_blank:
                return place
    return 0
