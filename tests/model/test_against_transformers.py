"""Logits against transformers' own LLaMA and GPT-2, with their random weights copied over."""

import pytest
import torch
from torch import Tensor

from llama_lab.model.decoder import Decoder, DecoderConfig
from tests.model.conftest import LLAMA_WORDS, randomised, renamed

transformers = pytest.importorskip("transformers")

TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [18, 17, 16, 15, 14, 13, 12, 0]])


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@torch.no_grad()
def test_llama_gives_the_logits_of_transformers(n_kv_heads: int) -> None:
    theirs = randomised(
        transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=19,
                hidden_size=16,
                intermediate_size=40,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=n_kv_heads,
                max_position_embeddings=8,
                rms_norm_eps=1e-3,
                tie_word_embeddings=False,
            )
        )
    )
    ours = Decoder(
        DecoderConfig.from_dict(
            {
                "dim": 16,
                "n_layers": 2,
                "context_length": 8,
                "vocab_size": 19,
                "norm": {"eps": 1e-3},
                "attention": {"n_kv_heads": n_kv_heads},
                "feed_forward": {"hidden_dim": 40},
            }
        )
    )
    ours.load_state_dict(renamed(theirs.state_dict(), LLAMA_WORDS))
    torch.testing.assert_close(
        ours.logits(ours(TOKENS)), theirs(TOKENS).logits, rtol=1e-4, atol=1e-4
    )


def gpt2_state(theirs: dict[str, Tensor], n_layers: int) -> dict[str, Tensor]:
    """GPT-2's tensors under our names; it keeps matrices transposed, and q, k, v in one."""
    state = {
        "embedding.weight": theirs["transformer.wte.weight"],
        "position_embedding.weight": theirs["transformer.wpe.weight"],
    }
    modules = {"transformer.ln_f": "final_norm"}
    for i in range(n_layers):
        layer, block = f"transformer.h.{i}", f"blocks.{i}"
        modules |= {
            f"{layer}.ln_1": f"{block}.attention_norm",
            f"{layer}.ln_2": f"{block}.feed_forward_norm",
            f"{layer}.attn.c_proj": f"{block}.attention.wo",
            f"{layer}.mlp.c_fc": f"{block}.feed_forward.up",
            f"{layer}.mlp.c_proj": f"{block}.feed_forward.down",
        }
        for kind in ("weight", "bias"):
            parts = theirs[f"{layer}.attn.c_attn.{kind}"].chunk(3, dim=-1)
            for name, part in zip(("wq", "wk", "wv"), parts, strict=True):
                state[f"{block}.attention.{name}.{kind}"] = part.T if kind == "weight" else part
    for their_name, our_name in modules.items():
        weight = theirs[f"{their_name}.weight"]
        state[f"{our_name}.weight"] = weight.T if weight.dim() == 2 else weight
        state[f"{our_name}.bias"] = theirs[f"{their_name}.bias"]
    return state


@torch.no_grad()
def test_gpt2_gives_the_logits_of_transformers() -> None:
    theirs = randomised(
        transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=19, n_positions=8, n_embd=16, n_layer=2, n_head=4, n_inner=40
            )
        )
    )
    ours = Decoder(
        DecoderConfig.from_dict(
            {
                "dim": 16,
                "n_layers": 2,
                "context_length": 8,
                "vocab_size": 19,
                "tie_embeddings": True,
                "norm": {"kind": "layernorm"},
                "position": {"kind": "learned"},
                "attention": {"qkv_bias": True, "output_bias": True},
                "feed_forward": {"kind": "gelu_tanh", "bias": True, "hidden_dim": 40},
            }
        )
    ).eval()
    ours.load_state_dict(gpt2_state(theirs.state_dict(), 2))
    torch.testing.assert_close(
        ours.logits(ours(TOKENS)), theirs(TOKENS).logits, rtol=1e-4, atol=1e-4
    )
