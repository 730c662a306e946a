"""Tiny models of both sides, and ways to run them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from llama_lab.checkpoints import own_part
from llama_lab.cli import main
from llama_lab.data.tokenizers.kinds import Tokenizer, train_tokenizer
from llama_lab.generation.generate import generate
from llama_lab.generation.sampling import SamplingConfig
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise

TEXT = "the cat sat on the mat, the café 日本 😀\n\tand  the dog <|endoftext|> </s> ran.\n" * 20


def run(*argv: str | Path) -> None:
    """A command that must succeed."""
    assert main([str(word) for word in argv]) == 0


@torch.no_grad()
def logits_of(decoder: Decoder, tokens: Tensor) -> Tensor:
    return decoder.eval().logits(decoder(tokens))


def greedy(
    decoder: Decoder, prompt: list[int], n_tokens: int, stop: tuple[int, ...] = ()
) -> list[int]:
    """The likeliest continuation."""
    assert decoder.config.vocab_size is not None
    return list(
        generate(
            decoder,
            prompt,
            max_new_tokens=n_tokens,
            sampling=SamplingConfig(temperature=0),
            generator=torch.Generator(),
            n_ids=decoder.config.vocab_size,
            stop=stop,
        )
    )


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder, however many files it has."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def train(decoder: Decoder, n_steps: int = 4) -> None:
    """A few steps, so that no tensor is as it was drawn."""
    assert decoder.config.vocab_size is not None
    decoder.train()
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=0.03)
    draws = torch.Generator().manual_seed(5)
    for _ in range(n_steps):
        shape = (4, decoder.config.context_length)
        tokens = torch.randint(decoder.config.vocab_size, shape, generator=draws)
        logits = decoder.logits(decoder(tokens[:, :-1]))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    return {
        "char": train_tokenizer("char", train_text=TEXT, whole_text=TEXT, vocab_size=None),
        "bpe": train_tokenizer("bpe", train_text=TEXT, whole_text=TEXT, vocab_size=280),
    }


def write_checkpoint(
    path: Path,
    tokenizer: Tokenizer,
    settings: dict[str, Any],
    config: dict[str, Any],
    fault: str | None = None,
) -> Path:
    """A checkpoint as training writes it, of a decoder trained a few steps."""
    sizes = {"dim": 32, "n_layers": 2, "context_length": 48, "vocab_size": tokenizer.vocab_size}
    decoder = Decoder(DecoderConfig.from_dict({**sizes, **settings}))
    initialise(decoder, seed=1)
    train(decoder)
    own = own_part(
        decoder=asdict(decoder.config),
        tokenizer=tokenizer.state(),
        config=config,
        progress={},
        fault=fault,
    )
    state = {f"decoder.{name}": tensor for name, tensor in decoder.state_dict().items()}
    torch.save({"state_dict": state, "global_step": 4, "llama_lab": own}, path)
    return path


@pytest.fixture
def write_trained(tmp_path: Path, tokenizers: dict[str, Tokenizer]) -> Callable[..., Path]:
    """Make ``trained.ckpt``: settings of the decoder, the tokenizer's kind, settings of the run."""

    def write(
        settings: dict[str, Any] | None = None,
        tokenizer: str = "char",
        fault: str | None = None,
        **config: Any,
    ) -> Path:
        path = tmp_path / "trained.ckpt"
        return write_checkpoint(path, tokenizers[tokenizer], settings or {}, config, fault)

    return write


@pytest.fixture(scope="session")
def sound_folder(tmp_path_factory: Any, tokenizers: dict[str, Tokenizer]) -> Path:
    """An exported model that nothing is wrong with."""
    place = tmp_path_factory.mktemp("sound")
    heads = {"attention": {"n_heads": 4, "n_kv_heads": 2}}
    path = write_checkpoint(place / "trained.ckpt", tokenizers["char"], heads, {})
    run("export", path, "--output", place / "out")
    return place / "out"


@pytest.fixture(scope="session")
def transformers() -> Any:
    """Hugging Face's library, silent."""
    library = pytest.importorskip("transformers")
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    return library


def randomised(model: Any) -> Any:
    """Every parameter random, so that a bias or a gain that is not carried over shows."""
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            draws = torch.Generator().manual_seed(i)
            parameter.copy_(torch.randn(parameter.shape, generator=draws) * 0.2)
    return model.eval()


def load_theirs(transformers: Any, folder: Path) -> Any:
    """A folder as transformers loads it; no tensor may be missing, left over or misshapen."""
    model, said = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32
    )
    for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not said[fault], (fault, said[fault])
    return model.eval()


LLAMA2C_PIECES = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % byte for byte in range(256))]
LLAMA2C_PIECES += [b" ", b"a", b"b", b"ab", b" a", b"\n", b"aba", b"ba", b" ab", "é".encode()]


def write_tokenizer_bin(path: Path, pieces: list[bytes] = LLAMA2C_PIECES) -> None:
    """A llama2.c tokenizer; later pieces have lower scores."""
    content = struct.pack("<i", max(map(len, pieces)))
    for number, piece in enumerate(pieces):
        content += struct.pack("<fi", -float(number), len(piece)) + piece
    path.write_bytes(content)


def write_bin(
    folder: Path, *, untied: bool = False, theta: float = 10000.0, **changes: int
) -> tuple[str, str, str, str]:
    """A small llama2.c model whose header may lie, its tokenizer, and the command to import it."""
    sizes = {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2}
    sizes |= {"vocab_size": len(LLAMA2C_PIECES), "seq_len": 32}
    dim, hidden, layers, heads, kv_heads, vocab, length = sizes.values()
    kv_dim, half = dim // heads * kv_heads, dim // heads // 2
    matrices = dim * (2 * dim + 2 * kv_dim + 3 * hidden) + 2 * dim
    n_floats = vocab * dim + layers * matrices + dim
    floats = np.random.default_rng(0).normal(0, 0.2, n_floats).astype("<f4")
    angles = np.arange(length)[:, None] * theta ** (-np.arange(half) / half)
    tables = np.stack((np.cos(angles), np.sin(angles))).astype("<f4")
    head = floats[: vocab * dim][::-1] if untied else floats[:0]
    header = {**sizes, "vocab_size": -vocab if untied else vocab, **changes}
    content = struct.pack("<7i", *header.values())
    path, tokenizer = folder / "model.bin", folder / "tokenizer.bin"
    path.write_bytes(content + floats.tobytes() + tables.tobytes() + head.tobytes())
    write_tokenizer_bin(tokenizer)
    return "import", str(path), "--tokenizer", str(tokenizer)


SPECIAL_NAMES = ["<|im_start|>", "<|im_end|>", "<s>", "<pad>"]


@pytest.fixture(scope="session")
def plain_folder(tmp_path_factory: Any, tokenizers: dict[str, Tokenizer]) -> Path:
    """A model with a tokenizer that has special tokens, from 280 on."""
    place = tmp_path_factory.mktemp("companions")
    path = write_checkpoint(place / "a.ckpt", tokenizers["bpe"], {"vocab_size": 290}, {})
    run("export", path, "--output", place / "out")
    content = json.loads((place / "out" / "tokenizer.json").read_text())
    content["added_tokens"] += [
        {**content["added_tokens"][0], "id": 280 + i, "content": name}
        for i, name in enumerate(SPECIAL_NAMES)
    ]
    (place / "out" / "tokenizer.json").write_text(json.dumps(content))
    (place / "out" / "generation_config.json").unlink()
    return place / "out"


@pytest.fixture
def make_folder(plain_folder: Path, tmp_path: Path) -> Any:
    """A copy of the folder with other special ids, and other files beside."""

    def make(config: dict[str, Any], **files: Any) -> Path:
        folder = tmp_path / "in"
        folder.mkdir()
        for file in plain_folder.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        content = json.loads((folder / "config.json").read_text())
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            del content[key]
        (folder / "config.json").write_text(json.dumps({**content, **config}))
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            suffix = ".jinja" if name == "chat_template" else ".json"
            (folder / f"{name}{suffix}").write_bytes(text.encode())
        return folder

    return make
