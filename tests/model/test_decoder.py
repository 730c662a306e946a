"""The decoder as a whole: names, ties, scales, dropout, meta, compilation."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from llama_lab.model.attention import Attention, AttentionConfig
from llama_lab.model.cache import DecoderCache
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.feed_forward import FeedForwardConfig
from llama_lab.model.init_schemes import InitConfig
from llama_lab.model.initialise import initialise
from llama_lab.model.masks import Position
from llama_lab.model.norms import NORMS, NormConfig
from llama_lab.model.positions import POSITIONS

LOCAL_AND_GLOBAL = {"window": 3, "window_pattern": "LG"}


def tiny(**settings: Any) -> Decoder:
    config = {"dim": 16, "n_layers": 2, "context_length": 8, "vocab_size": 11, **settings}
    decoder = Decoder(DecoderConfig.from_dict(config)).eval()
    initialise(decoder, 0)
    return decoder


def test_parameters_have_the_names_that_checkpoints_use() -> None:
    llama = {name for name, _ in tiny(n_layers=1).named_parameters()}
    assert llama == {
        "embedding.weight",
        "blocks.0.attention_norm.weight",
        *(f"blocks.0.attention.{w}.weight" for w in ("wq", "wk", "wv", "wo")),
        "blocks.0.feed_forward_norm.weight",
        *(f"blocks.0.feed_forward.{w}.weight" for w in ("gate", "up", "down")),
        "final_norm.weight",
        "head.weight",
    }
    older = tiny(n_layers=1, position={"kind": "learned"}, feed_forward={"kind": "relu"})
    assert {name for name, _ in older.named_parameters()} == llama - {
        "blocks.0.feed_forward.gate.weight"
    } | {"position_embedding.weight"}
    attention = {"qk_norm": "head", "sinks": True, "gate": True}
    newer = tiny(n_layers=1, attention=attention, feed_forward={"swish_beta": "learned"})
    assert {name for name, _ in newer.named_parameters()} == llama | {
        *(f"blocks.0.attention.{name}.weight" for name in ("q_norm", "k_norm", "wg")),
        "blocks.0.attention.sinks",
        "blocks.0.feed_forward.activation.beta",
    }


@pytest.mark.parametrize("std", [0.02, 0.05])
@torch.no_grad()
def test_the_untrained_loss_is_what_the_initialisation_predicts(std: float) -> None:
    config = DecoderConfig(vocab_size=1719, n_layers=2, init=InitConfig(std=std))
    decoder = Decoder(config)
    initialise(decoder, 0)
    tokens, targets = torch.randint(
        1719, (2, 8, 128), generator=torch.Generator().manual_seed(0)
    ).unbind()
    loss = decoder.loss(decoder(tokens), targets, reduction="mean")
    # The final norm makes hidden states of unit mean square, so logits have variance dim · std².
    assert loss.item() == pytest.approx(math.log(1719) + 128 * std**2 / 2, abs=0.05)


def test_a_tied_head_is_the_embedding_and_stays_it() -> None:
    decoder = tiny(tie_embeddings=True)
    assert decoder.head_weight is decoder.embedding.weight
    assert not any("head" in name for name in decoder.state_dict())
    before = decoder.head_weight.detach().clone()
    optimizer = torch.optim.SGD(decoder.parameters(), lr=1.0)
    decoder.logits(decoder(torch.tensor([[1, 2]])))[..., 7].sum().backward()
    optimizer.step()
    assert not torch.equal(decoder.head_weight[7], before[7])
    assert torch.equal(decoder.embedding(torch.tensor([7]))[0], decoder.head_weight[7])


def test_an_untied_head_is_a_tensor_of_its_own() -> None:
    decoder = tiny(tie_embeddings=False)
    assert decoder.head_weight is decoder.state_dict(keep_vars=True)["head.weight"]
    assert not torch.equal(decoder.head_weight, decoder.embedding.weight)


def test_embedding_scale_multiplies_by_the_root_of_the_width() -> None:
    tokens = torch.tensor([[1, 2]])
    plain, scaled = tiny().embedding(tokens), tiny(embedding_scale=True).embedding(tokens)
    torch.testing.assert_close(scaled, plain * 4.0)


def test_a_token_shift_adds_a_share_of_the_embedding_before_with_and_without_a_cache() -> None:
    decoder = tiny(token_shift=True).requires_grad_(False)
    assert decoder.token_shift is not None
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    plain = decoder(tokens)
    torch.testing.assert_close(tiny()(tokens), plain)  # it starts as nothing
    share = nn.init.uniform_(decoder.token_shift.weight)
    embedded = decoder.embedding(tokens)
    expected = embedded.clone()
    expected[:, 1:] += share * embedded[:, :-1]
    given: list[Tensor] = []
    decoder.blocks[0].register_forward_pre_hook(lambda _, arguments: given.append(arguments[0]))
    whole = decoder(tokens)
    torch.testing.assert_close(given[0], expected)
    assert not torch.allclose(whole, plain, atol=1e-2)
    cache = DecoderCache(decoder.config, 1)
    parts = [decoder(part, cache) for part in tokens.split([1, 2, 3], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_dropout_acts_on_embeddings_sublayers_and_attention_weights_in_training_only() -> None:
    decoder = tiny(dropout=0.5)
    dropped: list[tuple[str, Tensor]] = []
    for name, module in decoder.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(
                lambda _module, _inputs, output, name=name: dropped.append((name, output))
            )
    tokens = torch.tensor([[1, 2, 3, 4]])
    calm = decoder(tokens)
    torch.testing.assert_close(calm, tiny(dropout=0.0)(tokens))
    dropped.clear()
    assert not torch.equal(decoder.train()(tokens), calm)
    names = [name for name, _ in dropped]
    assert names == ["dropout", *(f"blocks.{i}.dropout" for i in (0, 0, 1, 1))]
    for _, output in dropped:
        assert 0.2 < (output == 0).float().mean() < 0.8

    attention = Attention(16, 4, 4, qkv_bias=False, output_bias=False, dropout=0.5)
    x, positions = torch.randn(1, 4, 16), Position().at(0, 4, torch.device("cpu"))
    torch.testing.assert_close(attention.eval()(x, positions), attention(x, positions))
    # The first token sees itself alone: its weight of 1 is dropped, or doubled.
    first = torch.stack([attention.train()(x, positions)[0, 0] for _ in range(20)])
    assert len(first.unique(dim=0)) > 1


@torch.no_grad()
def test_a_logit_softcap_limits_logits_and_the_loss_alike() -> None:
    capped = tiny(logit_softcap=0.02, init={"std": 0.5})
    free = tiny(init={"std": 0.5})
    tokens = torch.tensor([[1, 2, 3, 4]])
    hidden, logits = free(tokens), free.logits(free(tokens))
    torch.testing.assert_close(capped(tokens), hidden)
    expected = 0.02 * torch.tanh(logits / 0.02)
    torch.testing.assert_close(capped.logits(hidden), expected)
    assert expected.abs().max() <= 0.02 < logits.abs().max()
    for decoder, scores in ((free, logits), (capped, expected)):
        losses = -scores.log_softmax(-1).gather(-1, tokens[..., None])
        torch.testing.assert_close(decoder.loss(hidden, tokens, reduction="mean"), losses.mean())
        torch.testing.assert_close(decoder.loss(hidden, tokens, reduction="sum"), losses.sum())


@pytest.mark.parametrize(
    "settings",
    [
        *({"position": {"kind": position}} for position in POSITIONS),
        *({"norm": {"kind": kind, "placement": "sandwich"}} for kind in NORMS),
        {
            "norm": {"kind": "dyt"},
            "attention": {"qk_norm": "head", "sinks": True, "gate": True, "qkv_bias": True},
            "feed_forward": {"swish_beta": "learned", "bias": True},
        },
    ],
)
@torch.no_grad()
def test_a_decoder_built_on_meta_equals_one_built_on_the_cpu(settings: dict[str, Any]) -> None:
    built = tiny(**settings)
    with torch.device("meta"):
        empty = Decoder(built.config)
    initialised = empty.to_empty(device="cpu").eval()
    for parameter in initialised.parameters():
        parameter.fill_(float("nan"))
    for module in initialised.modules():
        table = getattr(module, "table", torch.empty(0))
        assert table.device == torch.device("cpu"), "a compiled forward would be compiled twice"
    initialise(initialised, 0)
    with torch.device("meta"):
        loaded = Decoder(built.config).eval()
    loaded.load_state_dict(built.state_dict(), assign=True)
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    assert torch.equal(initialised(tokens), built(tokens))
    assert torch.equal(loaded(tokens), built(tokens))
    assert list(built.buffers()) == []


@pytest.mark.parametrize(
    "settings",
    [
        *({"position": {"kind": position}} for position in POSITIONS),
        {"attention": {"n_kv_heads": 2, **LOCAL_AND_GLOBAL}},
        {
            "norm": {"kind": "dyt", "placement": "sandwich"},
            "attention": {"qk_norm": "projection", "sinks": True, "softcap": 9.0, "gate": True},
            "feed_forward": {"swish_beta": "learned"},
            "logit_softcap": 9.0,
        },
    ],
)
def test_a_compiled_decoder_is_one_graph_compiled_once(settings: dict[str, Any]) -> None:
    decoder = tiny(**{"attention": {"n_kv_heads": 2}, **settings})
    graphs = []

    def backend(graph: torch.fx.GraphModule, _inputs: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(decoder, backend=backend, fullgraph=True)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]])
    for _ in range(3):
        torch.testing.assert_close(compiled(tokens), decoder(tokens))
    assert len(graphs) == 1


@torch.no_grad()
def test_a_full_or_foreign_cache_is_refused_before_anything_is_written() -> None:
    decoder = tiny()
    cache = DecoderCache(decoder.config, 1, length=4)
    decoder(torch.tensor([[1, 2, 3]]), cache)
    with pytest.raises(ValueError, match="4 positions holds 3 and got 2 more"):
        decoder(torch.tensor([[4, 5]]), cache)
    with pytest.raises(ValueError, match="for 1 texts got 2"):
        decoder(torch.tensor([[4], [5]]), cache)
    assert (cache.length, cache.capacity) == (3, 4)
    torch.testing.assert_close(
        decoder(torch.tensor([[4]]), cache)[:, -1], decoder(torch.tensor([[1, 2, 3, 4]]))[:, -1]
    )
    cache.reset()
    torch.testing.assert_close(
        decoder(torch.tensor([[9, 8]]), cache), decoder(torch.tensor([[9, 8]]))
    )


@torch.no_grad()
def test_a_cache_has_the_size_the_heads_and_the_precision_that_were_asked_for() -> None:
    decoder = tiny(attention={"n_kv_heads": 1}).to(torch.bfloat16)
    cache = DecoderCache(decoder.config, 3, dtype=torch.bfloat16)
    assert cache.capacity == decoder.config.context_length
    assert [layer.keys.shape for layer in cache.layers] == [(3, 1, 8, 4)] * 2
    tokens = torch.tensor([[1, 2, 3]]).expand(3, 3)
    decoder(tokens[:, :2], cache)
    torch.testing.assert_close(
        decoder(tokens[:, 2:], cache)[:, 0], decoder(tokens)[:, 2], rtol=1e-2, atol=1e-2
    )


def test_a_cache_keeps_no_graph_alive() -> None:
    decoder = tiny()
    cache = DecoderCache(decoder.config, 1)
    decoder(torch.tensor([[1, 2]]), cache)
    assert not any(layer.keys.requires_grad or layer.values.requires_grad for layer in cache.layers)


def test_every_parameter_gets_a_gradient() -> None:
    config = DecoderConfig(dim=16, n_layers=2, vocab_size=11, context_length=8)
    older = DecoderConfig.from_dict(
        {
            "position": {"kind": "learned"},
            "norm": {"kind": "layernorm", "placement": "post"},
            "attention": {"qkv_bias": True, "output_bias": True},
            "feed_forward": {"kind": "gelu", "bias": True},
            "dim": 16,
            "vocab_size": 11,
            "context_length": 8,
        }
    )
    gemma = DecoderConfig.from_dict(
        {
            "dim": 16,
            "n_layers": 2,
            "vocab_size": 11,
            "context_length": 8,
            "logit_softcap": 3.0,
            "norm": {"kind": "rmsnorm_offset", "placement": "sandwich"},
            "attention": {"head_dim": 6, "qk_norm": "head", "softcap": 5.0},
            "feed_forward": {"kind": "geglu_tanh"},
            "init": {"kind": "xavier"},
        }
    )
    odd = replace(
        gemma,
        norm=NormConfig(kind="dyt", placement="parallel"),
        attention=AttentionConfig(qk_norm="projection", sinks=True, gate=True),
        feed_forward=FeedForwardConfig(swish_beta="learned"),
    )
    outputs = replace(config, norm=NormConfig(placement="reordered"))
    for each in (config, older, replace(config, tie_embeddings=True), gemma, odd, outputs):
        decoder = Decoder(each)
        initialise(decoder, 0)
        tokens = torch.arange(8)[None]
        decoder.loss(decoder(tokens), tokens + 1, reduction="mean").backward()
        for name, parameter in decoder.named_parameters():
            assert parameter.grad is not None, name
            # A bias of the keys adds the same to all scores of a query, so softmax cancels it.
            assert name.endswith("wk.bias") or parameter.grad.abs().sum() > 0, name
