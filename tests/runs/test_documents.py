"""Corpora of documents train, with their bounds kept or not, and give the same work anywhere."""

from __future__ import annotations

import io
import json
import os
import threading

import numpy as np
import pytest
import torch

from llama_lab.data.batches import document_numbers
from tests.runs.conftest import TEXT, Lab, equal_weights, flags

LINES = [line for line in TEXT.split("\n") if line]


@pytest.fixture
def records(lab: Lab) -> Lab:
    """A folder with ``lines.jsonl``, a document a line."""
    (lab.folder / "lines.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in LINES))
    return lab


def test_document_numbers_are_those_of_a_count_by_hand() -> None:
    rng = np.random.default_rng(0)
    bounds = np.unique(np.concatenate(([0], rng.integers(0, 200, 30)))).astype(np.uint64)
    places = rng.integers(0, 180, 12)[:, None] + np.arange(20)
    expected = [[sum(int(b) <= p for b in bounds) for p in row] for row in places.tolist()]
    got = document_numbers(bounds, places)
    np.testing.assert_array_equal(got, np.array(expected) - np.array(expected)[:, :1])


@pytest.mark.parametrize("tokenizer", [pytest.param("char", marks=pytest.mark.slow), "bpe"])
def test_documents_train_and_a_loader_reads_what_the_device_holds(
    records: Lab, tokenizer: str
) -> None:
    size = {"data__vocab_size": 300} if tokenizer == "bpe" else {}
    shared = {"data__corpus": "lines.jsonl", "data__tokenizer": tokenizer, **size}
    shared |= {"trainer__max_steps": 4, "data__document_mask": True}
    records.fit(**shared, name="held")
    records.fit(**shared, name="loaded", data__num_workers=0)
    records.fit(**{**shared, "data__document_mask": False}, name="mixed")
    held, loaded, mixed = (
        torch.load(records.run(0, n) / "checkpoints" / "last.ckpt", weights_only=True)
        for n in ("held", "loaded", "mixed")
    )
    assert equal_weights(held, loaded)
    assert not equal_weights(held, mixed)
    targets = [records.metrics(name=n)[-1]["val_targets"] for n in ("held", "mixed")]
    assert targets[0] == targets[1]


def test_a_run_on_documents_is_resumed_to_the_bit(records: Lab) -> None:
    shared = {"data__corpus": "lines.jsonl", "data__document_mask": True}
    records.fit(**shared, name="whole", trainer__max_steps=6)
    records.fit(**shared, name="half", trainer__max_steps=3)
    outcome = records("fit", "--ckpt_path=last", "--name=half", "--trainer.max_steps=6")
    assert outcome.code == 0, outcome.err
    folders = [records.run(0, name) / "checkpoints" / "last.ckpt" for name in ("whole", "half")]
    receipts = [json.loads((f.parent.parent / "receipt.json").read_text()) for f in folders]
    assert receipts[0]["order"] == receipts[1]["order"]


def test_a_mask_without_documents_is_refused(lab: Lab) -> None:
    line = lab.refused("fit", *flags(data__document_mask=True))
    assert line.startswith("--data.document_mask true would do nothing")


def test_a_corpus_of_its_own_may_be_validated_on(records: Lab) -> None:
    (records.folder / "other.txt").write_text(TEXT[:2000])
    records.fit(data__corpus="lines.jsonl", data__val_corpus="other.txt", trainer__max_steps=2)
    assert records.metrics()[-1]["val_targets"] == "1999"
    line = records.refused(
        "fit", "--data.corpus=text.txt", "--data.val_corpus=other.txt", "--data.val_fraction=0.2"
    )
    assert line.startswith("--data.val_fraction 0.2 would do nothing")


def test_a_run_on_standard_input_goes_on_without_it(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    lab.fit(data__corpus="-", trainer__max_steps=2)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    loss = lab.metrics()[-1]["val_loss"]
    for verb in ("validate", "test"):
        outcome = lab(verb, "--name=tiny")
        assert f"_loss {float(loss)!r}\n" in outcome.out, outcome.err
    line = lab.refused("validate", "--name=tiny", "--data.val_fraction=0.3")
    assert "the run read a pipe, and these settings make another token store" in line
    line = lab.refused("validate", "--name=tiny", "--data.cache_dir=elsewhere")
    assert "its own token store is not in --data.cache_dir elsewhere: pipe the same text" in line
    outcome = lab("fit", "--ckpt_path=last", "--trainer.max_steps=4")
    assert outcome.code == 0, outcome.err
    plain = lab.fit(name="plain", trainer__max_steps=4)
    assert plain.code == 0
    orders = [
        json.loads((lab.run(0, name) / "receipt.json").read_text())["order"]
        for name in ("tiny", "plain")
    ]
    assert orders[0] == orders[1]


def test_text_that_is_piped_in_again_by_name_is_read(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def feed(text: str) -> None:
        buffer = io.BufferedReader(io.BytesIO(text.encode()))  # type: ignore[arg-type]
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(buffer))

    feed(TEXT)
    lab.fit(data__corpus="-", trainer__max_steps=2)
    feed(TEXT[:4000])
    assert "val_targets 399\n" in lab("validate", "--name=tiny", "--data.corpus=-").out
    feed("")
    piped = lab("validate", "--name=tiny", "--data.corpus=-")
    assert f"val_targets {lab.metrics()[-1]['val_targets']}\n" in piped.out, piped.err
    feed(TEXT[:4000])
    line = lab.refused("fit", "--ckpt_path=last", "--data.corpus=-", "--trainer.max_steps=4")
    assert "its tokens differ from those of the checkpoint" in line


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_run_on_a_named_pipe_goes_on_without_it(lab: Lab) -> None:
    pipe = lab.folder / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(TEXT,))
    writer.start()
    lab.fit(data__corpus="pipe", trainer__max_steps=2)
    writer.join()
    score = f"val_loss {float(lab.metrics()[-1]['val_loss'])!r}"
    assert score in lab("validate", "--name=tiny").out  # nothing is waited for
    pipe.unlink()
    assert score in lab("validate", "--name=tiny").out
    outcome = lab("fit", "--ckpt_path=last", "--trainer.max_steps=4")
    assert outcome.code == 0, outcome.err
