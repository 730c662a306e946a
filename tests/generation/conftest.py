"""Tiny models with contrasting logits, and checkpoints of them."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from llama_lab.checkpoints import own_part
from llama_lab.data.tokenizers.kinds import Tokenizer, train_tokenizer
from llama_lab.model.attention import AttentionConfig
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise

TINY = DecoderConfig(
    dim=16, n_layers=2, context_length=10, vocab_size=23, attention=AttentionConfig(n_heads=2)
)


@pytest.fixture
def build() -> Callable[..., Decoder]:
    """A decoder of a few thousand parameters whose choices depend on the context."""

    def build(**changes: object) -> Decoder:
        decoder = Decoder(replace(TINY, **changes))
        initialise(decoder, seed=3)
        with torch.no_grad():
            for parameter in decoder.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(20)  # std 0.4: far from uniform
        return decoder

    return build


@pytest.fixture(scope="session")
def char_tokenizer() -> Tokenizer:
    return train_tokenizer("char", train_text="", whole_text="hello world\n", vocab_size=None)


@pytest.fixture(scope="session")
def bpe_tokenizer() -> Tokenizer:
    text = "the cat sat on the mat, the café 日本 😀 " * 20
    return train_tokenizer("bpe", train_text=text, whole_text=text, vocab_size=270)


@pytest.fixture
def write_checkpoint(tmp_path: Path) -> Callable[..., Path]:
    def write(decoder: Decoder, tokenizer: Tokenizer, **changes: torch.Tensor | None) -> Path:
        """A checkpoint as training writes it; ``changes`` replace (or, with None, drop) tensors."""
        state = {f"decoder.{name}": t for name, t in decoder.state_dict().items()}
        for name, tensor in changes.items():
            state.pop(f"decoder.{name}", None)
            if tensor is not None:
                state[f"decoder.{name}"] = tensor
        own = own_part(
            decoder=asdict(decoder.config), tokenizer=tokenizer.state(), config={}, progress={}
        )
        path = tmp_path / "some.ckpt"
        torch.save({"state_dict": state, "global_step": 7, "llama_lab": own}, path)
        return path

    return write
