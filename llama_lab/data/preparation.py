"""From a source to a token store: read once, split, encode, publish.

The text is split before it is encoded: a running text at floor((1 - val_fraction) · characters),
documents at the first whose first character stands there or later. A char vocabulary is that of the
whole corpus; bpe is trained on the training part. In BPE mode every document is followed by one
end-of-text token; a char vocabulary has none, so that documents follow one another with nothing
between them. The store keeps where each begins.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama_lab.data.corpora import one_line, shown
from llama_lab.data.progress import ByteProgress
from llama_lab.data.shards import SHARD_TOKENS, PartWriter
from llama_lab.data.sources import OnBadRecord, Piece, Reading, SourceRequest
from llama_lab.data.spool import Spool
from llama_lab.data.store import (
    FORMAT,
    PARTS,
    TOKENIZER_FILE,
    PartInfo,
    StoreInfo,
    canonical,
    defect,
    file_digest,
    publish,
    sha256,
)
from llama_lab.data.tokenizers import (
    CODE_POINTS,
    CharTokenizer,
    Tokenizer,
    UnknownCharacters,
    code_points,
    settled_vocab_size,
    tokenizer_class,
    tokenizer_from_state,
)
from llama_lab.errors import RunError, UserError
from llama_lab.files import replace_synced

DEFAULT_VAL_FRACTION = 0.1
LARGEST_UINT16_VOCAB = 65536
BATCH_CHARACTERS, BATCH_DOCUMENTS = 1 << 22, 1 << 14
# Words that a BPE trainer counts grow with its text; from here on it gets an even part of it.
BPE_TRAINING_BYTES = 1 << 28
LONGEST_NAMED, UNSEEN_NAMED = 3, 12
MEMO_FOLDER = "sources"


@dataclass(frozen=True, kw_only=True)
class StoreRequest:
    """What a token store is made from."""

    corpus: str | Sequence[str]
    """Files, folders, globs, ``-``, ``hf://`` datasets and built-ins."""
    tokenizer: str
    """Kind of tokenizer to train; not looked at where ``tokenizer_state`` is given."""
    vocab_size: int | None
    """Ids to train for; not looked at where ``tokenizer_state`` is given."""
    val_fraction: float | None
    """Share of the characters, from the end, that are the validation part: 0 < f <= 1; ``None``
    means 0.1, or none with ``val_corpus``."""
    encoding: str | None
    """Encoding of text, JSON and tables; ``None`` means UTF-8."""
    cache_dir: Path
    """Where stores are kept."""
    data_dir: Path
    """Where built-in corpora are kept."""
    tokenizer_state: dict[str, Any] | None = None
    """Encode with this tokenizer instead of training one."""
    val_corpus: str | Sequence[str] | None = None
    """What the validation part is, in place of a share of ``corpus``."""
    text_field: str | None = None
    delimiter: str | None = None
    normalize_newlines: bool = False
    on_bad_record: OnBadRecord = "stop"
    """These four as in :class:`SourceRequest`."""
    prefix: str = "--data."
    """Of the settings in errors."""

    def source(self, setting: str = "corpus") -> SourceRequest:
        """What to read for ``corpus`` or ``val_corpus``."""
        value = getattr(self, setting)
        return SourceRequest(
            corpus=(value,) if isinstance(value, str) else tuple(value),
            text_field=self.text_field,
            encoding=self.encoding,
            delimiter=self.delimiter,
            normalize_newlines=self.normalize_newlines,
            on_bad_record=self.on_bad_record,
            data_dir=self.data_dir,
            prefix=self.prefix,
            setting=setting,
        )

    @property
    def name(self) -> str:
        """The corpus as it was named."""
        return ", ".join(map(shown, self.source().corpus))

    def flag(self, name: str) -> str:
        """A setting as it is typed."""
        return f"{self.prefix}{name}"


@dataclass(frozen=True)
class PartPlan:
    """One part: which documents of which spool, and which bytes."""

    spool: Spool
    documents: range
    span: range

    def pieces(self) -> Iterator[Piece]:
        """Its text."""
        return self.spool.part(self.documents, self.span)

    @property
    def are_records(self) -> bool:
        """Whether it is made of documents."""
        return self.spool.are_records


def prepare_store(request: StoreRequest) -> Path:
    """The folder of the store for ``request``, written if it is not there or not whole.

    A source that was read before under the same names, sizes and times is not read again.
    Processes may do this at once: the first to finish wins and the others take its folder.

    Raises:
        UserError: A setting, the corpus or the cache folder cannot be used.
    """
    fraction = settled_fraction(request)
    if request.tokenizer_state is None:
        settled_vocab_size(request.tokenizer, request.vocab_size)
    settings = ["corpus"] if request.val_corpus is None else ["corpus", "val_corpus"]
    readings = {setting: Reading(request.source(setting)) for setting in settings}
    identity = _identity(readings.values())
    if identity is not None and (known := _recall(request, identity)) is not None:
        folder = _found(request, fraction, known)
        if folder is not None:
            return folder
    spools = {setting: read_source(request, reading) for setting, reading in readings.items()}
    content = [spool.sha256 for spool in spools.values()]
    folder = _found(request, fraction, content) or _written(
        request, fraction, spools, content, readings
    )
    if identity is not None:
        _remember(request, identity, content)
    return folder


def read_source(request: StoreRequest, reading: Reading) -> Spool:
    """All text of a source, read once."""
    spool = Spool(request.cache_dir, are_records=reading.documents_are_records)
    with ByteProgress("reading", reading.total_bytes, sys.stderr) as progress:
        spool.fill(reading, lambda: progress(reading.bytes_read))
    spool.are_records = spool.are_records and spool.documents > 0
    return spool


def settled_fraction(request: StoreRequest) -> Fraction | None:
    """The share that is validated; ``None`` where the validation part is a corpus of its own."""
    if request.val_corpus is None:
        share = DEFAULT_VAL_FRACTION if request.val_fraction is None else request.val_fraction
        return exact_fraction(share, request.flag("val_fraction"))
    if request.val_fraction is not None:
        raise UserError(
            f"{request.flag('val_fraction')} {request.val_fraction} would do nothing: "
            f"{request.flag('val_corpus')} is the validation part; set one of them to null"
        )
    return None


def exact_fraction(val_fraction: float, flag: str = "--data.val_fraction") -> Fraction:
    """The decimal that was written, exactly: 0.1 is 1/10 and not the double next to it.

    Raises:
        UserError: It is not in (0, 1].
    """
    if not 0 < val_fraction <= 1:
        raise UserError(
            f"{flag} {val_fraction} is not above 0 and at most 1; "
            "set it to the validation part's share of the characters, such as 0.1"
        )
    return Fraction(Decimal(repr(float(val_fraction))))


# ---- the split -----------------------------------------------------------------------------------


def split(spools: dict[str, Spool], fraction: Fraction | None) -> tuple[list[PartPlan], str]:
    """The training and the validation part, and how they were told apart, in words."""
    corpus = spools["corpus"]
    if fraction is None:
        plans = [PartPlan(s, range(s.documents), range(s.bytes)) for s in spools.values()]
        return plans, "a corpus of its own for validation"
    cut = math.floor((1 - fraction) * corpus.characters)
    if not corpus.are_records or (corpus.documents == 1 and fraction < 1):
        byte = corpus.byte_of_character(cut)
        whole = range(corpus.documents)
        plans = [PartPlan(corpus, whole, span) for span in (range(byte), range(byte, corpus.bytes))]
        left = corpus.characters - cut
        return plans, f"the last {left:,} of {corpus.characters:,} characters for validation"
    first, byte = _document_at(corpus, cut)
    if fraction < 1 and (first == 0 or first >= corpus.documents):
        first = min(max(first, 1), corpus.documents - 1)
        byte = _first_byte(corpus, first)
    n = corpus.documents
    plans = [
        PartPlan(corpus, range(first), range(byte)),
        PartPlan(corpus, range(first, n), range(byte, corpus.bytes)),
    ]
    return plans, f"the last {n - first:,} of {n:,} documents for validation"


def _document_at(spool: Spool, character: int) -> tuple[int, int]:
    """The first document that begins at ``character`` or later, and its first byte."""
    number = n_bytes = n_characters = 0
    for sizes in spool.sizes_of_documents():
        begins = n_characters + np.concatenate(([0], np.cumsum(sizes[:, 1])[:-1])).astype(np.int64)
        later = np.flatnonzero(begins >= character)
        if later.size:
            k = int(later[0])
            return number + k, n_bytes + int(sizes[:k, 0].sum())
        number += len(sizes)
        n_bytes += int(sizes[:, 0].sum())
        n_characters += int(sizes[:, 1].sum())
    return number, n_bytes


def _first_byte(spool: Spool, document: int) -> int:
    number = n_bytes = 0
    for sizes in spool.sizes_of_documents():
        here = sizes[: max(0, document - number), 0]
        n_bytes += int(here.sum())
        number += len(sizes)
    return n_bytes


# ---- writing -------------------------------------------------------------------------------------


def _written(
    request: StoreRequest,
    fraction: Fraction | None,
    spools: dict[str, Spool],
    content: list[str],
    readings: dict[str, Reading],
) -> Path:
    plans, words = split(spools, fraction)
    seen = np.logical_or.reduce([spool.seen for spool in spools.values()])
    tokenizer = _tokenizer_for(request, plans[0], seen)
    for part, plan in zip(PARTS, plans, strict=True):
        if isinstance(tokenizer, CharTokenizer) and not tokenizer.knows(plan.spool.seen):
            with _named(request, part):
                tokenizer.refuse_unknown(piece.text for piece in plan.pieces())
    folder = request.cache_dir / _key(request, fraction, content)
    total = sum(len(plan.span) for plan in plans)

    def write(temporary: Path) -> StoreInfo:
        parts = []
        with ByteProgress("encoding", total, sys.stderr) as progress:
            for part, plan in zip(PARTS, plans, strict=True):
                with _named(request, part):
                    parts.append(_write_part(temporary, part, plan, tokenizer, progress.add))
        return _describe(request, content, words, parts, tokenizer, temporary, readings)

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
        source = ", ".join(map(shown, request.source(setting).corpus))
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
    stride = max(1, -(-len(plan.span) // BPE_TRAINING_BYTES))
    return kind.train(
        texts=(text for k, text in enumerate(_whole(plan.pieces(), kind)) if k % stride == 0),
        n_bytes=len(plan.span),
        characters="".join(map(chr, np.flatnonzero(seen).tolist())),
        vocab_size=settled_vocab_size(request.tokenizer, request.vocab_size),
    )


def _whole(pieces: Iterable[Piece], tokenizer: Any) -> Iterator[str]:
    for text, _, _ in cut_safely(pieces, tokenizer):
        yield text


def cut_safely(pieces: Iterable[Piece], tokenizer: Any) -> Iterator[tuple[str, bool, bool]]:
    """Texts whose ids are those of the whole in a row, and whether each begins and ends a document.

    A tokenizer that names no place to cut gets each document whole.
    """
    waiting: list[str] = []
    begins = True
    for piece in pieces:
        cut = len(piece.text) if piece.ends_document else tokenizer.cut(piece.text)
        waiting.append(piece.text[:cut])
        if cut or piece.ends_document:
            yield "".join(waiting), begins, piece.ends_document
            waiting, begins = [], piece.ends_document
        waiting.append(piece.text[cut:])


@dataclass
class _Written:
    """One part, written."""

    writer: PartWriter
    info: PartInfo
    seen: NDArray[np.int64]
    """How often each code point occurs ``[0x110000]``."""
    longest: list[tuple[int, int]]
    """Characters and number of the longest documents."""


def _write_part(
    folder: Path, part: str, plan: PartPlan, tokenizer: Tokenizer, tell: Callable[[int], None]
) -> _Written:
    dtype = np.dtype("<u2" if tokenizer.vocab_size <= LARGEST_UINT16_VOCAB else "<u4")
    writer = PartWriter(
        folder, part, dtype, with_documents=plan.are_records, shard_tokens=SHARD_TOKENS
    )
    seen = np.zeros(CODE_POINTS, dtype=np.int64)
    end = tokenizer.end_of_text if plan.are_records else None
    longest: list[tuple[int, int]] = []
    characters = n_bytes = length = 0
    for batch in _batches(cut_safely(plan.pieces(), tokenizer)):
        texts = [text for text, _, _ in batch]
        whole = "".join(texts)
        points = code_points(whole)
        seen[: int(points.max(initial=0)) + 1] += np.bincount(points)
        here = len(whole.encode("utf-8"))
        characters, n_bytes = characters + len(whole), n_bytes + here
        for ids, (text, begins, ends) in zip(tokenizer.encode_batch(texts), batch, strict=True):
            if begins:
                writer.begin_document()
                length = 0
            length += len(text)
            writer.append(ids)
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
    return _Written(writer, info, seen, [(n, -k) for n, k in longest])


def _batches(
    texts: Iterable[tuple[str, bool, bool]],
) -> Iterator[list[tuple[str, bool, bool]]]:
    batch: list[tuple[str, bool, bool]] = []
    characters = 0
    for item in texts:
        batch.append(item)
        characters += len(item[0])
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _describe(
    request: StoreRequest,
    content: list[str],
    words: str,
    parts: list[_Written],
    tokenizer: Tokenizer,
    folder: Path,
    readings: dict[str, Reading],
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
    unseen = np.flatnonzero((validation.seen > 0) & (train.seen == 0))
    examples = {chr(point): int(validation.seen[point]) for point in unseen[:UNSEEN_NAMED].tolist()}
    return StoreInfo(
        corpus=request.name,
        corpus_sha256=content[0],
        train=train.info,
        validation=validation.info,
        dtype=dtype,
        digest=digest.hexdigest(),
        shard_tokens=SHARD_TOKENS,
        sizes={name: size for part in parts for name, size in part.writer.sizes.items()},
        sha256={name: value for part in parts for name, value in part.writer.hashes.items()},
        report={
            "split": words,
            "sources": {setting: reading.tally.as_dict() for setting, reading in readings.items()},
            "left_out": [line for r in readings.values() for line in r.tally.lines()],
            "longest_documents": [
                {"part": name, "document": number, "characters": length}
                for name, part in zip(PARTS, parts, strict=True)
                if part.info.documents is not None
                for length, number in part.longest
            ],
            "unseen_in_training": {
                "distinct": len(unseen),
                "characters": int(validation.seen[unseen].sum()),
                "examples": examples,
            },
        },
    )


# ---- found again ---------------------------------------------------------------------------------


def _found(request: StoreRequest, fraction: Fraction | None, content: list[str]) -> Path | None:
    """The folder of a whole store of this content, if there is one.

    Where a tokenizer is given, also that of the run that trained it: it was written under the
    settings that the tokenizer was trained with, and holds the same ids.
    """
    candidates = [request]
    if request.tokenizer_state is not None:
        candidates.insert(0, dataclasses.replace(request, tokenizer_state=None))
    for candidate in candidates:
        try:
            folder = request.cache_dir / _key(candidate, fraction, content)
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


def _key(request: StoreRequest, fraction: Fraction | None, content: list[str]) -> str:
    if request.tokenizer_state is None:
        wanted = settled_vocab_size(request.tokenizer, request.vocab_size)
        tokenizer: dict[str, Any] = {"kind": request.tokenizer, "vocab_size": wanted}
    else:
        tokenizer = {"state_sha256": sha256(canonical(request.tokenizer_state))}
    inputs = {
        "format": FORMAT,
        "corpus_sha256": content,
        "tokenizer": tokenizer,
        "val_fraction": None if fraction is None else str(fraction),
    }
    return sha256(canonical(inputs))[:32]


def _identity(readings: Iterable[Reading]) -> str | None:
    """What tells all the sources from others without reading them; ``None`` where nothing does."""
    identities = [reading.identity for reading in readings]
    if any(identity is None for identity in identities):
        return None
    return sha256(canonical([FORMAT, identities]))[:32]


def _memo(request: StoreRequest, identity: str) -> Path:
    return request.cache_dir / MEMO_FOLDER / f"{identity}.json"


def _recall(request: StoreRequest, identity: str) -> list[str] | None:
    """The content that these sources had when they were read last."""
    try:
        content = json.loads(_memo(request, identity).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    if isinstance(content, list) and all(isinstance(value, str) for value in content):
        return content
    return None


def _remember(request: StoreRequest, identity: str, content: list[str]) -> None:
    memo = _memo(request, identity)
    try:
        memo.parent.mkdir(parents=True, exist_ok=True)
        replace_synced(memo, canonical(content))
    except OSError:
        return  # a cache that cannot be written: the text is read again next time
