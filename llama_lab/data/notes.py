"""What a store's making met that its user should know, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def warnings_of(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and words of what was left out, lost or shared; nothing where nothing was.

    Args:
        report: :attr:`llama_lab.data.store.StoreInfo.report`.
    """
    found = [("left out", line) for line in report["left_out"]]
    found += [("note", line) for line in report.get("noted", [])]  # stores of before have none
    if lost := characters(report["lost"]):
        words = f"the tokenizer does not bring back {lost}; losses are of what it keeps"
        found.append(("LOST", words))
    if report["overlap"]["shared"] or report["overlap"]["documents"]:
        found.append(("overlap", report["overlap"]["words"]))
    return found


def unseen(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The characters that validation has and training lacks, likewise."""
    words = characters(report["unseen_in_training"])
    return [("unseen", f"training lacks {words} of validation")] if words else []


def characters(about: Mapping[str, Any]) -> str:
    """``12 characters of 3 kinds ('é' 7, …)``; nothing where there is none."""
    if not about["characters"]:
        return ""
    examples = ", ".join(
        f"{char if char.isprintable() and not char.isspace() else repr(char)} {count:,}"
        for char, count in about["examples"].items()
    )
    more = ", …" if about["distinct"] > len(about["examples"]) else ""
    return f"{about['characters']:,} characters of {about['distinct']:,} kinds ({examples}{more})"
