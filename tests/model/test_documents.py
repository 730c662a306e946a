"""Documents in a row are read as if each were alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise

LENGTHS = [[5, 1, 9, 1], [16], [1, 3, 12]]
TOKENS = torch.randint(11, (3, 16), generator=torch.Generator().manual_seed(0))
NUMBERS = torch.stack(
    [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in LENGTHS]
)
KINDS: dict[str, dict[str, Any]] = {
    **{kind: {"position": {"kind": kind}} for kind in ("learned", "sinusoidal", "alibi", "none")},
    "rope": {},
    "interleaved": {"position": {"rope_pairing": "interleaved", "rope_fraction": 0.5}},
    "nope": {"position": {"nope_every": 2}},
    "scaled": {"position": {"rope_scaling": {"kind": "linear", "factor": 2.0}}},
    "window": {"attention": {"window": 3}},
    "windows, alibi": {
        "attention": {"window": 3, "window_pattern": "LG"},
        "position": {"kind": "alibi"},
    },
    "held": {"attention": {"softcap": 2.0, "sinks": True, "gate": True, "qk_norm": "head"}},
    "shift": {"token_shift": True},
    "post": {"norm": {"placement": "post"}, "embedding_scale": True},
}


def tiny(**settings: Any) -> Decoder:
    attention = {"n_heads": 4, "n_kv_heads": 2, **settings.pop("attention", {})}
    base = {"dim": 16, "n_layers": 2, "context_length": 16, "vocab_size": 11, "init": {"std": 0.4}}
    decoder = Decoder(DecoderConfig.from_dict({**base, **settings, "attention": attention}))
    initialise(decoder, 0)
    if decoder.token_shift is not None:  # it starts as nothing
        torch.nn.init.uniform_(decoder.token_shift.weight)
    return decoder


@pytest.mark.parametrize("kind", KINDS)
def test_each_document_is_read_as_if_it_were_alone(kind: str) -> None:
    decoder = tiny(**KINDS[kind])
    together = decoder(TOKENS, documents=NUMBERS)
    alone = torch.stack(
        [
            torch.cat([decoder(part[None])[0] for part in row.split(lengths)])
            for row, lengths in zip(TOKENS, LENGTHS, strict=True)
        ]
    )
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=1e-4)
    assert not torch.allclose(together, decoder(TOKENS), atol=1e-2)


@pytest.mark.parametrize("kind", ["rope", "learned", "alibi"])
def test_gradients_are_those_of_the_documents_alone(kind: str) -> None:
    decoder = tiny(**KINDS[kind])
    weights = [p for name, p in decoder.named_parameters() if name != "head.weight"]
    together = decoder(TOKENS, documents=NUMBERS).square().sum()
    parts = (p for row, n in zip(TOKENS, LENGTHS, strict=True) for p in row.split(n))
    alone = torch.stack([decoder(part[None]).square().sum() for part in parts]).sum()
    got, expected = (torch.autograd.grad(loss, weights) for loss in (together, alone))
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-3)


def test_a_number_for_all_tokens_changes_nothing() -> None:
    decoder = tiny()
    whole = decoder(TOKENS, documents=torch.full_like(TOKENS, 7))
    torch.testing.assert_close(whole, decoder(TOKENS), atol=1e-5, rtol=1e-5)


def test_a_document_is_scored_on_as_many_targets_as_without_a_mask() -> None:
    decoder = tiny().requires_grad_(False)
    losses = [
        decoder.score(TOKENS, TOKENS, reduction="sum", documents=documents)
        / decoder.score(TOKENS, TOKENS, reduction="mean", documents=documents)
        for documents in (None, NUMBERS)
    ]
    assert [round(float(count)) for count in losses] == [TOKENS.numel()] * 2
