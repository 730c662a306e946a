"""Where training starts: distributions, and equal tensors in models that differ elsewhere."""

import math
from itertools import cycle
from typing import Any

import pytest
import torch

from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.init_schemes import INITS
from llama_lab.model.initialise import initialise
from llama_lab.model.norms import NORMS


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


@pytest.mark.parametrize("tied", [False, True])
def test_xavier_is_uniform_by_size_and_normal_for_what_is_looked_up(tied: bool) -> None:
    settings = {**EVERYTHING, "attention": {"n_kv_heads": 1, "qkv_bias": True, "gate": True}}
    decoder = initialised(init={"kind": "xavier"}, tie_embeddings=tied, **settings)
    tables = {"embedding.weight", "position_embedding.weight"} | {"head.weight"}
    for name, parameter in decoder.named_parameters():
        if parameter.dim() < 2:
            assert len(parameter.unique()) == 1, name
        elif name in tables:
            assert parameter.std().item() == pytest.approx(64**-0.5, rel=0.05), name
            assert parameter.abs().max() > 2.5 * 64**-0.5, name
        else:
            bound = math.sqrt(6 / sum(parameter.shape))
            assert parameter.abs().max().item() == pytest.approx(bound, rel=0.01), name
            assert parameter.abs().max() <= bound, name
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name
            assert abs(parameter.mean().item()) < 0.1 * bound, name


@pytest.mark.parametrize("tied", [False, True])
@torch.no_grad()
def test_zero_output_starts_from_the_identity_and_an_even_guess(tied: bool) -> None:
    decoder = initialised(init={"kind": "zero_output"}, tie_embeddings=tied, **EVERYTHING)
    normal = initialised(tie_embeddings=tied, **EVERYTHING).state_dict()
    for name, value in decoder.state_dict().items():
        zero = name.endswith(("wo.weight", "down.weight")) or name == "head.weight"
        assert torch.equal(value, torch.zeros_like(value) if zero else normal[name]), name
    tokens = torch.tensor([[1, 5, 9]])
    embedded = decoder.position_embedding.embed(decoder.embedding(tokens), 0)
    hidden = decoder(tokens)
    torch.testing.assert_close(hidden, decoder.final_norm(embedded))
    assert decoder.logits(hidden).any() == tied


def test_zero_output_learns_nevertheless() -> None:
    decoder = initialised(init={"kind": "zero_output"})
    optimizer = torch.optim.SGD(decoder.parameters(), lr=1.0)
    tokens = torch.arange(9)[None]
    for _ in range(3):
        optimizer.zero_grad()
        decoder.loss(decoder(tokens[:, :-1]), tokens[:, 1:], reduction="mean").backward()
        optimizer.step()
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_what_is_no_matrix_starts_where_its_module_says() -> None:
    settings: dict[str, Any] = {
        "attention": {"sinks": True, "qk_norm": "head", "gate": True, "qkv_bias": True},
        "feed_forward": {"swish_beta": "learned", "bias": True},
    }
    starts = {
        "layernorm": {"weight": 1.0, "bias": 0.0},
        "rmsnorm": {"weight": 1.0},
        "rmsnorm_offset": {"weight": 0.0},
        "rmsnorm_plain": {},
        "dyt": {"alpha": 0.5, "weight": 1.0, "bias": 0.0},
    }
    assert starts.keys() == NORMS.keys()
    for (kind, norm_starts), init in zip(starts.items(), cycle(INITS), strict=False):
        decoder = Decoder(
            DecoderConfig.from_dict(
                {"vocab_size": 7, "norm": {"kind": kind}, "init": {"kind": init}, **settings}
            )
        )
        with torch.no_grad():
            for parameter in decoder.parameters():
                parameter.fill_(float("nan"))
        initialise(decoder, 0)
        for name, parameter in decoder.named_parameters():
            leaf = name.rpartition(".")[2]
            if parameter.dim() < 2:
                others = {"bias": 0.0, "sinks": 0.0, "beta": 1.0}
                start = (norm_starts if "norm" in name else others)[leaf]
                assert torch.equal(parameter, torch.full_like(parameter, start)), name
            else:
                assert parameter.isfinite().all(), name


def test_a_vector_whose_start_nobody_declares_is_an_error() -> None:
    decoder = Decoder(DecoderConfig(vocab_size=7))
    decoder.blocks[1].attention.temperature = torch.nn.Parameter(torch.ones(1))
    with pytest.raises(LookupError, match=r"blocks\.1\.attention\.temperature is not a matrix"):
        initialise(decoder, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"norm": {"kind": "layernorm", "placement": "post"}},
        {"position": {"kind": "learned"}},
        {"feed_forward": {"kind": "geglu", "bias": True}},
        {"attention": {"n_kv_heads": 2, "qkv_bias": True}},
        {"tie_embeddings": True},
        {"n_layers": 5},
        {"norm": {"placement": "sandwich"}},
        {"attention": {"qk_norm": "head", "sinks": True, "gate": True}},
        {"feed_forward": {"swish_beta": "learned"}},
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
