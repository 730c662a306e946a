"""``llama-lab tokenize``: prepare a corpus ahead of ``fit``, and say what is in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Literal

from llama_lab.commands.output import print_json
from llama_lab.data.config import TextConfig
from llama_lab.data.reading_progress import in_bytes
from llama_lab.data.store.notes import between_documents, unseen, warnings_of
from llama_lab.data.store.preparation import prepare_store
from llama_lab.data.store.requests import StoreRequest
from llama_lab.data.store.token_store import PARTS, TokenStore, open_store
from llama_lab.errors import UserError
from llama_lab.parsing import Parser

DESCRIPTION = (
    "Reads a corpus, splits it, trains or loads the tokenizer, and writes the token store. `fit` "
    "finds this store if it has the same settings (--data.corpus for --corpus here, and so on)."
)
JSON_NAMES = (
    "JSON output: corpus, store (its folder), tokenizer (kind, vocab_size), split, documents (null "
    "for one running text), characters, bytes, tokens, bytes_per_token, parts (train and "
    "validation, each with the same five), unseen_in_training and lost (characters, distinct, "
    "examples), longest_documents, overlap, sources (files, documents, empty_documents, "
    "skipped_files, bad_records of each), left_out, noted, begin_of_text (id, name, documents; "
    "only if documents begin with such a token), digest."
)

Notes = list[tuple[str, str]]

# As `fit` spells what are flags of this command's own.
OF_FIT = re.compile(r"(?<!\S)(?:--)?data\.([a-z_]+)(?=[ :;,)]|$)")


def main(argv: list[str], prog: str) -> int:
    """Run the command; 0 where it succeeds.

    Raises:
        UserError: A flag, a source or a record is refused.
    """
    options = build_parser(prog).parse_args(argv)
    settings = {each.name: options[each.name] for each in fields(TextConfig)}
    request = StoreRequest.of(TextConfig(**settings), tokenizer_state=None)
    try:
        store = open_store(prepare_store(request), request.name)
    except UserError as error:  # it speaks of the flags of `fit`
        raise UserError(OF_FIT.sub(r"--\1", str(error))) from error
    about = summary(store)
    if options.format == "json":
        print_json(about)
    else:
        for name, words in rows(about, between_documents(request, store)):
            print(f"{name:<12}{words}".rstrip())
    return 0


def build_parser(prog: str) -> Parser:
    """The command's flags."""
    parser = Parser(prog=prog, description=f"{DESCRIPTION} {JSON_NAMES}")
    add = parser.add_argument
    add("--corpus", type=str | list[str], required=True, help="The text to read, as in `fit`.")
    parser.add_class_arguments(TextConfig, skip={"corpus"})
    add(
        "--format",
        type=Literal["table", "json"],
        default="table",
        help="A table to read, or JSON for programs.",
    )
    return parser


def summary(store: TokenStore) -> dict[str, Any]:
    """What the command prints, by the names of its JSON."""
    info = store.info
    parts = {part: _sizes([getattr(info, part)]) for part in PARTS}
    return {
        "corpus": info.corpus,
        "store": str(store.folder),
        "tokenizer": {"kind": store.tokenizer.kind, "vocab_size": store.tokenizer.vocab_size},
        "split": info.report["split"],
        **_sizes([info.train, info.validation]),
        "parts": parts,
        **{key: value for key, value in info.report.items() if key not in ("split", "left_out")},
        "left_out": info.report["left_out"],
        "digest": info.digest,
    }


def _sizes(parts: list[Any]) -> dict[str, Any]:
    sums = {
        name: sum(getattr(part, name) for part in parts)
        for name in ("characters", "bytes", "tokens")
    }
    counts = [asdict(part)["documents"] for part in parts]
    documents = None if None in counts else sum(counts)
    ratio = sums["bytes"] / sums["tokens"] if sums["tokens"] else None
    return {"documents": documents, **sums, "bytes_per_token": ratio}


def rows(about: Mapping[str, Any], between: Notes) -> Notes:
    """The same for people."""
    tokenizer = about["tokenizer"]
    found = [
        ("corpus", about["corpus"]),
        ("tokenizer", f"{tokenizer['kind']}, {tokenizer['vocab_size']:,} ids"),
        ("whole", _size_words(about)),
        *((part, _size_words(about["parts"][part])) for part in PARTS),
        ("split", about["split"]),
    ]
    found += [
        (
            "longest",
            f"{each['characters']:,} characters: document {each['document']:,} of the "
            f"{each['part']} part",
        )
        for each in about["longest_documents"]
    ]
    found += unseen(about)
    notes = [*between, *warnings_of(about)]
    found += [(name, OF_FIT.sub(r"--\1", words)) for name, words in notes]
    return [*found, ("store", about["store"])]


def _size_words(sizes: Mapping[str, Any]) -> str:
    count = sizes["documents"]
    documents = "" if count is None else f"{count:,} document{'s' * (count != 1)}, "
    ratio = sizes["bytes_per_token"]
    per_token = "" if ratio is None else f", {ratio:.3f} bytes a token"
    return (
        f"{documents}{sizes['bytes']:,} bytes ({in_bytes(sizes['bytes'])}), "
        f"{sizes['characters']:,} characters, {sizes['tokens']:,} tokens{per_token}"
    )
