"""Where training starts: distributions, and equal tensors in models that differ elsewhere."""

import math
from typing import Any

import pytest
import torch

from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise


def initialised(seed: int = 0, **settings: Any) -> Decoder:
    sizes = {"dim": 64, "n_layers": 3, "vocab_size": 101}
    decoder = Decoder(DecoderConfig.from_dict({**sizes, **settings}))
    initialise(decoder, seed)
    return decoder


EVERYTHING: dict[str, Any] = {
    "position": {"kind": "learned"},
    "norm": {"kind": "layernorm"},
    "attention": {"qkv_bias": True, "output_bias": True},
    "feed_forward": {"kind": "gelu", "bias": True},
}


@pytest.mark.parametrize(
    ("init", "std", "writers_std"),
    [
        ({}, 0.02, 0.02),
        ({"std": 0.1}, 0.1, 0.1),
        ({"kind": "depth_scaled"}, 0.02, 0.02 / math.sqrt(6)),
        ({"kind": "depth_scaled", "std": 0.1}, 0.1, 0.1 / math.sqrt(6)),
    ],
)
def test_each_tensor_has_its_distribution(
    init: dict[str, Any], std: float, writers_std: float
) -> None:
    for name, parameter in initialised(init=init, **EVERYTHING).named_parameters():
        if name.endswith("bias"):
            assert torch.equal(parameter, torch.zeros_like(parameter)), name
        elif "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        else:
            expected = writers_std if name.endswith(("wo.weight", "down.weight")) else std
            assert parameter.std().item() == pytest.approx(expected, rel=0.05), name
            assert abs(parameter.mean().item()) < 0.1 * expected, name


@pytest.mark.parametrize(
    "other",
    [
        {"norm": {"kind": "layernorm", "placement": "post"}},
        {"position": {"kind": "learned"}},
        {"feed_forward": {"kind": "geglu", "bias": True}},
        {"attention": {"n_kv_heads": 2, "qkv_bias": True}},
        {"tie_embeddings": True},
        {"n_layers": 5},
    ],
)
def test_models_that_share_a_tensor_start_with_the_same_one(other: dict[str, Any]) -> None:
    first, second = initialised().state_dict(), initialised(**other).state_dict()
    shared = [name for name in first if name in second and first[name].shape == second[name].shape]
    assert len(shared) > 15
    for name in shared:
        assert torch.equal(first[name], second[name]), name


def test_no_two_tensors_and_no_two_seeds_start_alike() -> None:
    first, other_seed = initialised(0).state_dict(), initialised(1).state_dict()
    heads = [value for name, value in first.items() if name.endswith(("wq.weight", "wo.weight"))]
    assert len(torch.stack(heads).unique(dim=0)) == 6
    for name, value in first.items():
        assert "norm" in name or not torch.equal(value, other_seed[name])


def test_a_start_depends_on_seed_and_name_alone() -> None:
    reference = initialised().state_dict()
    torch.manual_seed(5)
    again = initialised()
    initialise(again, 0)
    rounded = Decoder(again.config).to(torch.bfloat16)
    initialise(rounded, 0)
    for name, value in reference.items():
        assert torch.equal(value, again.state_dict()[name])
        assert torch.equal(value.bfloat16(), rounded.state_dict()[name])


def test_a_start_is_the_same_in_every_release() -> None:
    # A changed hash or draw would change every run without a word. The last digits are the CPU's.
    weight = initialised().embedding.weight
    expected = torch.tensor([0.0190347, -0.0308937, -0.0058973])
    torch.testing.assert_close(weight[0, :3], expected, rtol=1e-4, atol=0)
