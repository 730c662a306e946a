"""Tokenizers that are named by a path: a ``tokenizer.json``, or GPT-2's two files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import tokenizers as hugging_face
from tokenizers import decoders, models, pre_tokenizers

from llama_lab.data.corpus.built_in import one_line, shown
from llama_lab.data.tokenizers.base import TokenizerKind
from llama_lab.data.tokenizers.imported import HuggingFaceTokenizer
from llama_lab.errors import UserError

TOKENIZER_FILE, CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"
VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
ENDS_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")
"""What families call the token that ends a text, where no ``tokenizer_config.json`` says it."""


def load_tokenizer(named: str, flag: str) -> HuggingFaceTokenizer:
    """The tokenizer of a file or a folder.

    Args:
        named: A ``tokenizer.json``, or a folder that has one or GPT-2's ``vocab.json`` and
            ``merges.txt``.
        flag: The setting that named it.

    Raises:
        UserError: There is no such thing, or it cannot be read.
    """
    path = Path(named)
    folder = path if path.is_dir() else path.parent
    try:
        if path.is_file():
            text = path.read_text(encoding="utf-8")
        elif (path / TOKENIZER_FILE).is_file():
            text = (path / TOKENIZER_FILE).read_text(encoding="utf-8")
        elif (path / VOCABULARY_FILE).is_file() and (path / MERGES_FILE).is_file():
            text = of_gpt2(path)
        else:
            raise UserError(
                f"{flag} {shown(named)} is neither {' nor '.join(get_args(TokenizerKind)[:2])}, "
                f"nor a {TOKENIZER_FILE}, nor a folder that has one or {VOCABULARY_FILE} and "
                f"{MERGES_FILE}; name one of these"
            )
        return HuggingFaceTokenizer(text, end_of_text=_end_of_text(folder, text))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{flag} {shown(named)}: cannot be read ({one_line(error)}); name a whole file"
        ) from error
    except UserError as error:
        message = str(error)
        raise (
            error if message.startswith(flag) else UserError(f"{flag} {shown(named)}: {message}")
        ) from error


def of_gpt2(folder: Path, added: Mapping[int, hugging_face.AddedToken] | None = None) -> str:
    """Byte-level BPE as GPT-2 splits it, written as a ``tokenizer.json``.

    Args:
        folder: Where the two files are.
        added: Tokens beside the vocabulary, or special ones in it, by their ids.

    Raises:
        UserError: The files do not fit, or an added token cannot have its id.
    """
    try:
        vocabulary = str(folder / VOCABULARY_FILE)
        model = models.BPE.from_file(vocabulary, str(folder / MERGES_FILE))
    except Exception as error:  # the library raises nothing narrower
        raise UserError(f"is no vocabulary with its merges ({one_line(error)})") from error
    backend = hugging_face.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    special = [name for name in ENDS_OF_TEXT if backend.token_to_id(name) is not None]
    backend.add_special_tokens(special)
    for number, token in sorted((added or {}).items()):
        backend.add_tokens([token])
        found = backend.token_to_id(token.content)
        if found != number:
            raise UserError(f"gives the added token {token.content} the id {found}, not {number}")
    return backend.to_str()


def _end_of_text(folder: Path, text: str) -> int | None:
    """The id of the token that ends a text, as the file beside says or by its usual name."""
    ids = ids_by_name(text)
    config = folder / CONFIG_FILE
    if config.is_file():
        named = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
        name = named.get("content") if isinstance(named, dict) else named
        if name in ids:
            return ids[name]
    return next((ids[name] for name in ENDS_OF_TEXT if name in ids), None)


def ids_by_name(text: str) -> dict[str, int]:
    """The ids of a ``tokenizer.json`` by their names, those of special tokens too."""
    content = json.loads(text)
    ids: dict[str, int] = dict(_vocabulary(content))
    ids.update({token["content"]: token["id"] for token in content.get("added_tokens") or []})
    return ids


def _vocabulary(content: Any) -> Any:
    vocabulary = (content.get("model") or {}).get("vocab") or {}
    if isinstance(vocabulary, dict):
        return vocabulary
    return {piece: number for number, (piece, *_) in enumerate(vocabulary)}
