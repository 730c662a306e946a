"""The longest passage that a sample shares word for word with the training text."""

from __future__ import annotations

from llama_lab.data.corpus.readers.records import SourceRequest
from llama_lab.data.corpus.sources import Reading


class NamedByShare(SourceRequest):
    """A corpus that ``--share_with`` names."""

    def flag(self, name: str) -> str:
        return "--share_with" if name == "corpus" else super().flag(name)


def longest_shared(sample: str, text: str) -> str:
    """The longest passage of ``sample`` that stands in ``text``; the first of several."""
    longest = ""
    for start in range(len(sample)):
        # Only a longer one matters, so each search either lengthens it or moves on.
        while start + len(longest) < len(sample):
            candidate = sample[start : start + len(longest) + 1]
            if candidate not in text:
                break
            longest = candidate
    return longest


class SharedPassages:
    """Longest passages that samples share with a corpus; false where there is no corpus.

    Args:
        corpus: Named as ``data.corpus`` is.

    Raises:
        UserError: It cannot be read.
    """

    def __init__(self, corpus: str | None) -> None:
        self.corpus = corpus
        self.texts: list[str] = []
        if corpus is None:
            return
        request = NamedByShare(corpus=corpus)
        whole: list[str] = []
        for piece in Reading(request):
            whole.append(piece.text)
            if piece.ends_document:
                self.texts.append("".join(whole))
                whole = []
        self.texts.append("".join(whole))

    def __bool__(self) -> bool:
        return self.corpus is not None

    def longest(self, sample: str) -> str:
        """The longest passage of ``sample`` that one document of the corpus has."""
        return max((longest_shared(sample, text) for text in self.texts), key=len, default="")
