"""Logits of whole families of models against transformers, with their random weights copied over.

Each has parts that the others lack: norms with an offset and on both sides (Gemma), limits (Gemma
2), norms behind the sublayers (OLMo 2), normalised queries and keys by head (Qwen3, Gemma 3) or
together (OLMo 2), heads of their own width, sinks (GPT-OSS).
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from llama_lab.model.attention import AttentionConfig, build_attention
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.norms import NormConfig
from llama_lab.model.positions import Position
from tests.model.conftest import randomised

transformers = pytest.importorskip("transformers")

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [18, 17, 16, 15, 14, 13, 12, 0]])
THEIR_SIZES = {
    "vocab_size": 19,
    "hidden_size": 16,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8,
    "rms_norm_eps": 1e-3,
    "attn_implementation": "eager",
    "pad_token_id": None,
}
SIZES: dict[str, Any] = {"dim": 16, "n_layers": 2, "context_length": 8, "vocab_size": 19}

# Their words in a tensor's name, and ours.
WORDS = {
    "model.embed_tokens": "embedding",
    "model.norm": "final_norm",
    "lm_head": "head",
    "model.layers": "blocks",
    "self_attn.": "attention.",
    "mlp.": "feed_forward.",
    **{f"{w}_proj": f"w{w}" for w in "qkvo"},
    **{f"{w}_proj": w for w in ("gate", "up", "down")},
}
BEHIND = {
    "post_attention_layernorm": "attention_post_norm",
    "post_feedforward_layernorm": "feed_forward_post_norm",
}
BEFORE = {"input_layernorm": "attention_norm", "pre_feedforward_layernorm": "feed_forward_norm"}
PRE = {"input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm"}


def renamed(name: str, norms: dict[str, str] | None = None) -> str:
    """Our name of their tensor."""
    for word, our_word in {**WORDS, **(norms or {})}.items():
        name = name.replace(word, our_word)
    return name


@torch.no_grad()
def check_logits(theirs: Any, settings: dict[str, Any], norms: dict[str, str]) -> None:
    """Our decoder, with their weights under our names, gives their logits."""
    ours = Decoder(DecoderConfig.from_dict({**SIZES, **settings})).eval()
    state: dict[str, Tensor] = {}
    for key, value in randomised(theirs).state_dict().items():
        state[renamed(key, norms)] = value
    if ours.config.tie_embeddings:
        del state["head.weight"]
    ours.load_state_dict(state)
    expected = theirs(TOKENS).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(ours.logits(ours(TOKENS)), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head_dim", [4, 6])
def test_qwen3_gives_the_logits_of_transformers(head_dim: int) -> None:
    config = transformers.Qwen3Config(**THEIR_SIZES, head_dim=head_dim, tie_word_embeddings=False)
    settings = {
        "norm": {"eps": 1e-3},
        "attention": {"n_kv_heads": 2, "head_dim": head_dim, "qk_norm": "head"},
        "feed_forward": {"hidden_dim": 40},
    }
    check_logits(transformers.Qwen3ForCausalLM(config), settings, PRE)


def test_olmo2_gives_the_logits_of_transformers() -> None:
    config = transformers.Olmo2Config(**THEIR_SIZES, tie_word_embeddings=False)
    settings = {
        "norm": {"placement": "reordered", "eps": 1e-3},
        "attention": {"n_kv_heads": 2, "qk_norm": "projection"},
        "feed_forward": {"hidden_dim": 40},
    }
    check_logits(transformers.Olmo2ForCausalLM(config), settings, BEHIND)


GEMMA = {
    "head_dim": 6,
    "query_pre_attn_scalar": 6,
    "layer_types": ["full_attention"] * 2,
    "tie_word_embeddings": True,
}
OUR_GEMMA = {
    "tie_embeddings": True,
    "embedding_scale": True,
    "norm": {"kind": "rmsnorm_offset", "placement": "sandwich", "eps": 1e-3},
    "feed_forward": {"kind": "geglu_tanh", "hidden_dim": 40},
}


def test_gemma2_gives_the_logits_of_transformers() -> None:
    config = transformers.Gemma2Config(
        **THEIR_SIZES, **GEMMA, attn_logit_softcapping=0.4, final_logit_softcapping=0.8
    )
    settings = {
        **OUR_GEMMA,
        "logit_softcap": 0.8,
        "attention": {"n_kv_heads": 2, "head_dim": 6, "softcap": 0.4},
    }
    check_logits(transformers.Gemma2ForCausalLM(config), settings, {**BEFORE, **BEHIND})


def test_gemma3_gives_the_logits_of_transformers() -> None:
    rope = {"rope_type": "default", "rope_theta": 500.0}
    parameters = {"full_attention": rope, "sliding_attention": rope}
    config = transformers.Gemma3TextConfig(**THEIR_SIZES, **GEMMA, rope_parameters=parameters)
    settings = {
        **OUR_GEMMA,
        "position": {"rope_theta": 500.0},
        "attention": {"n_kv_heads": 2, "head_dim": 6, "qk_norm": "head"},
    }
    check_logits(transformers.Gemma3ForCausalLM(config), settings, {**BEFORE, **BEHIND})


@torch.no_grad()
def test_sinks_are_those_of_gpt_oss() -> None:
    modeling = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    config = transformers.GptOssConfig(**THEIR_SIZES, head_dim=6, attention_bias=True)
    theirs = randomised(modeling.GptOssAttention(config, layer_idx=0))
    own = AttentionConfig(
        n_heads=4, n_kv_heads=2, head_dim=6, qkv_bias=True, output_bias=True, sinks=True
    )
    ours = build_attention(own, 16, norm=NormConfig(), dropout=0.0)
    ours.load_state_dict({renamed(name): value for name, value in theirs.state_dict().items()})
    x = torch.randn(2, 5, 16)
    future = torch.full((5, 5), float("-inf")).triu(1)
    unturned = (torch.ones(1, 5, 3), torch.zeros(1, 5, 3))
    expected, _ = theirs(x, unturned, future)
    torch.testing.assert_close(ours(x, Position().at(0, 5, torch.device("cpu"))), expected)
