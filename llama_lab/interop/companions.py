"""The files of a folder beside config, weights and vocabulary: kept as they came.

They are text that other programs read: names of special tokens, a chat template, defaults of
sampling. A checkpoint holds them with the special ids of ``config.json``, and an export writes
them again, byte for byte unless they would contradict the model or name code that is not there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llama_lab.checkpoints import (
    GENERATION_CONFIG_FILE,
    NAMES_FILE,
    TEMPLATE_FILE,
    TOKENIZER_CONFIG_FILE,
)
from llama_lab.data.tokenizers.base import Tokenizer
from llama_lab.files import json_bytes
from llama_lab.interop.values import LARGEST_CONFIG, LARGEST_INDEX, Values, parsed, read_text
from llama_lab.model.settings import shown

JSON_FILES = (GENERATION_CONFIG_FILE, TOKENIZER_CONFIG_FILE, NAMES_FILE)
OF_TOKENIZER = (TOKENIZER_CONFIG_FILE, NAMES_FILE, TEMPLATE_FILE)
# Read elsewhere, or written anew.
OTHER_FILES = ("config.json", "tokenizer.json", "vocab.json", "merges.txt", "added_tokens.json")
OLD_VOCABULARY = ("tokenizer.model", "vocab.txt")  # beside tokenizer.json, which says the same
IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
RUNS_CODE = "auto_map"  # names Python files of the folder, which are never read here
MOST_NAMED = 8


@dataclass
class Companions:
    """What a folder brings besides its weights and its vocabulary.

    Attributes:
        ids: The special ids that its config.json has, in the form that they have there.
        files: Texts by name.
        notes: One line for each thing that is not kept.
    """

    ids: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"ids": self.ids, "files": self.files}

    @classmethod
    def from_state(cls, state: Mapping[str, Any] | None) -> Companions:
        """The inverse of :meth:`state`; ``None`` is a model that came from no folder."""
        return cls() if state is None else cls(dict(state["ids"]), dict(state["files"]))

    def read(self, name: str) -> Values | None:
        """A JSON file's values, or ``None`` where it is not there."""
        return Values(json.loads(self.files[name]), f"{name}: ") if name in self.files else None


def read_companions(folder: Path, config: Values, vocab_size: int) -> Companions:
    """A folder's companions, each checked to be what its name says.

    Raises:
        UserError: A file is broken, or a special id is no id.
    """
    found = Companions()
    for name in (*JSON_FILES, TEMPLATE_FILE):
        path = folder / name
        if not os.path.lexists(path):
            continue
        # The tokenizer's own config repeats its special tokens, thousands in some.
        most = LARGEST_CONFIG if name == GENERATION_CONFIG_FILE else LARGEST_INDEX
        text = read_text(path, most=most)
        if name in JSON_FILES:
            content = parsed(text, path)
            if content.pop(RUNS_CODE, None) is not None:
                found.notes.append(f"{name}: {RUNS_CODE} names code, which is not kept")
                text = _json(content)
        found.files[name] = text
    found.notes += [
        f"{key} {shown(config.get(key))}: beyond the {vocab_size:,} ids of the model, not kept"
        for key in IDS
        if any(i >= vocab_size for i in ids_in(config, key))
    ]
    found.ids = {k: _within(config, k, vocab_size) for k in IDS if k in config.content}
    others = sorted(_others(folder))
    if others:
        more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
        found.notes.append(f"not kept: {', '.join(others[:MOST_NAMED])}{more}")
    return found


def _others(folder: Path) -> Iterator[str]:
    """Names of what is neither kept nor read."""
    for path in folder.iterdir():
        is_weights = path.name.endswith((".safetensors", ".safetensors.index.json"))
        is_known = path.name in (*JSON_FILES, TEMPLATE_FILE, *OTHER_FILES, *OLD_VOCABULARY)
        if not (is_weights or is_known or path.name.startswith(".")):
            yield shown(path.name)


def ids_in(values: Values, key: str) -> list[int]:
    """The ids under a key: none, one or several.

    Raises:
        UserError: It is anything else.
    """
    value = values.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(i) is not int or i < 0 for i in ids):
        values.refuse(key, "must be ids, whole numbers from 0 on")
    return ids


def _within(values: Values, key: str, vocab_size: int) -> Any:
    """The ids under a key in their own form, without those that the model has not."""
    ids = [i for i in ids_in(values, key) if i < vocab_size]
    if isinstance(values.get(key), list):
        return ids or None
    return ids[0] if ids else None


def ends_of_text(
    found: Companions, config: Values, id_of: Mapping[str, int], vocab_size: int
) -> list[int]:
    """Every id that ends a text: of the generation config, the config, and the tokenizer's name.

    Args:
        found: The folder's companions.
        config: Its config.json.
        id_of: The vocabulary, special tokens included.
        vocab_size: Ids that the model has. A family's usual one in a model with fewer ids is never
            given, and is left out.
    """
    ids: list[int] = []
    for values in (found.read(GENERATION_CONFIG_FILE), config):
        ids += [] if values is None else ids_in(values, "eos_token_id")
    for name in (TOKENIZER_CONFIG_FILE, NAMES_FILE):
        values = found.read(name)
        token = None if values is None else values.get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        ids += [id_of[token]] if isinstance(token, str) and token in id_of else []
    return [i for i in dict.fromkeys(ids) if i < vocab_size]


def special_ids(found: Companions, tokenizer: Tokenizer) -> dict[str, Any]:
    """The special ids of a config. Those that are not there are said not to be: families have
    their own.
    """
    ends, start = tokenizer.ends, tokenizer.start_of_text
    end: Any = None if not ends else ends[0] if len(ends) == 1 else list(ends)
    if not found.ids and start is None:
        start = tokenizer.end_of_text
    ids: dict[str, Any] = {"bos_token_id": start, "eos_token_id": end, "pad_token_id": None}
    return ids | {key: value for key, value in found.ids.items() if value is not None}


def generation_text(found: Companions, tokenizer: Tokenizer, ids: Mapping[str, Any]) -> str:
    """The generation config: the folder's own where it ends texts where the model does."""
    values = found.read(GENERATION_CONFIG_FILE)
    if values is None:
        return _json({**ids, "eos_token_id": _form(tokenizer, ids)})
    if set(ids_in(values, "eos_token_id")) == set(tokenizer.ends):
        return found.files[GENERATION_CONFIG_FILE]
    return _json({**values.content, "eos_token_id": _form(tokenizer, ids)})


def _form(tokenizer: Tokenizer, ids: Mapping[str, Any]) -> Any:
    """The ends as the config has them, else all of them."""
    said = ids["eos_token_id"]
    listed = said if isinstance(said, list) else [said]
    return said if set(listed) == set(tokenizer.ends) else list(tokenizer.ends) or None


def write_companions(folder: Path, found: Companions) -> None:
    """Write the files that belong to the tokenizer, as they came."""
    for name in OF_TOKENIZER:
        if name in found.files:
            (folder / name).write_bytes(found.files[name].encode("utf-8"))


def _json(content: Mapping[str, Any]) -> str:
    return json_bytes(content).decode("utf-8")
