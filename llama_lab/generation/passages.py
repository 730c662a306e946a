"""The longest passage that a sample shares word for word with the training text."""

from __future__ import annotations


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
