"""Messages about a token store: what was left out, lost or shared, and what divides documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_lab.data.config import TextConfig
from llama_lab.data.store.token_store import TokenStore


def warnings_of(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and words of what was left out, lost or shared; nothing where nothing was.

    Args:
        report: :attr:`llama_lab.data.store.token_store.StoreInfo.report`.
    """
    found = [("left out", line) for line in report["left_out"]]
    if begun := report.get("begin_of_text"):  # stores of before have none
        name = f"{begun['name']} (id {begun['id']})" if begun["name"] else f"id {begun['id']}"
        count = begun["documents"]
        texts = f"{count:,} text{'s' * (count != 1)}"
        words = f"{name} stands in front of {texts} and of every scored window"
        found.append(("begin", words))
    found += [("note", line) for line in report.get("noted", [])]  # stores of before have none
    if lost := characters(report["lost"]):
        words = f"the tokenizer does not bring back {lost}; losses are of what it keeps"
        found.append(("LOST", words))
    if report["overlap"]["shared"] or report["overlap"]["documents"]:
        found.append(("overlap", report["overlap"]["words"]))
    return found


def between_documents(config: TextConfig, store: TokenStore) -> list[tuple[str, str]]:
    """What divides the documents of a vocabulary that has no token for the end of a text."""
    if store.train_documents is None or store.tokenizer.end_of_text is not None:
        return []
    separator = config.separating_text
    if separator is None:
        words = (
            "nothing stands between two documents; a line break would with --data.separator '\\n'"
        )
    else:
        words = f"{separator!r} follows every document that does not end in it"
    return [("between", words)]


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
