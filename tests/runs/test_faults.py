"""A planted fault through the command line: trained, kept, resumed, and said."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from llama_lab.generation.generate import load_model
from llama_lab.inspect.faults import FAULTS
from tests.runs.conftest import Lab, equal_weights, flags

SHORT: dict[str, Any] = {"trainer__max_steps": 2, "trainer__val_check_interval": 2}


def probe(lab: Lab, path: str) -> dict[str, Any]:
    outcome = lab("describe", path, "--probe", "true", "--format", "json")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_model_is_trained_kept_rebuilt_and_told_apart(lab: Lab, fault: str) -> None:
    outcome = lab.fit(model__fault=fault, **SHORT)
    assert f"fault  {fault}" in outcome.out
    assert json.loads((lab.run() / "receipt.json").read_text())["fault"] == fault
    checkpoint = lab.checkpoint()
    assert checkpoint["llama_lab"]["fault"] == fault
    assert checkpoint["llama_lab"]["config"]["model"]["fault"] == fault
    assert checkpoint["hyper_parameters"]["fault"] == fault
    last = str(lab.run() / "checkpoints" / "last.ckpt")

    outcome = lab("generate", "--ckpt_path", last, "--max_new_tokens", "40")
    assert outcome.code == 0, outcome.err
    assert f"--model.fault {fault}" in outcome.err

    probed = probe(lab, last)
    assert probed["fault"] == fault
    assert probed["causal"] is (fault != "no_causal_mask")
    assert (probed["max_difference"] > 1e-4) is (fault == "no_causal_mask")

    line = lab.refused("export", last, "--output", "out")
    assert f"--model.fault {fault}" in line


@pytest.mark.parametrize("fault", FAULTS)
def test_scoring_and_resuming_keep_the_fault_and_resuming_refuses_another(
    lab: Lab, fault: str
) -> None:
    # A rate that does not fall is the same whatever the budget.
    steady = {**SHORT, "model__fault": fault, "model__schedule__min_lr_ratio": 1.0}
    lab.fit(**{**steady, "trainer__max_steps": 4}, name="whole")
    lab.fit(**steady)
    last = str(lab.run() / "checkpoints" / "last.ckpt")
    outcome = lab("validate", "--ckpt_path", last)
    assert outcome.code == 0, outcome.err
    scored = float(outcome.out.split("val_loss ")[1].split()[0])
    assert scored == pytest.approx(float(lab.metrics()[-1]["val_loss"]), rel=1e-5)
    line = lab.refused("fit", "--ckpt_path", last, "--model.fault", "null")
    assert f"--model.fault is {fault} there and null here" in line
    outcome = lab("fit", "--ckpt_path", last, "--trainer.max_steps", "4")
    assert outcome.code == 0, outcome.err
    assert lab.checkpoint()["llama_lab"]["fault"] == fault
    whole = torch.load(lab.run(0, "whole") / "checkpoints" / "last.ckpt", weights_only=True)
    assert equal_weights(lab.checkpoint(), whole)


def test_scoring_tries_a_fault_on_sound_weights_and_says_so(lab: Lab) -> None:
    lab.fit(**SHORT)
    last = str(lab.run() / "checkpoints" / "last.ckpt")
    scores = {}
    for fault in ("null", "kv_tiled"):
        outcome = lab("validate", "--ckpt_path", last, "--model.fault", fault)
        assert outcome.code == 0, outcome.err
        scores[fault] = outcome.out
    assert scores["null"] == lab("validate", "--ckpt_path", last).out
    assert scores["kv_tiled"] != scores["null"]
    assert "with --model.fault kv_tiled (null in training)" in outcome.err


def test_a_fault_changes_what_the_same_weights_compute(lab: Lab) -> None:
    lab.fit(**SHORT)
    path = lab.run() / "checkpoints" / "last.ckpt"
    sound = load_model(path)
    assert sound.fault is None
    text = torch.arange(12)[None]
    for fault in FAULTS:
        contents = torch.load(path, weights_only=True)
        contents["llama_lab"]["fault"] = fault
        torch.save(contents, lab.folder / "faulty.ckpt")
        faulty = load_model(lab.folder / "faulty.ckpt")
        with torch.no_grad():
            difference = (sound.decoder(text) - faulty.decoder(text)).abs().max()
        assert difference > 1e-5, fault
        assert faulty.fault == fault


def test_a_file_from_before_faults_is_sound(lab: Lab) -> None:
    lab.fit(**SHORT)
    path = lab.run() / "checkpoints" / "last.ckpt"
    contents = torch.load(path, weights_only=True)
    assert contents["llama_lab"].pop("fault", ...) is None
    del contents["llama_lab"]["config"]["model"]["fault"]
    torch.save(contents, path)
    assert load_model(path).fault is None
    assert probe(lab, str(path))["causal"] is True
    assert lab("validate", "--ckpt_path", str(path)).code == 0
    resumed = lab("fit", "--ckpt_path", str(path), "--trainer.max_steps", "3")
    assert resumed.code == 0, resumed.err


def test_old_weights_bring_their_fault_into_a_new_run_unless_it_chooses(lab: Lab) -> None:
    def starts(**choice: str | None) -> str:
        outcome = lab.fit(model__init_from=str(old), **choice, **SHORT)
        return next(line for line in outcome.out.splitlines() if line.startswith("fault  "))

    lab.fit(model__fault="no_final_norm", **SHORT)
    old = lab.run() / "checkpoints" / "last.ckpt"
    of_weights = "; the weights of --model.init_from were trained with no_final_norm, which is"
    planted = ": planted, this is no sound model"
    assert starts() == f"fault  no_final_norm{planted}{of_weights} kept"
    assert lab.checkpoint(number=1)["llama_lab"]["fault"] == "no_final_norm"
    assert starts(model__fault=None) == f"fault  none{of_weights} set aside by --model.fault"
    assert lab.checkpoint(number=2)["llama_lab"]["fault"] is None
    said = starts(model__fault="kv_tiled")
    assert said == f"fault  kv_tiled{planted}{of_weights} set aside by --model.fault"
    assert lab.checkpoint(number=3)["llama_lab"]["fault"] == "kv_tiled"


def test_the_same_seed_with_and_without_a_fault_starts_from_the_same_weights(lab: Lab) -> None:
    lab.fit(**SHORT)
    lab.fit(model__fault="unscaled_scores", **SHORT)
    receipts = [json.loads((lab.run(n) / "receipt.json").read_text()) for n in (0, 1)]
    assert receipts[0]["initial_weights"] == receipts[1]["initial_weights"]
    assert receipts[0]["fault"] is None
    assert not equal_weights(lab.checkpoint(number=0), lab.checkpoint(number=1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__fault": "no_mask"}, "must be rope_queries_only"),
        (
            {"model__fault": "no_final_norm", "model__decoder__norm__placement": "post"},
            "norm.placement post",
        ),
        ({"model__fault": "kv_tiled", "model__decoder__attention__n_kv_heads": 1}, "n_kv_heads 1"),
    ],
)
def test_a_fault_that_cannot_be_is_refused_in_one_line(
    lab: Lab, changes: dict[str, Any], words: str
) -> None:
    line = lab.refused("fit", *flags(**changes))
    assert "--model.fault" in line
    assert words in line


def test_help_lists_every_fault(lab: Lab) -> None:
    text = " ".join(lab("fit", "--help").out.split())
    entry = text.rsplit("--model.fault ", 1)[1].split(" --")[0]
    assert all(fault in entry for fault in FAULTS), entry
    assert "for teaching" in entry


def test_the_probe_is_refused_without_weights_and_with_other_settings(lab: Lab) -> None:
    assert "--probe true" in lab.refused("describe", "llama", "--probe", "true")
    lab.fit(**SHORT)
    last = str(lab.run() / "checkpoints" / "last.ckpt")
    line = lab.refused("describe", last, "--probe", "true", "--model.decoder.n_layers", "3")
    assert "--probe true" in line
    assert "--model.decoder" in line
    table = lab("describe", last, "--probe", "true").out
    assert "causal: true" in table
