"""Flex attention: the tiles that a window shows, what it computes, and where it is let in.

It has no backward on the CPU, where its forward is run uncompiled; its gradients are CUDA's.
"""

import importlib.util
import shutil
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from llama_lab.model import flex
from llama_lab.model import masks as masks_module
from llama_lab.model.attention import AttentionConfig, ScoredAttention, build_attention
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from llama_lab.model.masks import BandedMask, Position, TiledMask
from llama_lab.model.norms import NormConfig
from llama_lab.model.positions import AlibiPosition
from tests.model.conftest import assert_rounded

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
LENGTH, WINDOW = 384, 150
FUSED = [{}, {"softcap": 2.0}, {"sinks": True}, {"softcap": 2.0, "sinks": True}]


@pytest.fixture
def serving_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks_module, "serves_text", lambda *_: True)
    monkeypatch.setattr(flex, "compiled", lambda: torch_flex.flex_attention)
    # Or it would trace itself at every call, which takes seconds.
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, raising=False)


@pytest.mark.parametrize("window", [1, 40, 127, 128, 129, 150, 256, 300])
def test_tiles_are_those_of_the_mask_written_out(window: int) -> None:
    def seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key > query - window)

    tiles = flex.sliding_tiles(window, 640, CPU)
    expected = torch_flex.create_block_mask(seen, None, None, 640, 640, device="cpu")
    assert torch.equal(tiles.to_dense(), expected.to_dense())
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(tiles, name), getattr(expected, name)), name
    ids = torch.arange(640)
    mask = tiles.mask_mod(ids, ids, ids[:, None], ids)
    assert torch.equal(mask, seen(ids, ids, ids[:, None], ids))


def layer(settings: dict[str, Any], n_kv_heads: int) -> Any:
    config = AttentionConfig(n_kv_heads=n_kv_heads, head_dim=16, **settings)
    attention = build_attention(config, 16, norm=NormConfig(), dropout=0.0)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=16**-0.5)
    return attention


@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
@pytest.mark.parametrize("settings", FUSED, ids=str)
@torch.no_grad()
def test_tiles_give_what_blocks_give(
    settings: dict[str, Any], n_kv_heads: int, serving_on_cpu: None
) -> None:
    torch.manual_seed(0)
    attention, x = layer(settings, n_kv_heads), torch.randn(2, LENGTH, 16)
    tiled = Position(WINDOW, flex=True).at(0, LENGTH, CPU)
    banded = Position(WINDOW).at(0, LENGTH, CPU)
    assert isinstance(tiled.mask, TiledMask)
    assert isinstance(banded.mask, BandedMask)
    assert isinstance(attention, ScoredAttention) is bool(settings)
    assert_rounded(attention(x, tiled), attention(x, banded))


def windowed(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Decoder:
    """A decoder of three layers, windowed, global and windowed, that flex attention may serve."""
    monkeypatch.setattr("llama_lab.model.decoder.serves_heads", lambda *_: True)
    config = {
        "dim": 32,
        "n_layers": 3,
        "context_length": LENGTH,
        "vocab_size": 11,
        "attention": {
            "n_heads": 4,
            "n_kv_heads": 2,
            "head_dim": 16,
            "window": WINDOW,
            "window_pattern": "LG",
            "softcap": 2.0,
            "sinks": True,
        },
        "init": {"std": 0.2},
        **settings,
    }
    decoder = Decoder(DecoderConfig.from_dict(config))
    initialise(decoder, 0)
    return decoder


@pytest.mark.parametrize("position", [{}, {"rope_fraction": 0.5}, {"kind": "learned"}], ids=str)
@torch.no_grad()
def test_a_decoder_gives_its_windowed_layers_tiles_and_says_the_same(
    position: dict[str, Any], serving_on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = windowed(monkeypatch, position=position)
    tokens = torch.randint(11, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    masks = [place.mask for place in decoder.layer_positions.at(0, LENGTH, CPU)]
    assert [isinstance(mask, TiledMask) for mask in masks] == [True, False, True]
    tiled = decoder(tokens)
    monkeypatch.setattr(masks_module, "serves_text", lambda *_: False)
    torch.testing.assert_close(tiled, decoder(tokens), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_alibi_keeps_to_blocks_which_carry_its_bias(
    serving_on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = windowed(monkeypatch, position={"kind": "alibi"})
    masks = [place.mask for place in decoder.layer_positions.at(0, LENGTH, CPU)]
    assert [isinstance(mask, BandedMask) for mask in masks] == [True, False, True]
    assert isinstance(
        decoder.layer_positions.of_kind[decoder.layer_positions.kinds[0]], AlibiPosition
    )


@torch.no_grad()
def test_a_block_with_tiles_is_compiled_as_one_graph(
    serving_on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise AssertionError("a kernel of its own within a graph")

    decoder = windowed(monkeypatch, n_layers=1)
    x, place = torch.randn(2, LENGTH, 32), decoder.layer_positions.at(0, LENGTH, CPU)[0]
    expected = decoder.blocks[0](x, place)
    monkeypatch.setattr(flex, "compiled", refuse)
    block = torch.compile(decoder.blocks[0], backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(block(x, place), expected, rtol=1e-4, atol=1e-5)


def test_heads_are_served_that_have_a_kernel_and_no_dropout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "triton" or None)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    widths = [8, 16, 24, 32, 64, 96, 128, 256]
    served = [width for width in widths if flex.serves_heads(width, 0.0)]
    assert served == [16, 32, 64, 128]
    assert not flex.serves_heads(64, 0.1)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert not flex.serves_heads(64, 0.0)
    monkeypatch.undo()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not flex.serves_heads(64, 0.0)


def test_texts_are_served_that_train_on_cuda_and_fill_their_tiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    major = {"major": 8}
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(**major)
    )
    assert flex.serves_text(0, 256, CUDA)
    assert not flex.serves_text(0, 256, CPU)
    assert not flex.serves_text(0, 250, CUDA)
    assert not flex.serves_text(128, 256, CUDA)
    with torch.no_grad():
        assert not flex.serves_text(0, 256, CUDA)
    major["major"] = 7
    assert not flex.serves_text(0, 256, CUDA)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA: no backward on the CPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("settings", FUSED, ids=str)
def test_gradients_through_tiles_are_those_through_blocks(
    settings: dict[str, Any], dtype: torch.dtype
) -> None:
    if not flex.serves_heads(16, 0.0) or not flex.serves_text(0, LENGTH, CUDA):
        pytest.skip("this machine has no kernels for flex attention")
    torch.manual_seed(0)
    attention = layer(settings, 2).to(CUDA, dtype)
    x = torch.randn(2, LENGTH, 16, device=CUDA, dtype=dtype, requires_grad=True)
    inputs = [x, *attention.parameters()]
    direction = torch.randn_like(x)
    found = []
    for position in (Position(WINDOW, flex=True), Position(WINDOW)):
        result = attention(x, position.at(0, LENGTH, CUDA))
        found.append((result, *torch.autograd.grad(result, inputs, direction)))
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for tiled, banded in zip(*found, strict=True):
        scale = banded.abs().max().item()
        torch.testing.assert_close(tiled, banded, rtol=tolerance, atol=tolerance * scale)
