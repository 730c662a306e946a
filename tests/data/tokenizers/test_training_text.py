"""A vocabulary is learnt from all of a text, or from as much, evenly, as memory has room for."""

from __future__ import annotations

import pytest

from llama_lab.data.tokenizers import training_text
from llama_lab.data.tokenizers.training_text import even_part

NEW = [f"word{number:03d} " * 20 for number in range(40)]  # 7 bytes of distinct words in each
SAME = ["the same words again " * 20] * 40


def part(pieces: list[str]) -> list[str]:
    return list(even_part(lambda: pieces, sum(len(piece.encode()) for piece in pieces)))


def test_a_text_with_few_distinct_words_is_taken_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert part(NEW) == NEW
    monkeypatch.setattr(training_text, "MOST_DISTINCT_BYTES", 100)
    assert part(SAME) == SAME


def test_of_many_distinct_words_an_even_part_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_text, "MOST_DISTINCT_BYTES", 70)
    assert part(NEW) == NEW[::4]  # ten pieces have 70 bytes
    monkeypatch.setattr(training_text, "MOST_DISTINCT_BYTES", 1)
    assert part(NEW) == NEW[:1]


def test_of_many_bytes_an_even_part_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(len(piece) for piece in SAME)
    monkeypatch.setattr(training_text, "MOST_BYTES", size // 2)
    assert part(SAME) == SAME[::2]
