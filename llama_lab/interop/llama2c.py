"""llama2.c's files: a ``.bin`` of sizes and floats, and a ``tokenizer.bin`` of scored pieces.

Both are little-endian. The model is a LLaMA whose rope turns adjacent pairs, and stays one.
Source: karpathy/llama2.c, ``run.c``.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from llama_lab.data.tokenizers.imported import Llama2cTokenizer
from llama_lab.errors import UserError
from llama_lab.interop.imported import ImportedModel
from llama_lab.interop.layouts import Shape
from llama_lab.interop.values import LARGEST, LARGEST_COUNT
from llama_lab.model.decoder import DecoderConfig
from llama_lab.model.settings import SettingError

HEADER = struct.Struct("<7i")
SIZES = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
MOST = (LARGEST, LARGEST, LARGEST_COUNT, LARGEST_COUNT, LARGEST_COUNT, LARGEST, LARGEST)
VERSIONED = b"24ka"  # the first bytes of the later formats, 0x616b3432
PIECE = struct.Struct("<fi")
LARGEST_TOKENIZER = 1 << 26
ROPE_THETA, NORM_EPS = 10000.0, 1e-5  # run.c has them as constants


def import_file(path: Path, tokenizer_path: Path) -> ImportedModel:
    """The model in a llama2.c file, with its tokenizer.

    Raises:
        UserError: A file is missing, not of this format, or not as long as its sizes say.
    """
    sizes, tied = _read_sizes(path)
    try:
        config = DecoderConfig.from_dict(_decoder(sizes, tied))
    except SettingError as error:
        raise UserError(f"{path}: its sizes {sizes} are refused: {error}") from error
    shapes = _stored(sizes, tied)
    wanted = HEADER.size + 4 * sum(math.prod(shape) for _, shape in shapes)
    found = path.stat().st_size
    if found != wanted:
        raise UserError(f"{path}: holds {found:,} bytes, and its sizes {sizes} ask for {wanted:,}")
    tokenizer = read_tokenizer(tokenizer_path, sizes["vocab_size"])
    weights = _read_weights(path, shapes, sizes["n_layers"])
    _check_rope(path, weights, sizes)
    return ImportedModel(config, weights, tokenizer, "llama2.c")


def _read_sizes(path: Path) -> tuple[dict[str, int], bool]:
    """The header: sizes by name, and whether the head is the embedding."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    with path.open("rb") as file:
        head = file.read(HEADER.size)
    if head[:4] == VERSIONED:
        raise UserError(f"{path}: a later llama2.c format; this version reads version 0, float32")
    if len(head) < HEADER.size:
        raise UserError(f"{path}: {len(head)} bytes are too few for a llama2.c model")
    sizes = dict(zip(SIZES, HEADER.unpack(head), strict=True))
    tied = sizes["vocab_size"] > 0
    sizes["vocab_size"] = abs(sizes["vocab_size"])
    for (name, value), most in zip(sizes.items(), MOST, strict=True):
        if not 1 <= value <= most:
            raise UserError(f"{path}: not a llama2.c model: {name} {value} is not in 1 to {most:,}")
    return sizes, tied


def _decoder(sizes: dict[str, int], tied: bool) -> dict[str, object]:
    return {
        "dim": sizes["dim"],
        "n_layers": sizes["n_layers"],
        "context_length": sizes["seq_len"],
        "vocab_size": sizes["vocab_size"],
        "tie_embeddings": tied,
        "norm": {"kind": "rmsnorm", "placement": "pre", "eps": NORM_EPS},
        "position": {
            "kind": "rope",
            "rope_theta": ROPE_THETA,
            "rope_pairing": "interleaved",
        },
        "attention": {"n_heads": sizes["n_heads"], "n_kv_heads": sizes["n_kv_heads"]},
        "feed_forward": {"kind": "swiglu", "hidden_dim": sizes["hidden_dim"]},
    }


def _stored(sizes: dict[str, int], tied: bool) -> list[tuple[str, Shape]]:
    """Name and shape of what the file holds, in its order; a block's tensor for all layers."""
    dim, hidden, layers = sizes["dim"], sizes["hidden_dim"], sizes["n_layers"]
    width = dim // sizes["n_heads"]
    kv_dim = width * sizes["n_kv_heads"]
    table = (sizes["seq_len"], width // 2)
    stored: list[tuple[str, Shape]] = [
        ("embedding", (sizes["vocab_size"], dim)),
        ("blocks.{i}.attention_norm", (layers, dim)),
        ("blocks.{i}.attention.wq", (layers, dim, dim)),
        ("blocks.{i}.attention.wk", (layers, kv_dim, dim)),
        ("blocks.{i}.attention.wv", (layers, kv_dim, dim)),
        ("blocks.{i}.attention.wo", (layers, dim, dim)),
        ("blocks.{i}.feed_forward_norm", (layers, dim)),
        ("blocks.{i}.feed_forward.gate", (layers, hidden, dim)),
        ("blocks.{i}.feed_forward.down", (layers, dim, hidden)),
        ("blocks.{i}.feed_forward.up", (layers, hidden, dim)),
        ("final_norm", (dim,)),
        ("cos", table),
        ("sin", table),
    ]
    return stored if tied else [*stored, ("head", (sizes["vocab_size"], dim))]


def _read_weights(path: Path, shapes: list[tuple[str, Shape]], n_layers: int) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    with path.open("rb") as file:
        file.seek(HEADER.size)
        for name, shape in shapes:
            floats = np.fromfile(file, dtype="<f4", count=math.prod(shape))
            tensor = torch.from_numpy(floats.astype(np.float32, copy=False)).reshape(shape)
            if "{i}" in name:
                # Each its own storage: a checkpoint would write the whole with every slice.
                each = {f"{name.format(i=i)}.weight": tensor[i].clone() for i in range(n_layers)}
                weights |= each
            else:
                weights[f"{name}.weight"] = tensor
    return weights


def _check_rope(path: Path, weights: dict[str, Tensor], sizes: dict[str, int]) -> None:
    """Take the file's tables out of ``weights``; they must be those of the base that is assumed."""
    cos, sin = weights.pop("cos.weight"), weights.pop("sin.weight")
    half = cos.size(1)
    frequencies = ROPE_THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(sizes["seq_len"], dtype=torch.float64)[:, None] * frequencies
    for table, expected in ((cos, angles.cos()), (sin, angles.sin())):
        if not torch.allclose(table.double(), expected, atol=1e-2):
            raise UserError(
                f"{path}: its rope tables are not those of the base {ROPE_THETA:g}, which llama2.c "
                "models have; this version cannot tell which base they are of"
            )


def read_tokenizer(path: Path, vocab_size: int) -> Llama2cTokenizer:
    """The tokenizer in a llama2.c ``tokenizer.bin``.

    Raises:
        UserError: The file is missing, cut off, or holds another number of pieces.
    """
    if not path.is_file():
        raise UserError(f"--tokenizer {path}: no such file")
    if path.stat().st_size > LARGEST_TOKENIZER:
        raise UserError(f"--tokenizer {path}: {path.stat().st_size:,} bytes are too many")
    pieces = list(_pieces(path.read_bytes(), path))
    if len(pieces) != vocab_size:
        raise UserError(f"--tokenizer {path}: {len(pieces)} pieces, the model has {vocab_size} ids")
    first, last = Llama2cTokenizer.FIRST_BYTE, Llama2cTokenizer.FIRST_PIECE
    if [p for _, p in pieces[first:last]] != [b"<0x%02X>" % b for b in range(256)]:
        raise UserError(f"--tokenizer {path}: ids {first} to {last - 1} are not the bytes")
    try:
        names = [piece.decode("utf-8") for _, piece in pieces[last:]]
    except UnicodeDecodeError as error:
        raise UserError(f"--tokenizer {path}: a piece is not UTF-8 ({error})") from error
    scores = [score for score, _ in pieces[last:]]
    order = {score: rank for rank, score in enumerate(sorted(set(scores), reverse=True))}
    return Llama2cTokenizer(names, [order[score] for score in scores])


def _pieces(content: bytes, path: Path) -> Iterator[tuple[float, bytes]]:
    """Score and bytes of each piece, after the length of the longest."""
    place = 4
    while place < len(content):
        start = place + PIECE.size
        if start > len(content):
            raise UserError(f"--tokenizer {path}: is cut off at byte {place}")
        score, length = PIECE.unpack_from(content, place)
        if not 0 <= length <= len(content) - start or score != score:
            raise UserError(f"--tokenizer {path}: not a llama2.c tokenizer (byte {place})")
        yield score, content[start : start + length]
        place = start + length
