"""What a sample shares with the training text."""

from __future__ import annotations

import random

from llama_lab.generation.passages import longest_shared


def brute_force(sample: str, text: str) -> int:
    runs = (sample[i:j] for i in range(len(sample)) for j in range(i, len(sample) + 1))
    return max(len(run) for run in runs if run in text)


def test_the_longest_passage_is_found_wherever_it_stands() -> None:
    text = "to be or not to be, that is the question"
    assert longest_shared("whether that is th' answer", text) == " that is th"
    assert longest_shared("to be", text) == "to be"
    assert longest_shared("xyz", "abc") == ""
    assert longest_shared("", text) == ""


def test_it_is_as_long_as_the_longest_of_all_runs() -> None:
    draw = random.Random(0)
    for _ in range(200):
        sample = "".join(draw.choices("ab\n", k=12))
        text = "".join(draw.choices("ab\n", k=40))
        found = longest_shared(sample, text)
        assert found in sample
        assert found in text
        assert len(found) == brute_force(sample, text)
