"""Vocabularies of folders that have no ``tokenizer.json``: GPT-2's two files, or refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import AddedToken

from llama_lab.checkpoints import TOKENIZER_CONFIG_FILE
from llama_lab.data.tokenizers.paths import MERGES_FILE, VOCABULARY_FILE, of_gpt2
from llama_lab.errors import UserError
from llama_lab.interop.companions import Companions
from llama_lab.interop.values import LARGEST_TEXT, Values, missing, read_json
from llama_lab.model.settings import shown

ADDED_FILE = "added_tokens.json"
# Files that hold a vocabulary in a form that is not read here: SentencePiece's, WordPiece's, ….
UNREAD = (
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.txt",
    "tekken.json",
)
UNREAD_ENDS = (".tiktoken", ".spm")
# Classes that split words as GPT-2 does; and families whose own class, where none is named, is
# another one with the same two files.
LIKE_GPT2 = ("GPT2Tokenizer", "GPT2TokenizerFast")
OTHER_SPLITS = ("qwen2", "qwen3")


def vocabulary_text(folder: Path, config: Values, found: Companions) -> str | None:
    """The folder's vocabulary as a ``tokenizer.json``; ``None`` where there is none.

    Raises:
        UserError: There is one that cannot be read; the way to make a ``tokenizer.json`` is said.
    """
    paths = folder / VOCABULARY_FILE, folder / MERGES_FILE
    present = [path for path in paths if os.path.lexists(path)]
    if len(present) == 2:
        _require_gpt2(folder, config, found)
        for path in present:
            if not path.is_file():
                raise UserError(f"{path}: {missing(path)}")
            if path.stat().st_size > LARGEST_TEXT:
                raise UserError(f"{path}: {path.stat().st_size:,} bytes are too many")
        try:
            return of_gpt2(folder, _added(folder, found))
        except UserError as error:
            raise UserError(f"{folder / VOCABULARY_FILE}: {error}") from error
    unread = present + sorted(
        path for path in folder.iterdir() if path.name in UNREAD or path.name.endswith(UNREAD_ENDS)
    )
    if unread:
        _refuse(folder, f"{unread[0].name} alone holds the vocabulary, which is not read here")
    return None


def _require_gpt2(folder: Path, config: Values, found: Companions) -> None:
    """Refuse two files that another class than GPT-2's splits words for."""
    values = found.read(TOKENIZER_CONFIG_FILE) or Values({}, "")
    name = values.get("tokenizer_class")
    if name is None and config.get("model_type") in OTHER_SPLITS:
        name = f"the family {config.get('model_type')}"
    if name is not None and name not in LIKE_GPT2:
        _refuse(folder, f"{shown(name)} splits words in another way than GPT-2")
    if values.get("add_prefix_space"):
        _refuse(folder, "add_prefix_space is true, which is not read without it")


def _refuse(folder: Path, reason: str) -> NoReturn:
    raise UserError(
        f"{folder}: holds no tokenizer.json, and {reason}; make one with transformers and "
        "sentencepiece: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    )


def _added(folder: Path, found: Companions) -> dict[int, AddedToken]:
    """Added and special tokens by id, of the tokenizer's config or of a file of their own."""
    values = found.read(TOKENIZER_CONFIG_FILE) or Values({}, "")
    tokens: dict[int, AddedToken] = {}
    path = folder / ADDED_FILE
    if os.path.lexists(path):
        for name, number in read_json(path).items():
            if type(number) is not int or number < 0:
                raise UserError(f"{ADDED_FILE}: {name} {shown(number)}: must be an id")
            tokens[number] = AddedToken(name, special=True, normalized=False)
    listed = values.group("added_tokens_decoder") or Values({}, "")
    for number, token in listed.content.items():
        if not (number.isascii() and number.isdigit() and _is_token(token)):
            listed.refuse(number, "must be an added token by its id")
        switches = ("single_word", "lstrip", "rstrip", "normalized", "special")
        set_here = {key: bool(token[key]) for key in switches if key in token}
        tokens[int(number)] = AddedToken(token["content"], **set_here)
    return tokens


def _is_token(token: Any) -> bool:
    return isinstance(token, dict) and isinstance(token.get("content"), str)
