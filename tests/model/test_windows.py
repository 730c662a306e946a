"""Windows: what is seen, that blocks change nothing, what a cache keeps, which layers have one."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from llama_lab.model.attention import Attention, AttentionConfig
from llama_lab.model.cache import DecoderCache
from llama_lab.model.config import layer_kinds
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from llama_lab.model.masks import Position
from llama_lab.model.positions import AlibiPosition
from llama_lab.model.rope.rotation import RotaryPosition

CPU = torch.device("cpu")
WINDOW = 4
# Below, at and above the window, twice the window and multiples of it.
LENGTHS = [1, 3, 4, 5, 7, 8, 9, 12, 21, 30]
POSITIONS = {
    "none": lambda: Position(WINDOW),
    "rope": lambda: RotaryPosition(8, 4, theta=100.0, pairing="half", window=WINDOW),
    "alibi": lambda: AlibiPosition(4, WINDOW),
}


def windowed_by_hand(attention: Attention, x: Tensor, position: Position, window: int) -> Tensor:
    """Every query by itself, over the slice of keys that its window holds."""
    positions = position.at(0, x.size(1), CPU)
    q, k, v = (w(x).unflatten(-1, (-1, 4)) for w in (attention.wq, attention.wk, attention.wv))
    q, k = positions.rotate(q), positions.rotate(k)
    outputs = []
    for t in range(x.size(1)):
        seen = range(max(0, t - window + 1), t + 1)
        heads = []
        for head in range(4):
            keys, values = k[:, seen, head // 2], v[:, seen, head // 2]
            scores = (keys @ q[:, t, head, :, None])[..., 0] / 4**0.5
            if isinstance(position, AlibiPosition):
                scores = scores - 2.0 ** (-2 * (head + 1)) * (t - torch.tensor(seen))
            heads.append((scores.softmax(-1)[..., None] * values).sum(1))
        outputs.append(torch.cat(heads, dim=-1))
    return attention.wo(torch.stack(outputs, dim=1))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("position", POSITIONS)
def test_a_token_sees_as_many_tokens_as_the_window_says_itself_included(
    position: str, length: int
) -> None:
    torch.manual_seed(0)
    attention = Attention(16, 4, 2, qkv_bias=True, output_bias=False, dropout=0.0)
    x = torch.randn(2, length, 16, requires_grad=True)
    made = POSITIONS[position]()
    result = attention(x, made.at(0, length, CPU))
    expected = windowed_by_hand(attention, x, made, WINDOW)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    direction = torch.randn_like(result)
    inputs = [x, attention.wq.weight, attention.wk.weight, attention.wv.weight]
    for got, wanted in zip(
        torch.autograd.grad(result, inputs, direction),
        torch.autograd.grad(expected, inputs, direction),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_a_window_makes_no_scores_that_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    attention = Attention(16, 4, 4, qkv_bias=False, output_bias=False, dropout=0.0)
    fused, n_scores = F.scaled_dot_product_attention, []

    def counting(q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> Tensor:
        n_scores.append(q.size(0) * q.size(2) * k.size(2))
        return fused(q, k, v, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counting)
    x = torch.randn(1, 64, 16)
    attention(x, Position(WINDOW).at(0, 64, CPU))
    assert sum(n_scores) <= 64 * 2 * WINDOW
    n_scores.clear()
    attention(x, Position().at(0, 64, CPU))
    assert sum(n_scores) == 64 * 64


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_block_with_a_window_is_compiled_as_one_graph(dropout: float) -> None:
    attention = {"n_kv_heads": 2, "window": 4, "softcap": 2.0, "sinks": True}
    decoder = tiny(dropout=dropout, attention=attention).train()
    x, positions = torch.randn(2, 21, 16), decoder.layer_positions.at(0, 21, CPU)[0]
    block = decoder.blocks[0]
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    gradients = []
    for layer in (compiled, block):
        torch.manual_seed(0)
        loss = layer(x, positions).square().sum()
        gradients.append(torch.autograd.grad(loss, list(block.parameters())))
    for got, expected in zip(*gradients, strict=True):
        # A compiled norm rounds otherwise; gradients are up to 20,000 here.
        rounding = 1e-5 * float(expected.abs().max())
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=rounding)


def tiny(**settings: Any) -> Decoder:
    config = {"dim": 16, "n_layers": 3, "context_length": 32, "vocab_size": 11, **settings}
    config["init"] = {"std": 0.4}
    decoder = Decoder(DecoderConfig.from_dict(config)).eval()
    initialise(decoder, 0)
    return decoder


CHUNKS = [[32], [1] * 32, [13, 1, 1, 9, 8], [3, 2, 27], [5, 20, 1, 1, 1, 1, 3], [7, 7, 7, 7, 4]]


@pytest.mark.parametrize("chunks", CHUNKS, ids=lambda chunks: "-".join(map(str, chunks)))
@pytest.mark.parametrize("window", [2, 4, 9, 31])
@pytest.mark.parametrize("position", [{"rope_local_theta": 50.0}, {"kind": "alibi"}])
@torch.no_grad()
def test_a_cache_changes_nothing_however_the_text_arrives(
    position: dict[str, Any], window: int, chunks: list[int]
) -> None:
    attention = {"n_kv_heads": 2, "window": window, "window_pattern": "LG"}
    decoder = tiny(position=position, attention=attention)
    tokens = torch.randint(11, (2, 32), generator=torch.Generator().manual_seed(0))
    expected = decoder(tokens)
    cache = DecoderCache(decoder.config, 2)
    for _ in range(2):  # a cache that was reset is as good as a new one
        parts = [decoder(part, cache) for part in tokens.split(chunks, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=1e-4, atol=1e-4)
        cache.reset()


def test_a_windowed_layer_keeps_the_window_and_a_global_one_the_text() -> None:
    attention = {"window": 16, "window_pattern": "LG"}
    config = tiny(context_length=4096, attention=attention).config
    lengths = [layer.keys.size(2) for layer in DecoderCache(config, 1).layers]
    assert lengths == [16 - 1 + 2, 4096, 16 - 1 + 2]


@torch.no_grad()
def test_nothing_older_than_the_window_reaches_a_token_through_one_layer() -> None:
    tokens = torch.randint(11, (1, 32), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[0, 10] = (other[0, 10] + 1) % 11
    decoder = tiny(n_layers=1, attention={"window": 5})
    changed = (decoder(tokens) - decoder(other)).abs().amax(-1)[0] > 1e-6
    assert changed.nonzero().flatten().tolist() == [10, 11, 12, 13, 14]


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [
        (None, [8] * 7),
        ("L", [8] * 7),
        ("LG", [8, None, 8, None, 8, None, 8]),
        ("LLLLLG", [8, 8, 8, 8, 8, None, 8]),
        ("GGL", [None, None, 8, None, None, 8, None]),
    ],
)
def test_a_pattern_is_laid_over_the_layers_again_and_again(
    pattern: str | None, windows: list[int | None]
) -> None:
    attention = AttentionConfig(window=8, window_pattern=pattern)
    kinds = layer_kinds(DecoderConfig(n_layers=7, attention=attention))
    assert [kind.window for kind in kinds] == windows


def test_layers_that_look_alike_share_what_they_know(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(
        RotaryPosition,
        "at",
        lambda self, *args, at=RotaryPosition.at: made.append(at(self, *args)) or made[-1],
    )
    position = {"rope_local_theta": 50.0, "nope_every": 4}
    decoder = tiny(n_layers=8, position=position, attention={"window": 4, "window_pattern": "LLG"})
    decoder(torch.zeros(1, 12, dtype=torch.long))
    assert len(made) == 2
    assert [kind.has_position for kind in decoder.layer_positions.kinds] == [True] * 3 + [False] + [
        True
    ] * 3 + [False]
