"""Logits against transformers' own models whose positions or windows are not LLaMA's."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llama_lab.model.cache import DecoderCache
from llama_lab.model.config import layer_kinds
from llama_lab.model.decoder import Decoder, DecoderConfig
from tests.model.conftest import LLAMA_WORDS, randomised, renamed

transformers = pytest.importorskip("transformers")

VOCABULARY = 19
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_attention_heads": 4}
LLAMA = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 40, "rms_norm_eps": 1e-3}
OURS = {"dim": 32, "vocab_size": VOCABULARY, "norm": {"eps": 1e-3}}
TOKENS = torch.randint(VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(0))


def compare(theirs: Any, config: dict[str, Any], state: Mapping[str, Tensor]) -> Decoder:
    """Logits over a text that is read at once, and by a cache in pieces."""
    ours = Decoder(DecoderConfig.from_dict({**OURS, **config})).eval()
    ours.load_state_dict(state)
    expected = theirs(TOKENS).logits
    torch.testing.assert_close(ours.logits(ours(TOKENS)), expected, rtol=1e-4, atol=1e-4)
    cache = DecoderCache(ours.config, 2, length=40)
    ours(TOKENS[:, :23], cache)
    last = [ours.logits(ours(TOKENS[:, end - 1 : end], cache)) for end in range(24, 41)][-1]
    torch.testing.assert_close(last[:, 0], expected[:, -1], rtol=1e-4, atol=1e-4)
    return ours


SCALINGS = [
    ("linear", {"factor": 4.0}),
    ("dynamic", {"factor": 2.0}),
    ("yarn", {"factor": 4.0}),
    ("yarn", {"factor": 4.0, "beta_fast": 4.0, "beta_slow": 0.5, "attention_factor": 1.2}),
    ("llama3", {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
]


@pytest.mark.parametrize(("kind", "factors"), SCALINGS)
@torch.no_grad()
def test_scaled_rope_gives_the_logits_of_transformers_past_the_original_context(
    kind: str, factors: dict[str, float]
) -> None:
    scaling = {"rope_type": kind, **factors}
    ours = {"kind": kind, **factors}
    if kind in ("yarn", "llama3"):
        scaling["original_max_position_embeddings"] = ours["original_context_length"] = 12
    config = transformers.LlamaConfig(
        **LLAMA,
        num_hidden_layers=2,
        max_position_embeddings=16,
        rope_theta=500.0,
        rope_scaling=scaling,
        tie_word_embeddings=False,
    )
    theirs = randomised(transformers.LlamaForCausalLM(config))
    compare(
        theirs,
        {
            "n_layers": 2,
            "context_length": 16,
            "attention": {"n_kv_heads": 2},
            "feed_forward": {"hidden_dim": 40},
            "position": {"rope_theta": 500.0, "rope_scaling": ours},
        },
        renamed(theirs.state_dict(), LLAMA_WORDS),
    )


@torch.no_grad()
def test_mistrals_window_gives_the_logits_of_transformers() -> None:
    config = transformers.MistralConfig(
        **LLAMA, num_hidden_layers=3, sliding_window=6, tie_word_embeddings=False, head_dim=8
    )
    theirs = randomised(transformers.MistralForCausalLM(config))
    compare(
        theirs,
        {
            "n_layers": 3,
            "attention": {"n_kv_heads": 2, "window": 6},
            "feed_forward": {"hidden_dim": 40},
        },
        renamed(theirs.state_dict(), LLAMA_WORDS),
    )


@torch.no_grad()
def test_smollm3s_layers_without_positions_give_the_logits_of_transformers() -> None:
    config = transformers.SmolLM3Config(
        **LLAMA,
        num_hidden_layers=5,
        no_rope_layer_interval=4,
        rope_theta=500.0,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    theirs = randomised(transformers.SmolLM3ForCausalLM(config))
    ours = compare(
        theirs,
        {
            "n_layers": 5,
            "attention": {"n_kv_heads": 2},
            "feed_forward": {"hidden_dim": 40},
            "position": {"rope_theta": 500.0, "nope_every": 4},
        },
        renamed(theirs.state_dict(), LLAMA_WORDS),
    )
    has_position = [int(kind.has_position) for kind in layer_kinds(ours.config)]
    assert has_position == config.no_rope_layers


@torch.no_grad()
def test_gemma3s_windows_and_two_bases_give_the_logits_of_transformers() -> None:
    config = transformers.Gemma3TextConfig(
        **LLAMA,
        num_hidden_layers=7,
        head_dim=8,
        query_pre_attn_scalar=8,
        sliding_window=6,
        hidden_activation="gelu",
        rope_theta=5000.0,
        rope_local_base_freq=50.0,
        tie_word_embeddings=True,
    )
    theirs = randomised(transformers.Gemma3ForCausalLM(config))
    # Its positions are compared here, so the norms that only Gemma has are taken out.
    for layer in theirs.model.layers:
        layer.self_attn.q_norm = layer.self_attn.k_norm = nn.Identity()
        layer.post_attention_layernorm = layer.post_feedforward_layernorm = nn.Identity()
    words = {**LLAMA_WORDS, "pre_feedforward_layernorm": "feed_forward_norm"}
    state = renamed(theirs.state_dict(), words)
    state.pop("head.weight")
    ours = compare(
        theirs,
        {
            "n_layers": 7,
            "tie_embeddings": True,
            "embedding_scale": True,
            "attention": {"n_kv_heads": 2, "window": 6, "window_pattern": "LLLLLG"},
            "feed_forward": {"kind": "geglu", "hidden_dim": 40},
            "position": {"rope_theta": 5000.0, "rope_local_theta": 50.0},
        },
        # Its gain is 1 + weight.
        {key: value + 1 if "norm" in key else value for key, value in state.items()},
    )
    windows = [kind.window for kind in layer_kinds(ours.config)]
    assert [window is not None for window in windows] == [
        kind == "sliding_attention" for kind in config.layer_types
    ]


def split_heads(fused: Tensor, n_heads: int) -> list[Tensor]:
    """A fused projection whose rows are q, k, v head by head, as three."""
    by_head = fused.unflatten(0, (n_heads, 3, -1))
    return [by_head[:, i].flatten(0, 1) for i in range(3)]


@torch.no_grad()
def test_gpt_neoxs_partly_turned_heads_give_the_logits_of_transformers() -> None:
    config = transformers.GPTNeoXConfig(
        **SIZES,
        num_hidden_layers=2,
        intermediate_size=40,
        rotary_pct=0.5,
        use_parallel_residual=False,
        layer_norm_eps=1e-3,
        tie_word_embeddings=False,
    )
    theirs = randomised(transformers.GPTNeoXForCausalLM(config))
    words = {
        "gpt_neox.embed_in": "embedding",
        "gpt_neox.final_layer_norm": "final_norm",
        "embed_out": "head",
        "lm_head": "head",
        "gpt_neox.layers": "blocks",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "feed_forward_norm",
        "mlp.dense_h_to_4h": "feed_forward.up",
        "mlp.dense_4h_to_h": "feed_forward.down",
        "attention.dense": "attention.wo",
    }
    state: dict[str, Tensor] = {}
    for key, value in renamed(theirs.state_dict(), words).items():
        if "query_key_value" in key:
            for name, part in zip(("wq", "wk", "wv"), split_heads(value, 4), strict=True):
                state[key.replace("query_key_value", name)] = part
        elif "rotary_emb" not in key:
            state[key] = value
    compare(
        theirs,
        {
            "n_layers": 2,
            "norm": {"kind": "layernorm", "eps": 1e-3},
            "attention": {"qkv_bias": True, "output_bias": True},
            "feed_forward": {"kind": "gelu", "hidden_dim": 40, "bias": True},
            "position": {"rope_fraction": 0.5},
        },
        state,
    )


@torch.no_grad()
def test_mpts_alibi_gives_the_logits_of_transformers() -> None:
    config = transformers.MptConfig(
        d_model=32, n_heads=4, n_layers=2, vocab_size=VOCABULARY, max_seq_len=64
    )
    theirs = randomised(transformers.MptForCausalLM(config))
    words = {
        "transformer.wte": "embedding",
        "transformer.norm_f": "final_norm",
        "transformer.blocks": "blocks",
        "norm_1": "attention_norm",
        "norm_2": "feed_forward_norm",
        "attn.out_proj": "attention.wo",
        "ffn.up_proj": "feed_forward.up",
        "ffn.down_proj": "feed_forward.down",
    }
    state: dict[str, Tensor] = {}
    for key, value in renamed(theirs.state_dict(), words).items():
        if "Wqkv" in key:
            for name, part in zip(("wq", "wk", "wv"), value.chunk(3), strict=True):
                state[key.replace("attn.Wqkv", f"attention.{name}")] = part
        elif not key.startswith("lm_head"):
            state[key] = value
    compare(
        theirs,
        {
            "n_layers": 2,
            "tie_embeddings": True,
            "norm": {"kind": "layernorm", "bias": False},
            "feed_forward": {"kind": "gelu"},
            "position": {"kind": "alibi"},
        },
        state,
    )
