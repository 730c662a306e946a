"""The bytes of vocabulary entries, decoded from the names that files give them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from llama_lab.errors import UserError


class Speller:
    """The bytes that a piece's name stands for, by the steps of a ``tokenizer.json``'s decoder.

    Args:
        decoder: The file's value of ``decoder``.

    Attributes:
        leads_with_space: Whether the decoder takes away one blank in front.

    Raises:
        UserError: A step cannot be taken piece by piece.
    """

    def __init__(self, decoder: Mapping[str, Any] | None) -> None:
        self.steps = list(steps(decoder))
        self.kinds = {step["type"] for step in self.steps}
        self.leads_with_space = any(map(self._leads, self.steps))
        for step in self.steps:
            self._require_known(step)
        if not self.steps:
            raise UserError("its decoder is null, which puts a blank between any two pieces")

    @staticmethod
    def _leads(step: Mapping[str, Any]) -> bool:
        if step["type"] == "Metaspace":
            scheme = step.get("prepend_scheme") or (
                "always" if step.get("add_prefix_space") else ""
            )
            return scheme in ("always", "first")
        return step["type"] == "Strip"

    @staticmethod
    def _require_known(step: Mapping[str, Any]) -> None:
        kind = step["type"]
        known = kind in ("ByteLevel", "Metaspace", "ByteFallback", "Fuse")
        if kind == "Strip":
            known = (step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0)
        if kind == "Replace":
            known = isinstance(step.get("pattern", {}).get("String"), str)
        if not known:
            raise UserError(
                f"its decoder has the step {kind} {json.dumps(dict(step))}, which this version "
                "does not take piece by piece; it reads byte-level and SentencePiece-like ones"
            )

    def spell(self, name: str) -> bytes:
        """The UTF-8 bytes, maybe a part of a character, that the piece ``name`` adds to a text."""
        if "ByteLevel" in self.kinds:
            # The library takes a name with other characters in it as it stands; so added tokens.
            codes = [BYTE_OF_PRINTABLE.get(character) for character in name]
            return (
                name.encode()
                if None in codes
                else bytes(code for code in codes if code is not None)
            )
        for step in self.steps:
            if step["type"] == "Metaspace":
                name = name.replace(step["replacement"], " ")
            elif step["type"] == "Replace":
                name = name.replace(step["pattern"]["String"], step["content"])
        if "ByteFallback" in self.kinds and (byte := byte_of(name)) is not None:
            return bytes([byte])
        return name.encode()


def steps(part: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    """The single steps of a normalizer or decoder."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for step in part.get("decoders") or part.get("normalizers") or ():
            yield from steps(step)
    else:
        yield part


def byte_of(name: str) -> int | None:
    """The byte that SentencePiece's ``<0x41>`` stands for, or ``None`` for any other name."""
    if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
        try:
            return int(name[3:5], 16)
        except ValueError:
            return None
    return None


def byte_of_printable() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 as itself, the rest as U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + number): byte for number, byte in enumerate(others)
    }


BYTE_OF_PRINTABLE = byte_of_printable()
