"""Stores that are there already: by what they are made of, and by sources that were read before."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

from llama_lab.data.corpus.sources import Reading
from llama_lab.data.store.requests import StoreRequest
from llama_lab.data.store.token_store import FORMAT, TOKENIZER_FILE, canonical, defect, sha256
from llama_lab.data.tokenizers.kinds import resolved_vocab_size
from llama_lab.errors import UserError
from llama_lab.files import replace_synced

MEMO_FOLDER = "sources"


def found(request: StoreRequest, fraction: Fraction | None, content: list[str]) -> Path | None:
    """The folder of a whole store of this content, if there is one.

    Where a tokenizer is given, also that of the run that trained it: it was written under the
    settings that the tokenizer was trained with, and holds the same ids.
    """
    candidates = [request]
    if request.tokenizer_state is not None:
        candidates.insert(0, dataclasses.replace(request, tokenizer_state=None))
    for candidate in candidates:
        try:
            folder = request.cache_folder / store_key(candidate, fraction, content)
        except UserError:  # settings under which nothing is trained
            continue
        if defect(folder) is not None:
            continue
        if request.tokenizer_state is None:
            return folder
        state = json.loads((folder / TOKENIZER_FILE).read_text(encoding="utf-8"))
        if canonical(state) == canonical(request.tokenizer_state):
            return folder
    return None


def store_key(request: StoreRequest, fraction: Fraction | None, content: list[str]) -> str:
    """The folder's name: a hash of all that the store's ids and its account follow from."""
    if request.tokenizer_state is None:
        wanted = resolved_vocab_size(request.tokenizer, request.vocab_size)
        tokenizer: dict[str, Any] = {"kind": request.tokenizer, "vocab_size": wanted}
    else:
        tokenizer = {"state_sha256": sha256(canonical(request.tokenizer_state))}
    inputs = {
        "format": FORMAT,
        "corpus_sha256": content,
        "tokenizer": tokenizer,
        "val_fraction": None if fraction is None else str(fraction),
    }
    if request.special_tokens == "parse":
        inputs["special_tokens"] = request.special_tokens
    if request.start_of_text is not None:
        inputs["start_of_text"] = request.start_of_text
    return sha256(canonical(inputs))[:32]


def identity_of(readings: Iterable[Reading]) -> str | None:
    """What tells all the sources from others without reading them; ``None`` where nothing does."""
    identities = [reading.identity for reading in readings]
    if any(identity is None for identity in identities):
        return None
    return sha256(canonical([FORMAT, identities]))[:32]


def _memo(request: StoreRequest, identity: str) -> Path:
    return request.cache_folder / MEMO_FOLDER / f"{identity}.json"


def recall(request: StoreRequest, identity: str) -> list[str] | None:
    """The content that these sources had when they were read last."""
    try:
        content = json.loads(_memo(request, identity).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    if isinstance(content, list) and all(isinstance(value, str) for value in content):
        return content
    return None


def remember(request: StoreRequest, identity: str, content: list[str]) -> None:
    """Note what the sources hold, for :func:`recall`."""
    memo = _memo(request, identity)
    try:
        memo.parent.mkdir(parents=True, exist_ok=True)
        replace_synced(memo, canonical(content))
    except OSError:
        return  # a cache that cannot be written: the text is read again next time
