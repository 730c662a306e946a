"""What training and validation share, against a count by brute force."""

from __future__ import annotations

import random

import pytest

from llama_lab.data.corpus import overlap as module
from llama_lab.data.corpus.cutting import CutText
from llama_lab.data.corpus.overlap import PASSAGE, Overlap, overlap

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa\n"


def documents(seed: int, n: int) -> list[str]:
    rng = random.Random(seed)
    words = WORDS.split(" ")
    return [" ".join(rng.choices(words, k=rng.randint(1, 60))) for _ in range(n)]


def batched(texts: list[str], size: int) -> list[list[CutText]]:
    """Texts in pieces of 37 characters, ``size`` pieces a batch."""
    pieces = [
        (text[at : at + 37], at == 0, at + 37 >= len(text))
        for text in texts
        for at in range(0, len(text), 37)
    ]
    return [pieces[at : at + size] for at in range(0, len(pieces), size)]


def by_hand(train: list[str], validation: list[str]) -> tuple[int, int, int]:
    held = {t[i : i + PASSAGE] for t in train for i in range(len(t) - PASSAGE + 1)}
    asked = [v[i : i + PASSAGE] for v in validation for i in range(len(v) - PASSAGE + 1)]
    whole = sum(v in set(train) for v in validation)
    return len(asked), sum(passage in held for passage in asked), whole


def counted(train: list[str], validation: list[str], size: int = 5, **more: bool) -> Overlap:
    return overlap(
        batched(train, size),
        batched(validation, size),
        validation_characters=sum(map(len, validation)),
        are_records=more.get("are_records", True),
    )


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_it_counts_what_a_search_finds(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 64)
    monkeypatch.setattr(module, "_KNOWN", {})
    train = documents(0, 60)
    validation = [*documents(1, 20), *train[3:9], train[20][5:200], train[0] + train[1]]
    got = counted(train, validation, size)
    assert (got.passages, got.shared, got.documents) == by_hand(train, validation)
    assert got.shared > 300


def test_parts_that_share_nothing_are_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    got = counted(["a" * 80], ["b" * 80, "short"], are_records=False)
    assert (got.passages, got.shared, got.documents) == (31, 0, None)
    assert got.words.startswith("0.00% of the validation part's passages of 50 characters")


def test_of_a_long_part_a_sample_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PASSAGES", 2000)
    train = documents(0, 60)
    validation = [*train, *documents(1, 60)]
    got = counted(train, validation)
    asked, shared, _ = by_hand(train, validation)
    assert got.one_in > 3
    assert got.passages == pytest.approx(asked / got.one_in, rel=0.2)
    assert got.share == pytest.approx(shared / asked, abs=0.05)
    assert f"one in {got.one_in}" in got.words
