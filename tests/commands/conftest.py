"""Configs as they are shipped, and a small checkpoint in a run folder."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from llama_lab.checkpoints import own_part
from llama_lab.commands.describe import main
from llama_lab.data.tokenizers.kinds import Tokenizer, train_tokenizer
from llama_lab.errors import UserError
from llama_lab.model.attention import AttentionConfig
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from llama_lab.model.settings import SettingError

TEXT = "the cat sat on the mat, the café 日本 😀\n" * 20

LLAMA = """
model:
  decoder:
    dim: 128
    n_layers: 4
    context_length: 128
    attention:
      n_heads: 4
      n_kv_heads: 2
  optimizer:
    lr: 1e-3
data:
  corpus: tinyshakespeare
trainer:
  max_steps: 1000
"""

TRANSFORMER_2017 = """
model:
  decoder:
    dim: 128
    n_layers: 4
    context_length: 128
    tie_embeddings: false
    norm: {kind: layernorm, placement: post}
    position: {kind: learned}
    attention: {n_heads: 4}
    feed_forward: {kind: relu}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with the two configs in it."""
    monkeypatch.chdir(tmp_path)
    configs = tmp_path / "configs"
    (configs / "decoders").mkdir(parents=True)
    (configs / "llama.yaml").write_text(LLAMA)
    (configs / "transformer-2017.yaml").write_text(TRANSFORMER_2017)
    return tmp_path


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, Tokenizer]:
    return {
        "char": train_tokenizer("char", train_text=TEXT, whole_text=TEXT, vocab_size=None),
        "bpe": train_tokenizer("bpe", train_text=TEXT, whole_text=TEXT, vocab_size=270),
    }


@pytest.fixture
def write_run(here: Path, tokenizers: dict[str, Tokenizer]):
    def write(tokenizer: str = "char", run: str = "run_0", which: str = "best") -> Path:
        known = tokenizers[tokenizer]
        config = DecoderConfig(
            dim=16,
            n_layers=2,
            context_length=12,
            vocab_size=known.vocab_size,
            attention=AttentionConfig(n_heads=2, n_kv_heads=1),
        )
        decoder = Decoder(config)
        initialise(decoder, seed=len(run))
        own = own_part(decoder=asdict(config), tokenizer=known.state(), config={}, progress={})
        state = {f"decoder.{name}": tensor for name, tensor in decoder.state_dict().items()}
        path = here / "logs" / "name" / run / "checkpoints" / f"{which}.ckpt"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"state_dict": state, "global_step": 40, "llama_lab": own}, path)
        return path

    return write


def describe(*arguments: str) -> int:
    """``llama-lab describe`` with these arguments."""
    return main(list(arguments), "llama-lab describe")


def described(capsys: Any, *arguments: str) -> dict[str, Any]:
    """What it says in JSON."""
    assert describe(*arguments, "--format", "json") == 0
    return json.loads(capsys.readouterr().out)


def refusal(*arguments: str) -> str:
    """The one line with which it refuses."""
    with pytest.raises((UserError, SettingError)) as refused:
        describe(*arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)
