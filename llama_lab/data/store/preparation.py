"""Preparation of a token store: read the source once, split, encode, publish.

The text is split before it is encoded: a running text at floor((1 - val_fraction) · characters),
documents at the first whose first character stands there or later. A char vocabulary is that of the
whole corpus; bpe is trained on the training part. In BPE mode every document is followed by one
end-of-text token; a char vocabulary has none, so that documents follow one another with nothing
between them. The store keeps where each begins.
"""

from __future__ import annotations

import errno
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_lab.data.corpus.built_in import one_line, shown
from llama_lab.data.corpus.code_points import CODE_POINTS, code_points
from llama_lab.data.corpus.cutting import ANYWHERE, characters_of, cut_safely, in_batches
from llama_lab.data.corpus.overlap import Overlap, overlap
from llama_lab.data.corpus.sources import Reading
from llama_lab.data.corpus.splitting import PartPlan, split
from llama_lab.data.corpus.spool import Spool
from llama_lab.data.reading_progress import ByteProgress
from llama_lab.data.store.known_stores import found, identity_of, recall, remember, store_key
from llama_lab.data.store.requests import (
    StoreRequest,
    refuse_separator,
    resolved_fraction,
    with_tokenizer,
)
from llama_lab.data.store.shards import SHARD_TOKENS, PartWriter
from llama_lab.data.store.token_store import (
    PARTS,
    PartInfo,
    StoreInfo,
    canonical,
    file_digest,
    publish,
    sha256,
)
from llama_lab.data.tokenizers.kinds import (
    END_OF_TEXT,
    CharTokenizer,
    Tokenizer,
    UnknownCharacters,
    resolved_vocab_size,
    tokenizer_class,
    tokenizer_from_state,
)
from llama_lab.data.tokenizers.long_words import LONGEST_WORD, last_place_between_words
from llama_lab.data.tokenizers.training_text import even_part
from llama_lab.errors import RunError, UserError

LARGEST_UINT16_VOCAB = 65536
LONGEST_NAMED, CHARACTERS_NAMED = 3, 12


def prepare_store(
    request: StoreRequest, require: Callable[[dict[str, int]], None] = lambda tokens: None
) -> Path:
    """The folder of the store for ``request``, written if it is not there or not whole.

    A source that was read before under the same names, sizes and times is not read again.
    Processes may do this at once: the first to finish wins and the others take its folder.

    Args:
        request: What to read, how to split it and how to encode it.
        require: Given the tokens of each part before a store is published; where it raises, none
            is. It is not asked about a store that is there.

    Raises:
        UserError: A setting, the corpus or the cache folder cannot be used.
    """
    fraction = resolved_fraction(request)
    request = with_tokenizer(request)
    readings = {setting: Reading(request.source(setting)) for setting in request.settings}
    if not any(reading.documents_are_records for reading in readings.values()):
        refuse_separator(request, f"{request.flag('corpus')} {request.name} is one running text")
    identity = identity_of(readings.values())
    if identity is not None and (known := recall(request, identity)) is not None:
        folder = found(request, fraction, known)
        if folder is not None:
            return folder
    spools = {setting: read_source(request, reading) for setting, reading in readings.items()}
    # The same text from other files has its own account of them.
    told = sha256(canonical([reading.tally.as_dict() for reading in readings.values()]))
    content = [*(spool.sha256 for spool in spools.values()), told]
    folder = found(request, fraction, content) or _written(
        request, fraction, spools, content, readings, require
    )
    if identity is not None:
        remember(request, identity, content)
    return folder


def read_source(request: StoreRequest, reading: Reading) -> Spool:
    """All text of a source, read once."""
    spool = Spool(request.cache_folder, are_records=reading.documents_are_records)
    with ByteProgress("reading", reading.total_bytes, sys.stderr) as progress:
        spool.fill(reading, lambda: progress(reading.bytes_read))
    spool.are_records = spool.are_records and spool.documents > 0
    return spool


# ---- writing -------------------------------------------------------------------------------------


def _written(
    request: StoreRequest,
    fraction: Fraction | None,
    spools: dict[str, Spool],
    content: list[str],
    readings: dict[str, Reading],
    require: Callable[[dict[str, int]], None],
) -> Path:
    plans, words = split(spools, fraction)
    seen = np.logical_or.reduce([spool.seen for spool in spools.values()])
    tokenizer = _tokenizer_for(request, plans[0], seen)
    for part, plan in zip(PARTS, plans, strict=True):
        if isinstance(tokenizer, CharTokenizer) and not tokenizer.knows(plan.spool.seen):
            with _named(request, part):
                tokenizer.refuse_unknown(piece.text for piece in plan.pieces())
    folder = request.cache_folder / store_key(request, fraction, content)
    total = sum(len(plan.span) for plan in plans)

    def write(temporary: Path) -> StoreInfo:
        parts = []
        with ByteProgress("encoding", total, sys.stderr) as progress:
            for part, plan in zip(PARTS, plans, strict=True):
                with _named(request, part):
                    parts.append(
                        _write_part(temporary, part, plan, tokenizer, request, progress.add)
                    )
        require({name: part.info.tokens for name, part in zip(PARTS, parts, strict=True)})
        shared = overlap(
            *(in_batches(cut_safely(plan.pieces(), ANYWHERE), characters_of) for plan in plans),
            validation_characters=parts[1].info.characters,
            are_records=all(plan.are_records for plan in plans),
        )
        return _describe(request, content, words, parts, tokenizer, temporary, readings, shared)

    try:
        publish(folder, tokenizer, write)
    except OSError as error:
        kind = RunError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UserError
        raise kind(
            f"{request.flag('cache_dir')} {shown(request.cache_dir)}: the token store cannot be "
            f"written ({error.strerror or one_line(error)}); make room there or name another folder"
        ) from error
    return folder


class _named:
    """Says which corpus and part hold what the tokenizer does not know."""

    def __init__(self, request: StoreRequest, part: str) -> None:
        setting = "val_corpus" if part == "validation" and request.val_corpus else "corpus"
        source = ", ".join(map(shown, request.source(setting).sources))
        self.place = f"{request.flag(setting)} {source}, {part} part"

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UnknownCharacters):
            raise UnknownCharacters(f"{self.place}: {error}") from error


def _tokenizer_for(request: StoreRequest, plan: PartPlan, seen: NDArray[np.bool_]) -> Tokenizer:
    if request.tokenizer_state is not None:
        return tokenizer_from_state(request.tokenizer_state)
    kind = tokenizer_class(request.tokenizer)
    between = partial(last_place_between_words, longest=LONGEST_WORD)

    def pieces() -> Iterator[str]:
        return (text for text, _, _ in cut_safely(plan.pieces(), kind.safe_cut, between))

    texts = even_part(pieces, len(plan.span))
    if request.special_tokens == "parse":
        texts = (part for text in texts for part in text.split(END_OF_TEXT))
    return kind.train(
        texts=texts,
        n_bytes=len(plan.span),
        characters="".join(map(chr, np.flatnonzero(seen).tolist())),
        vocab_size=resolved_vocab_size(request.tokenizer, request.vocab_size),
    )


@dataclass
class _Written:
    """One part, written."""

    writer: PartWriter
    info: PartInfo
    seen: NDArray[np.int64]
    """How often each code point occurs ``[0x110000]``."""
    longest: list[tuple[int, int]]
    """Characters and number of the longest documents."""
    lost: Counter[str]
    """Characters that the tokenizer does not bring back."""


def _write_part(
    folder: Path,
    part: str,
    plan: PartPlan,
    tokenizer: Tokenizer,
    request: StoreRequest,
    tell: Callable[[int], None],
) -> _Written:
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= LARGEST_UINT16_VOCAB else "<u4")
    writer = PartWriter(
        folder, part, dtype, with_documents=plan.are_records, shard_tokens=SHARD_TOKENS
    )
    seen = np.zeros(CODE_POINTS, dtype=np.int64)
    start, end = request.start_of_text, tokenizer.end_of_text if plan.are_records else None
    longest: list[tuple[int, int]] = []
    lost: Counter[str] = Counter()
    characters = n_bytes = length = 0
    texts_cut = cut_safely(plan.pieces(), tokenizer.safe_cut, tokenizer.last_place)
    for batch in in_batches(texts_cut, characters_of):
        texts = [text for text, _, _ in batch]
        whole = "".join(texts)
        points = code_points(whole)
        seen[: int(points.max(initial=0)) + 1] += np.bincount(points)
        here = len(whole.encode("utf-8"))
        characters, n_bytes = characters + len(whole), n_bytes + here
        encoded = tokenizer.encode_batch(texts, special=request.special_tokens)
        for ids, (text, begins, ends) in zip(encoded, batch, strict=True):
            if begins:
                writer.begin_document()
                length = 0
                if start is not None:
                    writer.append(np.array([start]))
            length += len(text)
            writer.append(ids)
            lost += tokenizer.lost(text, ids)
            if ends:
                longest = sorted([*longest, (length, -writer.documents)], reverse=True)
                longest = longest[:LONGEST_NAMED]
                if end is not None:
                    writer.append(np.array([end]))
        tell(here)
    writer.finish()
    info = PartInfo(
        characters=characters,
        bytes=n_bytes,
        tokens=writer.tokens,
        documents=writer.documents if plan.are_records else None,
    )
    return _Written(writer, info, seen, [(n, -k) for n, k in longest], lost)


def _describe(
    request: StoreRequest,
    content: list[str],
    words: str,
    parts: list[_Written],
    tokenizer: Tokenizer,
    folder: Path,
    readings: dict[str, Reading],
    shared: Overlap,
) -> StoreInfo:
    train, validation = parts
    dtype = train.writer.dtype.name
    tokens = {name: part.writer.tokens for name, part in zip(PARTS, parts, strict=True)}
    header = {"dtype": dtype, "tokens": tokens}
    digest = hashlib.sha256(canonical(header))
    for part in parts:
        for name in part.writer.sizes:
            file_digest(folder / name, digest)
    digest.update(canonical(tokenizer.state()))
    points = np.flatnonzero((validation.seen > 0) & (train.seen == 0)).tolist()
    unseen = Counter({chr(point): int(validation.seen[point]) for point in points})
    begun = _beginnings(request, tokenizer, sum(part.writer.documents for part in parts))
    return StoreInfo(
        corpus=request.name,
        corpus_sha256=content[0],
        train=train.info,
        validation=validation.info,
        dtype=dtype,
        digest=digest.hexdigest(),
        shard_tokens=SHARD_TOKENS,
        files={name: value for part in parts for name, value in part.writer.hashes.items()},
        report={
            "split": words,
            "sources": {setting: reading.tally.as_dict() for setting, reading in readings.items()},
            "left_out": [line for r in readings.values() for line in r.tally.lines()],
            "noted": [line for r in readings.values() for line in r.tally.notes()],
            "longest_documents": [
                {"part": name, "document": number, "characters": length}
                for name, part in zip(PARTS, parts, strict=True)
                if part.info.documents is not None
                for length, number in part.longest
            ],
            "overlap": {**asdict(shared), "share": shared.share, "words": shared.words},
            "lost": _named_characters(sum((part.lost for part in parts), Counter())),
            "unseen_in_training": _named_characters(unseen),
            **begun,
        },
    )


def _beginnings(request: StoreRequest, tokenizer: Tokenizer, documents: int) -> dict[str, Any]:
    """How many documents, or running texts, begin with which token, where they do."""
    start = request.start_of_text
    if start is None:
        return {}
    name = tokenizer.special_names.get(start)
    return {"begin_of_text": {"id": start, "name": name, "documents": documents}}


def _named_characters(counts: Counter[str]) -> dict[str, Any]:
    """How many characters, of how many kinds, and the most frequent of these."""
    return {
        "characters": counts.total(),
        "distinct": len(counts),
        "examples": dict(counts.most_common(CHARACTERS_NAMED)),
    }
