"""Models of other parts than LLaMA's, through the real command line."""

from __future__ import annotations

from typing import Any

import pytest

from llama_lab.checkpoints import read_record
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.initialise import initialise
from tests.runs.conftest import Lab

GEMMA: dict[str, Any] = {
    "tie_embeddings": True,
    "embedding_scale": True,
    "logit_softcap": 30.0,
    "norm.kind": "rmsnorm_offset",
    "norm.placement": "sandwich",
    "attention.head_dim": 6,
    "attention.softcap": 50.0,
    "feed_forward.kind": "geglu_tanh",
}
OLMO: dict[str, Any] = {"norm.placement": "reordered", "attention.qk_norm": "projection"}
MIXED: dict[str, Any] = {
    "embedding_scale": True,
    "norm.kind": "dyt",
    "norm.placement": "parallel",
    "attention.qk_norm": "head",
    "attention.sinks": True,
    "attention.gate": True,
    "feed_forward.swish_beta": "learned",
    "init.kind": "xavier",
}
OLD: dict[str, Any] = {
    "norm.kind": "rmsnorm_plain",
    "feed_forward.kind": "relu_squared",
    "init.kind": "zero_output",
}


@pytest.mark.parametrize(
    "settings", [GEMMA, OLMO, MIXED, OLD], ids=["gemma", "olmo", "mixed", "old"]
)
def test_a_model_of_other_parts_trains_every_part_of_it_and_generates(
    lab: Lab, settings: dict[str, Any]
) -> None:
    lab.fit(**{f"model.decoder.{name}": value for name, value in settings.items()})
    losses = [float(row["val_loss"]) for row in lab.metrics() if row["val_loss"]]
    assert losses[-1] < losses[0]

    record = read_record(lab.run() / "checkpoints" / "last.ckpt")
    start = Decoder(DecoderConfig.from_dict(record.decoder))
    initialise(start, 3)
    for name, value in start.state_dict().items():
        assert not value.equal(record.weights[name]), f"{name} was not trained"

    outcome = lab("generate", "--prompt", "3 times", "--max_new_tokens", "30", "--temperature", "0")
    assert outcome.code == 0
    assert len(outcome.out.rstrip("\n")) == len("3 times") + 30
