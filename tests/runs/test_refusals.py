"""Bad input: one line that names setting, value and remedy, exit code 2, nothing left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from llama_lab.cli import main
from llama_lab.yaml_text import parse_yaml
from tests.runs.conftest import TEXT, Lab, flags, start


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__decoder__norm__kind": "rmsnorn"}, ["norm.kind", "rmsnorn", "layernorm"]),
        ({"model__decoder__dim": "wide"}, ["--model.decoder.dim", "wide", "whole number"]),
        ({"model__decoder__attention__n_kv_heads": 3}, ["n_kv_heads 3", "n_heads 4", "1, 2, 4"]),
        ({"model__decoder__dim": 18}, ["dim 18", "n_heads 4"]),
        ({"model__decoder__dim": 12}, ["odd", "rope", "dim"]),
        ({"model__decoder__norm__bias": True}, ["norm.bias true", "rmsnorm", "norm.bias null"]),
        (
            {
                "model__decoder__position__kind": "learned",
                "model__decoder__position__rope_theta": 5,
            },
            ["rope_theta", "learned", "rope_theta null"],
        ),
        (
            {
                "model__decoder__feed_forward__kind": "gelu",
                "model__decoder__feed_forward__multiple_of": 8,
            },
            ["multiple_of 8", "gelu", "multiple_of null"],
        ),
        ({"data__vocab_size": 300}, ["--data.vocab_size 300", "char", "null"]),
        ({"data__corpus": "python-reference", "data__encoding": "latin-1"}, ["encoding", "null"]),
        ({"data__batch_size": 0}, ["--data.batch_size 0"]),
        ({"data__batch_size": 9, "trainer__accumulate_grad_batches": 2}, ["batch_size 9", "2"]),
        ({"data__val_fraction": 0}, ["--data.val_fraction 0"]),
        ({"data__corpus": "nowhere.txt"}, ["nowhere.txt", "python-reference"]),
        ({"data__corpus": "tests.txt"}, ["text.txt"]),
        ({"trainer__max_epochs": 3}, ["max_epochs 3", "max_steps"]),
        ({"trainer__fast_dev_run": True}, ["fast_dev_run", "max_steps"]),
        ({"trainer__val_check_interval": 0.5}, ["val_check_interval 0.5", "whole number"]),
        ({"trainer__max_steps": -1}, ["max_steps -1"]),
        (
            {"trainer__gradient_clip_val": None, "trainer__gradient_clip_algorithm": "norm"},
            ["gradient_clip_algorithm", "nothing", "null"],
        ),
        ({"trainer__logger": False}, ["--trainer.logger", "null"]),
        ({"seed_everything": True}, ["--seed_everything true"]),
        ({"name": "../up"}, ["--name", "../up"]),
        ({"model__optimizer__lr": 0}, ["optimizer.lr 0"]),
        ({"model__optimizer__betas": "[0.9, 1.5]"}, ["betas", "1.5"]),
        ({"model__schedule__min_lr_ratio": 2}, ["min_lr_ratio 2"]),
        ({"model__decoder__vocab_size": 5}, ["vocab_size 5", "null"]),
        ({"data__context_length": 64}, ["--data.context_length 64", "16"]),
        ({"checkpoint_every": 0}, ["--checkpoint_every 0"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_settings(lab: Lab, changes: dict[str, object], words: list[str]) -> None:
    line = lab.refused("fit", *flags(**changes))
    for word in words:
        assert word in line


def test_misspelt_flags_name_the_nearest(lab: Lab) -> None:
    line = lab.refused("fit", *flags(), "--model.decoder.norm.knid", "rmsnorm")
    assert "--model.decoder.norm.knid" in line
    assert "did you mean --model.decoder.norm.kind?" in line
    (lab.folder / "typo.yaml").write_text("model: {decoder: {dimm: 3}}\n")
    line = lab.refused("fit", "--config", "typo.yaml", *flags())
    assert "dimm" in line
    assert "--model.decoder.dim" in line


def test_misspelt_variables_name_the_nearest(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_LAB_MODEL__DECODER__DIMM", "3")
    assert "--model.decoder.dim" in lab.refused("fit", *flags())


def test_commands_and_configs_that_do_not_exist_name_the_nearest(lab: Lab) -> None:
    assert "did you mean generate?" in lab.refused("genrate")
    assert "did you mean llama" in lab.refused("fit", "--config", "lama.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", ["text.txt", "no text"]),
        (b"0123456789", ["9 tokens", "17", "context_length", "val_fraction"]),
        (b"x", ["0 tokens", "17"]),
        (b"good text then " + b"\xff" + b" bad" * 99, ["text.txt", "15", "0xFF"]),
    ],
    ids=["empty", "ten characters", "one character", "invalid UTF-8"],
)
def test_texts(lab: Lab, text: bytes, words: list[str]) -> None:
    (lab.folder / "text.txt").write_bytes(text)
    line = lab.refused("fit", *flags())
    for word in words:
        assert word.lower() in line.lower()


def test_a_validation_part_below_one_context_is_refused_with_both_numbers(lab: Lab) -> None:
    (lab.folder / "text.txt").write_text(TEXT[:3000])
    line = lab.refused("fit", *flags(model__decoder__context_length=512))
    for word in ("validation", "300", "513", "context_length", "--data.val_fraction"):
        assert word in line


def test_a_text_of_one_repeated_character_trains_and_says_so(lab: Lab) -> None:
    (lab.folder / "text.txt").write_text("a" * 5000)
    outcome = lab.fit()
    assert "single character" in outcome.out
    assert float(lab.metrics()[-1]["val_loss"]) == 0
    for prompt in ([], ["--prompt", ""]):
        made = lab("generate", "--max_new_tokens", "5", *prompt)
        assert (made.code, made.out) == (0, "aaaaa\n")
    line = lab.refused("generate", "--prompt", " é😀")
    assert "'é'" in line
    assert "U+1F600" in line


def test_line_ends_are_kept_as_they_are(lab: Lab) -> None:
    (lab.folder / "text.txt").write_bytes(b"one\r\ntwo\rthree\n" * 300)
    lab.fit()
    assert "\r" in lab.checkpoint()["llama_lab"]["tokenizer"]["characters"]


def test_a_log_folder_that_refuses_files_is_named(lab: Lab) -> None:
    Path("logs").write_text("in the way")
    line = lab.refused("fit", *flags())
    assert "--trainer.default_root_dir" in line
    Path("logs").unlink()
    Path("logs").mkdir(mode=0o555)
    if os.access("logs", os.W_OK):
        pytest.skip("this user may write everywhere")
    assert "--trainer.default_root_dir" in lab.refused("fit", *flags())


def test_a_traceback_is_there_for_those_who_ask(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_LAB_DEBUG", "1")
    with pytest.raises(Exception, match="no such command"):
        main(["genrate"])


def test_scoring_other_text_names_the_characters_a_char_tokenizer_lacks(lab: Lab) -> None:
    lab.fit()
    Path("other.txt").write_text("is 3 ∞ 4 Ω? " * 100, encoding="utf-8")
    line = lab.refused("validate", "--ckpt_path", "best", "--data.corpus", "other.txt")
    assert "∞" in line
    assert "Ω" in line


def test_a_longer_context_is_scored_unless_positions_are_learned(lab: Lab) -> None:
    lab.fit()
    longer = ["validate", "--ckpt_path", "best", "--data.context_length", "40"]
    scored = lab(*longer)
    assert scored.code == 0, scored.err
    lab.fit(model__decoder__position__kind="learned")
    line = lab.refused(*longer)
    assert "learned" in line
    assert "16" in line


def test_test_reports_what_validate_reports(lab: Lab) -> None:
    lab.fit()
    validated = lab("validate").out.replace("val_", "")
    assert lab("test").out.replace("test_", "") == validated


@pytest.mark.slow
def test_a_signal_while_scoring_ends_with_its_code(lab: Lab) -> None:
    lab.fit()
    Path("long.txt").write_text(TEXT * 200)
    arguments = ("--data.corpus", "long.txt", "--data.batch_size", "1")
    process = start(lab.folder, "validate", *arguments)
    stores = lab.folder / "data" / "cache"
    end = time.monotonic() + 60
    while not any("long.txt" in p.read_text() for p in stores.glob("*/info.json")):
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert err == "llama-lab: stopped by SIGTERM\n"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trainer__limit_val_batches": 2}, ["limit_val_batches 2", "every target"]),
        ({"trainer__limit_train_batches": 2}, ["limit_train_batches 2", "max_steps"]),
        ({"trainer__gradient_clip_val": -1}, ["gradient_clip_val -1", "null"]),
        ({"trainer__max_time": "00:00:01:00"}, ["max_time", "max_steps"]),
        ({"trainer__sync_batchnorm": True}, ["sync_batchnorm true", "sync_batchnorm false"]),
        ({"trainer__model_registry": "a"}, ["model_registry a", "model_registry null"]),
        ({"trainer__accumulate_grad_batches": 0}, ["accumulate_grad_batches 0"]),
        ({"trainer__strategy": "ddp_spawn"}, ["ddp_spawn", "ddp"]),
        ({"trainer__strategy": "foo"}, ["--trainer", "foo"]),
        ({"trainer__accelerator": "foo"}, ["--trainer", "foo"]),
        ({"trainer__devices": 0}, ["--trainer", "0"]),
        ({"trainer__precision": "16-mixed"}, ["16-mixed", "bf16-mixed"]),
        ({"trainer__profiler": "foo"}, ["--trainer", "profiler"]),
        ({"model__optimizer__betas": 0.9}, ["betas", "0.9", "list"]),
        ({"model__optimizer__betas": "[0.9]"}, ["betas", "2 values"]),
        ({"data__batch_size": None}, ["--data.batch_size null", "whole number"]),
        ({"trainer__max_steps": None}, ["max_steps null"]),
        ({"name": "x" * 300}, ["--name", "100"]),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_more_settings(lab: Lab, changes: dict[str, object], words: list[str]) -> None:
    line = lab.refused("fit", *flags(**changes))
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    "text",
    [
        "model: null",
        "trainer: null",
        "model: {optimizer: null}",
        "model: {decoder: {norm: null}}",
        "model: {optimizer: {betas: null}}",
        "data: {corpus: null}",
        "# nothing\n",
        "- a list",
        "a: [",
        "caf\xe9: 1",
    ],
)
def test_configs_that_hold_nothing_where_something_belongs(lab: Lab, text: str) -> None:
    Path("odd.yaml").write_bytes(text.encode("latin-1"))
    argv = [f for f in flags() if not f.startswith("--data.corpus")]
    line = lab.refused("fit", "--config", "odd.yaml", *argv)
    named = text.split(":")[0] if "null" in text else "odd.yaml"
    assert named in line


def test_a_callback_that_would_change_the_work_is_refused(lab: Lab) -> None:
    line = lab.refused(
        "fit",
        *flags(),
        "--trainer.callbacks=GradientAccumulationScheduler",
        "--trainer.callbacks.scheduling={0: 4}",
    )
    assert "--trainer.accumulate_grad_batches" in line


def test_flags_that_score_nothing_are_refused(lab: Lab) -> None:
    lab.fit()
    for flag in ("--trainer.max_steps=5", "--data.num_workers=2"):
        assert "would do nothing" in lab.refused("validate", flag)


@pytest.mark.parametrize("content", [b"hello", b"a: 1", b"\x80\x02K\x01.", b"PK\x03\x04"])
def test_files_that_are_no_checkpoints(lab: Lab, content: bytes) -> None:
    Path("odd.ckpt").write_bytes(content)
    for argv in (["fit"], ["validate"], ["generate"]):
        assert "odd.ckpt" in lab.refused(*argv, "--ckpt_path", "odd.ckpt")
    assert "odd.ckpt" in lab.refused("describe", "odd.ckpt")
    assert "odd.ckpt" in lab.refused("fit", *flags(model__init_from="odd.ckpt"))


def test_a_folder_that_only_looks_like_a_run_is_left_alone(lab: Lab) -> None:
    lab.fit()
    Path("mine/checkpoints").mkdir(parents=True)
    Path("mine/config.yaml").write_text("mine: true\n")
    last = lab.run() / "checkpoints" / "last.ckpt"
    Path("mine/checkpoints/last.ckpt").write_bytes(last.read_bytes())
    path = "mine/checkpoints/last.ckpt"
    assert lab("fit", "--ckpt_path", path, "--trainer.max_steps=14").code == 0
    assert Path("mine/config.yaml").read_text() == "mine: true\n"
    assert (lab.run(1) / "receipt.json").is_file()


def test_the_newest_run_without_a_checkpoint_is_not_passed_over(lab: Lab) -> None:
    lab.fit()
    (lab.run(1) / "checkpoints").mkdir(parents=True)
    (lab.run(1) / "config.yaml").write_text("a: 1\n")
    line = lab.refused("fit", "--ckpt_path", "last", "--name", "tiny", "--trainer.max_steps=14")
    assert "run_1" in line


def test_weights_alone_cannot_be_resumed_and_the_message_says_what_can_be_done(lab: Lab) -> None:
    lab.fit()
    path = lab.run() / "checkpoints" / "last.ckpt"
    contents = torch.load(path, weights_only=True)
    keep = ("state_dict", "global_step", "llama_lab", "pytorch-lightning_version")
    torch.save({k: contents[k] for k in keep}, "weights.ckpt")
    line = lab.refused("fit", "--ckpt_path", "weights.ckpt", "--trainer.max_steps=14")
    assert "--model.init_from" in line
    assert lab("validate", "--ckpt_path", "weights.ckpt").code == 0
    assert lab("fit", *flags(model__init_from="weights.ckpt")).code == 0
    del contents["state_dict"]["decoder.final_norm.weight"]
    torch.save(contents, "torn.ckpt")
    for verb in ("fit", "validate", "generate"):
        line = lab.refused(verb, "--ckpt_path", "torn.ckpt")
        assert "final_norm.weight is missing" in line


def test_a_whole_number_is_one_however_it_is_written_and_a_name_is_text(lab: Lab) -> None:
    assert lab("fit", *flags(trainer__max_steps="1e1", name="1e3")).code == 0
    assert lab.metrics(name="1e3")[-1]["step"] == "10"
    resumed = lab("fit", "--ckpt_path", "last", "--name", "1e3", "--trainer.max_steps", "1.2e1")
    assert resumed.code == 0, resumed.err
    assert lab.metrics(name="1e3")[-1]["step"] == "12"
    assert "12.5" in lab.refused("fit", *flags(trainer__max_steps="12.5"))


def test_configs_take_whole_numbers_and_names_as_they_are_written(lab: Lab) -> None:
    (lab.folder / "1e1").write_text(TEXT)
    config = """
name: 010
data: {corpus: 1e1}
model: {compile: off, optimizer: {lr: 1e-3}}
trainer: {max_steps: 1e1, val_check_interval: 1.0e+1, log_every_n_steps: 5.0}
"""
    (lab.folder / "odd.yaml").write_text(config)
    kept = [flag for flag in flags() if not flag.startswith(("--name", "--data.c", "--trainer."))]
    assert lab("fit", "--config=odd.yaml", *kept).code == 0
    assert [row["step"] for row in lab.metrics(name="010")] == ["5", "10"]
    saved = parse_yaml((lab.run(name="010") / "config.yaml").read_text(), "saved")
    assert (saved["name"], saved["data"]["corpus"], saved["model"]["compile"]) == (
        "010",
        "1e1",
        False,
    )
    # The run's own config makes the same run again, and its checkpoint goes on.
    again = str(lab.run(name="010") / "config.yaml")
    assert lab("fit", f"--config={again}", "--name=010").code == 0
    assert lab.metrics(1, name="010")[-1]["train_loss"] == lab.metrics(name="010")[-1]["train_loss"]
    assert lab("fit", "--ckpt_path=last", "--name=010", "--trainer.max_steps=1.1e1").code == 0


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ("name: a\nname: b", "twice.yaml: name stands twice, in lines 1 and 2; keep one"),
        (
            "trainer: {max_steps: 3}\ntrainer.max_steps: 4",
            "twice.yaml: trainer.max_steps stands twice, once with its group; keep one",
        ),
        (
            "model: {decoder: {dim: 8, n_layers: 1, dim: 16}}",
            "twice.yaml: dim stands twice, in lines 1 and 1; keep one",
        ),
    ],
)
def test_a_setting_that_stands_twice_is_refused(lab: Lab, config: str, line: str) -> None:
    (lab.folder / "twice.yaml").write_text(config)
    assert lab.refused("fit", "--config", "twice.yaml") == line
    assert lab.refused("fit", "--config", f"{config}\n").startswith("--config: ")
    (lab.folder / "preset.yaml").write_text("dim: 8\ndim: 16")
    for command in ("fit", "--model.decoder=preset.yaml"), ("describe", "preset.yaml"):
        words = "preset.yaml: dim stands twice, in lines 1 and 2; keep one"
        assert lab.refused(*command) == words
