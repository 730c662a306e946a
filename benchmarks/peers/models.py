"""llama-lab's model and its peers', each built to one shape: tokens and targets to a loss.

nanoGPT is no package: the variable ``NANOGPT`` names a folder that holds its ``model.py``. Whoever
is not installed is :class:`Absent`, and says how to get it. Peers are built from their own classes,
as their trainers do it; only the cross-entropy is torch's own for all, over all logits at once.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from llama_lab.training.compiling import compile_regions, compile_whole

OWN = "llama-lab"


class Absent(Exception):
    """A peer is not installed here; the message names the remedy."""


@dataclass(frozen=True)
class Shape:
    """A model and its batch."""

    n_layers: int
    dim: int
    n_heads: int
    context: int
    rows: int
    vocabulary: int = 65
    n_kv_heads: int | None = None
    hidden_dim: int | None = None
    dropout: float = 0.0

    @property
    def kv_heads(self) -> int:
        """Key/value heads, with the default resolved."""
        return self.n_kv_heads or self.n_heads

    @property
    def tokens(self) -> int:
        """In one step."""
        return self.rows * self.context

    def config(self) -> DecoderConfig:
        """llama-lab's own."""
        return DecoderConfig.from_dict(
            {
                "dim": self.dim,
                "n_layers": self.n_layers,
                "context_length": self.context,
                "vocab_size": self.vocabulary,
                "dropout": self.dropout,
                "attention": {"n_heads": self.n_heads, "n_kv_heads": self.n_kv_heads},
                "feed_forward": {"hidden_dim": self.hidden_dim},
            }
        )

    def width(self) -> int:
        """Hidden width of the gated feed-forward."""
        return self.config().feed_forward.width(self.dim)


class Scored(nn.Module):
    """A model that gives logits, and the mean cross-entropy of them."""

    def __init__(self, model: nn.Module, **settings: Any) -> None:
        super().__init__()
        self.model, self.settings = model, settings

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """``[B, T]`` twice to a scalar."""
        logits = self.model(tokens, **self.settings)
        logits = logits if isinstance(logits, Tensor) else logits.logits
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Own(nn.Module):
    """llama-lab's decoder and its own loss."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """``[B, T]`` twice to a scalar."""
        return self.decoder.score(tokens, targets, reduction="mean")


class NanoGPT(nn.Module):
    """nanoGPT's model, which has its loss within."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """``[B, T]`` twice to a scalar."""
        return self.model(tokens, targets)[1]


def build_own(shape: Shape) -> nn.Module:
    """llama-lab's model."""
    decoder = Decoder(shape.config())
    initialise(decoder, 0)
    return Own(decoder)


def nanogpt_source() -> Any:
    """nanoGPT's ``model.py``, as a module.

    Raises:
        Absent: The variable ``NANOGPT`` names no folder that holds it.
    """
    path = Path(os.environ.get("NANOGPT", "")) / "model.py"
    if not os.environ.get("NANOGPT") or not path.is_file():
        raise Absent(
            "clone https://github.com/karpathy/nanoGPT and name the folder in the variable NANOGPT"
        )
    spec = importlib.util.spec_from_file_location("nanogpt_model", path)
    assert spec is not None
    assert spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = source  # the compiler looks it up by name
    spec.loader.exec_module(source)
    return source


def build_nanogpt(shape: Shape) -> nn.Module:
    """nanoGPT without biases, which its training script takes by default and calls faster."""
    source = nanogpt_source()
    with contextlib.redirect_stdout(io.StringIO()):  # it counts its parameters aloud
        model = source.GPT(
            source.GPTConfig(
                block_size=shape.context,
                vocab_size=shape.vocabulary,
                n_layer=shape.n_layers,
                n_head=shape.n_heads,
                n_embd=shape.dim,
                dropout=shape.dropout,
                bias=False,
            )
        )
    return NanoGPT(model)


def build_litgpt(shape: Shape) -> nn.Module:
    """litgpt's GPT with the settings of its LLaMA models."""
    try:
        from litgpt import GPT, Config
    except ImportError as error:
        raise Absent(f"pip install litgpt ({error})") from error
    config = Config(
        name="peer",
        block_size=shape.context,
        vocab_size=shape.vocabulary,
        padded_vocab_size=shape.vocabulary,
        n_layer=shape.n_layers,
        n_head=shape.n_heads,
        n_query_groups=shape.kv_heads,
        n_embd=shape.dim,
        intermediate_size=shape.width(),
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        norm_eps=1e-5,
        mlp_class_name="LLaMAMLP",
    )
    model = GPT(config)
    model.apply(model._init_weights)
    return Scored(model)


def build_transformers(shape: Shape) -> nn.Module:
    """Hugging Face's LlamaForCausalLM over fused attention."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise Absent(f"pip install transformers ({error})") from error
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.dim,
        intermediate_size=shape.width(),
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    return Scored(LlamaForCausalLM(config), use_cache=False)


def build_torchtitan(shape: Shape) -> nn.Module:
    """torchtitan's llama3 over its SDPA module: its flex and varlen need CUDA to train."""
    try:
        from torchtitan.models import llama3
        from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
        from torchtitan.models.common.attention import ScaledDotProductAttention
    except ImportError as error:
        raise Absent(f"pip install torchtitan==0.3.0 spmd_types triton ({error})") from error
    layers = llama3._build_llama3_layers(
        n_layers=shape.n_layers,
        dim=shape.dim,
        n_heads=shape.n_heads,
        n_kv_heads=shape.kv_heads,
        hidden_dim=shape.width(),
        rope=ComplexRoPE.Config(dim=shape.dim // shape.n_heads, max_seq_len=shape.context),
        attn_backend="flex",
    )
    for layer in layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config = llama3.Llama3Model.Config(
        dim=shape.dim,
        vocab_size=shape.vocabulary,
        tok_embeddings=Embedding.Config(
            num_embeddings=shape.vocabulary,
            embedding_dim=shape.dim,
            param_init=llama3._EMBEDDING_INIT,
        ),
        norm=RMSNorm.Config(normalized_shape=shape.dim, param_init=llama3._NORM_INIT),
        lm_head=Linear.Config(
            in_features=shape.dim,
            out_features=shape.vocabulary,
            param_init=llama3._output_linear_init(shape.dim),
        ),
        layers=layers,
    )
    model = config.build()
    model.init_states(buffer_device=torch.empty(0).device)
    return Scored(model)


BUILDERS: dict[str, Callable[[Shape], nn.Module]] = {
    OWN: build_own,
    "nanoGPT": build_nanogpt,
    "litgpt": build_litgpt,
    "transformers": build_transformers,
    "torchtitan": build_torchtitan,
}


KINDS = ("eager", "regions", "whole")


def compiled(model: nn.Module, kind: str = "regions") -> nn.Module:
    """llama-lab's model as its trainer compiles it, others whole with their loss, which is what
    does most for them.
    """
    if kind == "eager":
        return model
    if isinstance(model, Own):
        (compile_whole if kind == "whole" else compile_regions)(model.decoder, training=True)
        return model
    return whole(model)


def whole(model: nn.Module, **settings: Any) -> nn.Module:
    """The model and its loss, compiled in one piece."""
    return torch.compile(model, **settings)
