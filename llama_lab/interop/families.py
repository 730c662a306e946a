"""The families of Hugging Face models: one table each, read both ways.

A family is found from a decoder's parts, never from its name: it expresses a decoder if reading
what it would write gives the same parts again.

Sources, besides transformers' own configs: llama, Touvron et al. 2023, arXiv:2302.13971; gpt2,
Radford et al. 2019; mistral, Jiang et al. 2023, arXiv:2310.06825; qwen2, arXiv:2407.10671; qwen3,
arXiv:2505.09388; gemma3, arXiv:2503.19786; olmo2, arXiv:2501.00656; smollm3, Bakouch et al. 2025.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llama_lab.interop.entries import (
    Entry,
    Fixed,
    FullEvery,
    HeadDim,
    KeyValueHeads,
    NopeEvery,
    Number,
    Only,
    Same,
    ScaleIsHeadDim,
    Switch,
    Whole,
    WindowEverywhere,
    WindowFromLayer,
    WindowWhereNope,
    Word,
    Written,
)
from llama_lab.interop.parts import Parts
from llama_lab.interop.rope_entries import Rope
from llama_lab.interop.values import LARGEST_COUNT, Values


@dataclass(frozen=True)
class Place:
    """Where a module's tensors stand in their files.

    Args:
        name: Their module, with ``{i}`` for the layer.
        transposed: Whether its matrix is kept as [in, out].
        part: The share of it that is this module, and the number of shares side by side.
    """

    name: str
    transposed: bool = False
    part: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Family:
    """One family's table.

    Attributes:
        model_type: Its name in ``config.json``.
        architecture: Its class in transformers.
        entries: The config's keys, and the parts that they stand for.
        modules: Our modules, ``{i}`` for the layer, and where theirs are.
        names: Other names that transformers reads a key by (``attribute_map`` of its class).
        prefix: What a file of the bare model, without its head, leaves out of the names.
        ignored: Ends of names that old files hold and that no weight is: tables and masks.
        has_own_tokenizer: Whether transformers reads texts for it with the family's tokenizer class
            whatever the folder names (qwen2 in ``MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS`` of its
            tokenization_auto.py).
    """

    model_type: str
    architecture: str
    entries: tuple[Entry, ...]
    modules: Mapping[str, Place]
    prefix: str
    ignored: tuple[str, ...] = ()
    has_own_tokenizer: bool = False
    names: Mapping[str, str] = field(default_factory=dict)

    def read(self, values: Values) -> Parts:
        """The parts that a config stands for.

        Raises:
            UserError: A value is impossible, or stands for what no part here is.
        """
        parts: Parts = {}
        values = values.renamed(self.names)
        for entry in self.entries:
            parts |= entry.read(values, parts)
        return parts

    def write(self, parts: Parts) -> dict[str, Any]:
        """The config for ``parts``, as far as this family can say them."""
        keys: dict[str, Any] = {
            "architectures": [self.architecture],
            "model_type": self.model_type,
        }
        for entry in self.entries:
            keys |= entry.write(parts)
        return keys


def sizes(*, kv_heads: int | None = None, context: int = 2048) -> tuple[Entry, ...]:
    """The sizes that every family but gpt2 has; the arguments are what absent ones mean."""
    return (
        Whole("vocab_size", "vocab_size"),
        Whole("hidden_size", "dim"),
        Whole("num_hidden_layers", "n_layers", most=LARGEST_COUNT),
        Whole("max_position_embeddings", "context_length", context),
        Whole("num_attention_heads", "attention.n_heads", most=LARGEST_COUNT),
        KeyValueHeads(kv_heads),
        Whole("intermediate_size", "feed_forward.hidden_dim"),
        Written("attention_dropout", 0.0),
    )


# What their gate's activation makes of the feed-forward, and what a plain one's does.
GATED = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
    "relu": "reglu",
    "sigmoid": "glu",
    "linear": "bilinear",
}
PLAIN = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu_squared",
}
GATE = Word("hidden_act", "feed_forward.kind", GATED)
ATTENTION_BIAS = Switch("attention_bias", ("attention.qkv_bias", "attention.output_bias"), False)
MLP_BIAS = Switch("mlp_bias", ("feed_forward.bias",), False)
PRE_RMSNORM = (Fixed("norm.kind", "rmsnorm"), Fixed("norm.placement", "pre"))
ROPE = Fixed("position.kind", "rope")


def tied(default: bool) -> Switch:
    """Whether the head is the embedding, and what absent means."""
    return Switch("tie_word_embeddings", ("tie_embeddings",), default)


LAYER = "model.layers.{i}"
SUBLAYERS = {
    "embedding": Place("model.embed_tokens"),
    **{f"blocks.{{i}}.attention.w{x}": Place(f"{LAYER}.self_attn.{x}_proj") for x in "qkvo"},
    **{
        f"blocks.{{i}}.feed_forward.{x}": Place(f"{LAYER}.mlp.{x}_proj")
        for x in ("gate", "up", "down")
    },
    "final_norm": Place("model.norm"),
    "head": Place("lm_head"),
}
QK_NORMS = {f"blocks.{{i}}.attention.{x}_norm": Place(f"{LAYER}.self_attn.{x}_norm") for x in "qk"}
PRE_NORMS = {
    "blocks.{i}.attention_norm": Place(f"{LAYER}.input_layernorm"),
    "blocks.{i}.feed_forward_norm": Place(f"{LAYER}.post_attention_layernorm"),
}
# Norms on what a sublayer gives: they alone (reordered), or beside those before it (sandwich).
REORDERED_NORMS = {
    "blocks.{i}.attention_post_norm": Place(f"{LAYER}.post_attention_layernorm"),
    "blocks.{i}.feed_forward_post_norm": Place(f"{LAYER}.post_feedforward_layernorm"),
}
SANDWICH_NORMS = {
    **REORDERED_NORMS,
    "blocks.{i}.attention_norm": Place(f"{LAYER}.input_layernorm"),
    "blocks.{i}.feed_forward_norm": Place(f"{LAYER}.pre_feedforward_layernorm"),
}
ONE_PLUS_GAIN = "rmsnorm_offset"

LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    (
        *sizes(),
        HeadDim(),
        GATE,
        *PRE_RMSNORM,
        Number("rms_norm_eps", "norm.eps", 1e-6),
        ROPE,
        Rope(10000.0),
        ATTENTION_BIAS,
        MLP_BIAS,
        tied(False),
    ),
    {**SUBLAYERS, **PRE_NORMS},
    prefix="model.",
    ignored=("rotary_emb.inv_freq",),
)

MISTRAL = Family(
    "mistral",
    "MistralForCausalLM",
    (
        *sizes(kv_heads=8, context=131072),
        HeadDim(),
        GATE,
        *PRE_RMSNORM,
        Number("rms_norm_eps", "norm.eps", 1e-6),
        ROPE,
        Rope(10000.0),
        WindowEverywhere(4096),
        tied(False),
    ),
    {**SUBLAYERS, **PRE_NORMS},
    prefix="model.",
    ignored=("rotary_emb.inv_freq",),
)

QWEN2 = Family(
    "qwen2",
    "Qwen2ForCausalLM",
    (
        *sizes(kv_heads=32, context=32768),
        HeadDim(always=False),
        GATE,
        *PRE_RMSNORM,
        Number("rms_norm_eps", "norm.eps", 1e-6),
        ROPE,
        Rope(10000.0),
        WindowFromLayer(),
        Fixed("attention.qkv_bias", True),
        tied(False),
    ),
    {**SUBLAYERS, **PRE_NORMS},
    prefix="model.",
    ignored=("rotary_emb.inv_freq",),
    has_own_tokenizer=True,
)

QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    (
        *sizes(kv_heads=32, context=32768),
        HeadDim(default=128),
        GATE,
        *PRE_RMSNORM,
        Number("rms_norm_eps", "norm.eps", 1e-6),
        ROPE,
        Rope(10000.0),
        WindowFromLayer(),
        Fixed("attention.qk_norm", "head"),
        ATTENTION_BIAS,
        tied(False),
    ),
    {**SUBLAYERS, **PRE_NORMS, **QK_NORMS},
    prefix="model.",
)

GEMMA3 = Family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    (
        *sizes(kv_heads=4, context=131072),
        HeadDim(default=256),
        Word(
            "hidden_activation", "feed_forward.kind", {"gelu_pytorch_tanh": "geglu_tanh", **GATED}
        ),
        Fixed("norm.kind", ONE_PLUS_GAIN),
        Fixed("norm.placement", "sandwich"),
        Number("rms_norm_eps", "norm.eps", 1e-6),
        ROPE,
        FullEvery(),
        Rope(1e6, local_theta=10000.0),
        ScaleIsHeadDim("query_pre_attn_scalar", 256),
        Only("attn_logit_softcapping", None),
        Number("final_logit_softcapping", "logit_softcap"),
        Only("use_bidirectional_attention", False),
        Fixed("attention.qk_norm", "head"),
        Fixed("embedding_scale", True),
        ATTENTION_BIAS,
        tied(True),
    ),
    {**SUBLAYERS, **SANDWICH_NORMS, **QK_NORMS},
    prefix="model.",
)

OLMO2 = Family(
    "olmo2",
    "Olmo2ForCausalLM",
    (
        *sizes(),
        HeadDim(always=False),
        GATE,
        Fixed("norm.kind", "rmsnorm"),
        Fixed("norm.placement", "reordered"),
        Number("rms_norm_eps", "norm.eps", 1e-5),
        ROPE,
        Rope(10000.0),
        Fixed("attention.qk_norm", "projection"),
        ATTENTION_BIAS,
        tied(False),
    ),
    {**SUBLAYERS, **REORDERED_NORMS, **QK_NORMS},
    prefix="model.",
)

SMOLLM3 = Family(
    "smollm3",
    "SmolLM3ForCausalLM",
    (
        *sizes(kv_heads=4, context=32768),
        HeadDim(always=False),
        GATE,
        *PRE_RMSNORM,
        Number("rms_norm_eps", "norm.eps", 1e-6),
        ROPE,
        Rope(2e6),
        NopeEvery(4),
        WindowWhereNope(),
        ATTENTION_BIAS,
        MLP_BIAS,
        tied(True),
    ),
    {**SUBLAYERS, **PRE_NORMS},
    prefix="model.",
)

H = "transformer.h.{i}"
GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    (
        Whole("vocab_size", "vocab_size"),
        Whole("n_embd", "dim"),
        Whole("n_layer", "n_layers", most=LARGEST_COUNT),
        Whole("n_positions", "context_length", 1024),
        Whole("n_head", "attention.n_heads", most=LARGEST_COUNT),
        Same("attention.n_kv_heads", "attention.n_heads"),
        Whole("n_inner", "feed_forward.hidden_dim", lambda parts: 4 * parts["dim"]),
        Word("activation_function", "feed_forward.kind", PLAIN),
        Fixed("norm.kind", "layernorm"),
        Fixed("norm.placement", "pre"),
        Fixed("norm.bias", True),
        Number("layer_norm_epsilon", "norm.eps", 1e-5),
        Fixed("position.kind", "learned"),
        Fixed("attention.qkv_bias", True),
        Fixed("attention.output_bias", True),
        Fixed("feed_forward.bias", True),
        Only("scale_attn_weights", True),
        Only("scale_attn_by_inverse_layer_idx", False),
        Only("add_cross_attention", False),
        *(Written(f"{x}_pdrop", 0.0) for x in ("resid", "embd", "attn")),
        tied(True),
    ),
    {
        "embedding": Place("transformer.wte"),
        "position_embedding": Place("transformer.wpe"),
        "blocks.{i}.attention_norm": Place(f"{H}.ln_1"),
        **{
            f"blocks.{{i}}.attention.w{x}": Place(f"{H}.attn.c_attn", True, (i, 3))
            for i, x in enumerate("qkv")
        },
        "blocks.{i}.attention.wo": Place(f"{H}.attn.c_proj", True),
        "blocks.{i}.feed_forward_norm": Place(f"{H}.ln_2"),
        "blocks.{i}.feed_forward.up": Place(f"{H}.mlp.c_fc", True),
        "blocks.{i}.feed_forward.down": Place(f"{H}.mlp.c_proj", True),
        "final_norm": Place("transformer.ln_f"),
        "head": Place("lm_head"),
    },
    prefix="transformer.",
    ignored=(".attn.bias", ".attn.masked_bias"),
    names={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "max_position_embeddings": "n_positions",
        "num_attention_heads": "n_head",
    },
)

# In the order in which an export tries them: llama first, where several can say the same.
FAMILIES = {
    family.model_type: family
    for family in (LLAMA, GPT2, QWEN2, QWEN3, MISTRAL, SMOLLM3, OLMO2, GEMMA3)
}
