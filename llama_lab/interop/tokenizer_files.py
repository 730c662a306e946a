"""``tokenizer.json`` and ``tokenizer_config.json``, read into a tokenizer and written from any."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tokenizers as hugging_face
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from llama_lab.checkpoints import TOKENIZER_CONFIG_FILE
from llama_lab.data.tokenizers.base import Tokenizer
from llama_lab.data.tokenizers.imported import (
    HuggingFaceTokenizer,
    IdsTokenizer,
    Llama2cTokenizer,
    library_tokenizer,
)
from llama_lab.data.tokenizers.kinds import BpeTokenizer, CharTokenizer
from llama_lab.data.tokenizers.paths import TOKENIZER_FILE, VOCABULARY_FILE
from llama_lab.errors import UserError
from llama_lab.interop.companions import Companions, ends_of_text, write_companions
from llama_lab.interop.folders import write_json
from llama_lab.interop.values import Values, read_text
from llama_lab.interop.vocabularies import vocabulary_text


def read_tokenizer(folder: Path, config: Values, vocab_size: int, found: Companions) -> Tokenizer:
    """The folder's tokenizer; where it has no vocabulary, one that knows ids alone.

    Args:
        folder: The folder.
        config: Its config.json.
        vocab_size: Ids that the model has.
        found: What is beside the vocabulary.

    Raises:
        UserError: The file is broken, or belongs to a model with another vocabulary.
    """
    path = folder / TOKENIZER_FILE
    text = read_text(path) if os.path.lexists(path) else vocabulary_text(folder, config, found)
    if text is None:
        found.notes.append(
            "no vocabulary is in it: text for this model is ids, with blanks between"
        )
        ends = ends_of_text(found, config, {}, vocab_size)
        return IdsTokenizer(vocab_size, next(iter(ends), None), ends[1:])
    if not path.is_file():
        path = folder / VOCABULARY_FILE
    try:
        names = library_tokenizer(text).get_vocab()
        ends = ends_of_text(found, config, names, vocab_size)
        return HuggingFaceTokenizer(
            text, end_of_text=next(iter(ends), None), also_end=ends[1:], n_ids=vocab_size
        )
    except UserError as error:
        raise UserError(f"{path}: {str(error).removeprefix(f'{path}: ')}") from error


def write_tokenizer(
    folder: Path, tokenizer: Tokenizer, context_length: int, found: Companions | None = None
) -> None:
    """Write what ``AutoTokenizer`` needs to encode as ``tokenizer`` does, and what came with it.

    Args:
        folder: Where to.
        tokenizer: Any.
        context_length: The most ids that the model reads.
        found: What came beside an imported tokenizer, which is written as it came.

    Raises:
        UserError: The tokenizer cannot be said in ``tokenizer.json``.
    """
    write_companions(folder, found or Companions())
    if isinstance(tokenizer, IdsTokenizer):
        return
    backend = backend_of(tokenizer)
    text = tokenizer.json_text if isinstance(tokenizer, HuggingFaceTokenizer) else backend.to_str()
    (folder / TOKENIZER_FILE).write_text(text, encoding="utf-8", newline="\n")
    if (folder / TOKENIZER_CONFIG_FILE).exists():
        return
    special = {"bos_token": tokenizer.start_of_text, "eos_token": tokenizer.end_of_text}
    named: dict[str, Any] = {
        name: backend.id_to_token(number) for name, number in special.items() if number is not None
    }
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "model_max_length": context_length,
        # It would take blanks out of the text.
        "clean_up_tokenization_spaces": False,
    }
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        # Text that spells a special token is text. An imported tokenizer stays as it came: prompts
        # for it are often written with special tokens.
        content["split_special_tokens"] = True
    write_json(folder / TOKENIZER_CONFIG_FILE, content)


def backend_of(tokenizer: Tokenizer) -> hugging_face.Tokenizer:
    """A tokenizer of the `tokenizers` library that encodes as ``tokenizer`` does."""
    if isinstance(tokenizer, HuggingFaceTokenizer | BpeTokenizer):
        return tokenizer.backend
    if isinstance(tokenizer, CharTokenizer):
        return _of_characters(tokenizer.characters)
    if isinstance(tokenizer, Llama2cTokenizer):
        return _of_llama2c(tokenizer)
    raise UserError(f"a tokenizer of kind {tokenizer.kind} has no form in {TOKENIZER_FILE}")


def _of_characters(characters: str) -> hugging_face.Tokenizer:
    """A word a character; an unknown one is an error there as here, for want of an unknown word."""
    ids = {character: number for number, character in enumerate(characters)}
    backend = hugging_face.Tokenizer(models.WordLevel(vocab=ids, unk_token="<unk>"))
    every_character = hugging_face.Regex(r"[\s\S]")
    backend.pre_tokenizer = pre_tokenizers.Split(every_character, behavior="isolated")
    backend.decoder = decoders.Fuse()
    return backend


def _of_llama2c(tokenizer: Llama2cTokenizer) -> hugging_face.Tokenizer:
    """The same pieces as BPE: every pair that spells a piece may merge, the best piece first."""
    special = ["<unk>", "<s>", "</s>"]
    names = [name.replace(" ", "▁") for name in tokenizer.names]
    vocabulary = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *names]
    ids = {name: number for number, name in enumerate(vocabulary)}
    order = sorted(range(len(names)), key=tokenizer.ranks.__getitem__)
    merges = [
        (names[k][:cut], names[k][cut:])
        for k in order
        for cut in range(1, len(names[k]))
        if names[k][:cut] in ids and names[k][cut:] in ids
    ]
    backend = hugging_face.Tokenizer(
        models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.add_special_tokens(special)
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.start_of_text)]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return backend
