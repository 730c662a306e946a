"""What a finished run leaves, and that settings decide it."""

from __future__ import annotations

import csv
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from llama_lab.data.config import DataConfig
from llama_lab.data.datamodule import TextDataModule
from llama_lab.inspect.accounting import flops_per_token, on_meta
from llama_lab.inspect.ceilings import run_ceiling
from llama_lab.model.decoder import DecoderConfig
from llama_lab.training.module import LanguageModel
from llama_lab.training.optimizers import OPTIMIZERS, OptimizerConfig, OptimizerKind
from tests.runs.conftest import OF_THE_CLOCK, Lab, equal_weights, flags, write_yaml


def test_a_run_leaves_every_file_and_ends_with_what_to_do_next(lab: Lab) -> None:
    outcome = lab.fit()
    for name in (
        "config.yaml",
        "receipt.json",
        "metrics.csv",
        "checkpoints/best.ckpt",
        "checkpoints/last.ckpt",
    ):
        assert (lab.run() / name).is_file()
    assert list(lab.run().glob("events.out.tfevents.*"))
    for words in ("best validation loss", "times", "sample", "run_0", "generate", "tensorboard"):
        assert words in outcome.out
    assert "\x1b" not in outcome.out
    forbidden = set('<>:"\\|?*')  # by Windows, in a file's name
    assert not [path for path in lab.files() if forbidden & set("".join(path.parts))]


def test_the_run_is_validated_at_every_interval_and_at_its_last_step(lab: Lab) -> None:
    lab.fit()
    rows = lab.metrics()
    assert [int(r["step"]) for r in rows if r["val_loss"]] == [5, 10, 12]
    assert [int(r["step"]) for r in rows if r["train_loss"]] == list(range(1, 13))
    assert len({r["step"] for r in rows}) == len(rows)


def test_losses_are_logged_with_all_their_digits(lab: Lab) -> None:
    lab.fit()
    for row in lab.metrics():
        assert len(row["train_loss"].split(".")[1]) >= 6


def test_tensorboard_holds_the_same_numbers_and_a_sample_at_each_validation(lab: Lab) -> None:
    lab.fit()
    events = EventAccumulator(str(lab.run()))
    events.Reload()
    logged = {s.step: s.value for s in events.Scalars("loss/val")}
    for row in lab.metrics():
        if row["val_loss"]:
            assert logged[int(row["step"])] == pytest.approx(float(row["val_loss"]), rel=1e-6)
    assert [e.step for e in events.Tensors("sample/text_summary")] == [5, 10, 12]
    for tag in ("loss/train", *(f"speed/{name}" for name in OF_THE_CLOCK)):
        assert tag in events.Tags()["scalars"]


def test_mfu_is_the_flops_that_describe_counts_over_the_ceiling_of_the_run(lab: Lab) -> None:
    lab.fit(trainer__max_steps=3)
    config = DecoderConfig.from_dict(lab.checkpoint()["hyper_parameters"]["decoder"])
    per_token = flops_per_token(on_meta(config), context=16).training
    ceiling = run_ceiling(torch.device("cpu"), torch.float32)
    with (lab.run() / "metrics.csv").open() as file:
        rows = [{name: float(row[name]) for name in OF_THE_CLOCK} for row in csv.DictReader(file)]
    assert len(rows) == 3
    for row in rows:
        flops = row["tokens_per_second"] * per_token
        assert row["flops_per_second"] == pytest.approx(flops)
        assert row["mfu"] == pytest.approx(flops / ceiling)


def test_learning_rate_warms_up_then_follows_the_cosine(lab: Lab) -> None:
    lab.fit(
        model__schedule__warmup_steps=4,
        model__schedule__min_lr_ratio=0.25,
        model__optimizer__lr=0.008,
        trainer__max_steps=12,
        trainer__accumulate_grad_batches=2,
    )
    rates = [float(row["lr"]) for row in lab.metrics()]
    assert rates[:4] == pytest.approx([0.002, 0.004, 0.006, 0.008])
    half = 0.008 * (0.25 + 0.75 * 0.5 * (1 + math.cos(math.pi * 4 / 8)))
    assert rates[8] == pytest.approx(half)
    assert min(rates[4:]) == rates[-1] > 0.002


def test_bits_per_byte_divides_by_the_bytes_of_the_targets(lab: Lab) -> None:
    (lab.folder / "text.txt").write_text("añb→" * 800, encoding="utf-8")
    lab.fit(trainer__max_steps=2)
    row = [r for r in lab.metrics() if r["val_loss"]][-1]
    validation = ("añb→" * 800)[2880:]
    n_bytes = len(validation[1:].encode())
    nats = float(row["val_loss"]) * int(row["val_targets"])
    assert int(row["val_targets"]) == len(validation) - 1
    assert float(row["val_bits_per_byte"]) == pytest.approx(nats / math.log(2) / n_bytes)
    assert float(row["val_perplexity"]) == pytest.approx(math.exp(float(row["val_loss"])))


def test_receipt_proves_store_order_weights_and_work(lab: Lab) -> None:
    lab.fit()
    lab.fit(data__num_workers=0)
    lab.fit(seed_everything=4)
    a, b, c = (json.loads((lab.run(n) / "receipt.json").read_text()) for n in range(3))
    assert a["state"] == "finished"
    assert a["sequences"] == 12 * 8
    assert a["tokens"] == 12 * 8 * 16
    assert a["order"] == b["order"] != c["order"]
    assert a["initial_weights"] == b["initial_weights"] != c["initial_weights"]
    assert a["store"]["sha256"] == c["store"]["sha256"]
    assert {"attention", "feed_forward", "embedding"} <= set(a["initial_weights"])
    assert {"torch", "lightning", "python"} <= set(a["versions"])
    assert a["parameters"]["total"] == sum(a["parameters"]["by_part"].values())


def test_printed_config_runs_the_same_run(lab: Lab) -> None:
    config = write_yaml(
        lab.folder / "mine.yaml",
        {"model": {"decoder": {"dim": 32, "norm": {"kind": "layernorm"}, "dropout": 0.1}}},
    )
    arguments = flags(model__decoder__dim=..., name=...)
    assert lab("fit", "--config", str(config), *arguments).code == 0
    printed = lab("fit", "--config", str(config), *arguments, "--print_config")
    (lab.folder / "printed.yaml").write_text(printed.out)
    assert lab("fit", "--config", "printed.yaml").code == 0
    saved = lab.run(0, "mine") / "config.yaml"
    assert lab("fit", "--config", str(saved)).code == 0
    runs = [
        torch.load(lab.run(n, "mine") / "checkpoints" / "last.ckpt", weights_only=True)
        for n in range(3)
    ]
    assert equal_weights(runs[0], runs[1])
    assert equal_weights(runs[0], runs[2])
    assert yaml.safe_load(saved.read_text())["model"]["decoder"]["norm"]["kind"] == "layernorm"


def decoder_of(printed: str) -> dict[str, Any]:
    return yaml.safe_load(printed)["model"]["decoder"]


def test_a_preset_is_a_whole_decoder_and_single_flags_change_it(lab: Lab) -> None:
    preset = ["--model.decoder", "gpt2"]
    argv = ["--model.decoder.n_layers=3", "--config=llama.yaml", *preset, "--print_config"]
    decoder = decoder_of(lab("fit", *argv).out)
    assert (decoder["n_layers"], decoder["dim"], decoder["vocab_size"]) == (3, 768, 50257)
    # Nothing of the config's own decoder is left.
    assert decoder["attention"]["n_kv_heads"] is None
    assert decoder["position"]["kind"] == "learned"
    (lab.folder / "mine.yaml").write_text("model: {decoder: mini-2017, optimizer: {lr: 0.5}}\n")
    decoder = decoder_of(lab("fit", "--config=mine.yaml", "--print_config").out)
    assert decoder["norm"]["placement"] == "post"
    assert "did you mean gpt2?" in lab.refused("fit", "--model.decoder", "gpt3")


def test_a_decoder_file_is_found_beside_the_config_that_names_it(lab: Lab) -> None:
    (lab.folder / "sub").mkdir()
    (lab.folder / "sub" / "small.yaml").write_text("dim: 16\nn_layers: 1\ncontext_length: 16\n")
    (lab.folder / "sub" / "mine.yaml").write_text("model: {decoder: small.yaml}\n")
    argv = [flag for flag in flags(name=...) if "model.decoder" not in flag]
    assert lab("fit", "--config=sub/mine.yaml", *argv).code == 0
    assert lab("fit", "--ckpt_path=last", "--trainer.max_steps=14").code == 0
    assert "14" in (lab.run(0, "mine") / "metrics.csv").read_text()


def test_command_line_beats_environment_beats_configs_in_order(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, dim, layers, context in (("a", 16, 1, 8), ("b", 32, 2, 8)):
        decoder = {"dim": dim, "n_layers": layers, "context_length": context}
        write_yaml(lab.folder / f"{name}.yaml", {"model": {"decoder": decoder}})
    monkeypatch.setenv("LLAMA_LAB_MODEL__DECODER__N_LAYERS", "3")
    monkeypatch.setenv("LLAMA_LAB_MODEL__DECODER__CONTEXT_LENGTH", "12")
    argv = ["--model.decoder.context_length", "10", "--config", "a.yaml", "--config", "b.yaml"]
    printed = yaml.safe_load(lab("fit", *argv, "--print_config").out)
    decoder = printed["model"]["decoder"]
    assert (decoder["dim"], decoder["n_layers"], decoder["context_length"]) == (32, 3, 10)
    assert printed["name"] == "a"


def test_accumulation_equals_the_big_batch(lab: Lab) -> None:
    lab.fit(trainer__max_steps=6)
    lab.fit(trainer__max_steps=6, trainer__accumulate_grad_batches=4)
    big, small = lab.checkpoint(number=0), lab.checkpoint(number=1)
    for name, weight in big["state_dict"].items():
        torch.testing.assert_close(small["state_dict"][name], weight, atol=1e-5, rtol=1e-5)
    for one, other in zip(lab.metrics(0), lab.metrics(1), strict=True):
        assert one["step"] == other["step"]
        assert one["lr"] == other["lr"]
        assert float(one["train_loss"]) == pytest.approx(float(other["train_loss"]), rel=1e-5)


def test_bf16_mixed_trains_close_to_float32(lab: Lab) -> None:
    lab.fit(trainer__max_steps=8)
    lab.fit(trainer__max_steps=8, trainer__precision="bf16-mixed")
    full, mixed = (float(lab.metrics(n)[-1]["val_loss"]) for n in range(2))
    assert mixed == pytest.approx(full, rel=1e-2)
    assert mixed != full


def test_gradient_norm_is_logged_before_clipping(lab: Lab) -> None:
    lab.fit(trainer__max_steps=3, trainer__gradient_clip_val=1e-3)
    lab.fit(trainer__max_steps=3, trainer__gradient_clip_val=None)
    clipped, free = (float(lab.metrics(n)[0]["grad_norm"]) for n in range(2))
    assert clipped == pytest.approx(free, rel=1e-5)
    assert free > 1e-2


def test_a_z_loss_is_in_the_gradient_and_in_no_logged_loss(lab: Lab) -> None:
    lab.fit(trainer__max_steps=1)
    lab.fit(trainer__max_steps=1, model__z_loss=0.1)
    (plain,), (added,) = (lab.metrics(n) for n in range(2))
    assert plain["train_loss"] == added["train_loss"]
    assert float(added["grad_norm"]) > 1.01 * float(plain["grad_norm"])


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_float16_clips_gradients_without_its_loss_scale(lab: Lab, kind: OptimizerKind) -> None:
    norms = []
    for plugins in ([], [MixedPrecision("16-mixed", "cpu")]):
        model = LanguageModel(
            decoder=DecoderConfig(dim=16, n_layers=1, context_length=16),
            optimizer=OptimizerConfig(kind=kind),
        )
        trainer = Trainer(
            max_steps=1,
            accelerator="cpu",
            plugins=plugins,
            gradient_clip_val=1.0,
            limit_val_batches=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, datamodule=TextDataModule(DataConfig(corpus="text.txt", batch_size=8)))
        assert model.grad_norm is not None
        norms.append(model.grad_norm.item())
    assert norms[1] == pytest.approx(norms[0], rel=1e-2)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_step_and_checkpoint(lab: Lab) -> None:
    outcome = lab(
        "fit",
        *flags(
            model__optimizer__lr=1e30,
            trainer__gradient_clip_val=None,
            model__schedule__warmup_steps=0,
            checkpoint_every=1,
        ),
    )
    assert outcome.code == 1
    assert "step" in outcome.err
    assert "checkpoint" in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert json.loads((lab.run() / "receipt.json").read_text())["state"] == "failed"


def test_overfitting_is_said_in_the_last_lines(lab: Lab) -> None:
    noise = random.Random(0).choices("abcdefghijklmnopq", k=700)
    (lab.folder / "text.txt").write_text("".join(noise))
    outcome = lab.fit(
        trainer__max_steps=150,
        trainer__val_check_interval=25,
        model__decoder__dim=64,
        model__optimizer__lr=0.01,
        data__val_fraction=0.2,
    )
    assert "by heart" in outcome.out


def test_a_model_vocabulary_above_the_tokenizers_is_kept_and_said(lab: Lab) -> None:
    outcome = lab.fit(model__decoder__vocab_size=100)
    assert "never sampled" in outcome.out
    assert lab.checkpoint()["state_dict"]["decoder.embedding.weight"].shape[0] == 100


def test_python_users_load_a_checkpoint_with_lightnings_own_call(lab: Lab) -> None:
    lab.fit()
    path = lab.run() / "checkpoints" / "last.ckpt"
    model = LanguageModel.load_from_checkpoint(path)
    saved = lab.checkpoint()["state_dict"]
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, saved[name])
    assert model.tokenizer is not None
    assert model.tokenizer.decode(model.tokenizer.encode("12 times")) == "12 times"


def test_bpe_run_trains_and_generates_from_the_checkpoint_alone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lab.fit(data__tokenizer="bpe", data__vocab_size=300, model__decoder__tie_embeddings=True)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    checkpoint = elsewhere / "model.ckpt"
    checkpoint.write_bytes((lab.run() / "checkpoints" / "best.ckpt").read_bytes())
    monkeypatch.chdir(elsewhere)
    arguments = ["--ckpt_path", str(checkpoint), "--prompt", "4 times", "--max_new_tokens", "9"]
    outcome = lab("generate", *arguments)
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("4 times")
    assert sorted(Path().iterdir()) == [Path("model.ckpt")]


def test_divergence_names_the_last_good_checkpoint(lab: Lab) -> None:
    settings = {
        "trainer__max_steps": 300,
        "trainer__val_check_interval": 2,
        "checkpoint_every": 1000,
        "model__optimizer__lr": 1e5,
        "model__schedule__warmup_steps": 300,
        "trainer__gradient_clip_val": None,
    }
    outcome = lab("fit", *flags(**settings))
    assert outcome.code == 1
    assert len(outcome.err.strip().splitlines()) == 1
    best = lab.run() / "checkpoints" / "best.ckpt"
    assert str(best.relative_to(lab.folder)) in outcome.err
    assert "not finite at step" in outcome.err
    assert all(torch.isfinite(w).all() for w in lab.checkpoint("best")["state_dict"].values())


def test_the_receipt_of_a_failed_run_speaks_of_its_last_checkpoint(lab: Lab) -> None:
    settings = {"trainer__max_steps": 300, "model__optimizer__lr": 1e5, "checkpoint_every": 1}
    lab(
        "fit",
        *flags(**settings, model__schedule__warmup_steps=300, trainer__gradient_clip_val=None),
    )
    receipt = json.loads((lab.run() / "receipt.json").read_text())
    step = lab.checkpoint()["global_step"]
    assert step > 0
    assert (receipt["state"], receipt["steps"]) == ("failed", step)
    assert receipt["sequences"] == step * 8
    assert int(receipt["order"], 16)


def test_early_stopping_stops_and_the_run_says_where(lab: Lab) -> None:
    outcome = lab(
        "fit",
        *flags(trainer__max_steps=500, trainer__val_check_interval=2),
        "--trainer.callbacks=EarlyStopping",
        "--trainer.callbacks.monitor=val_loss",
        "--trainer.callbacks.stopping_threshold=100",
    )
    assert outcome.code == 0, outcome.err
    assert lab.checkpoint()["global_step"] == 2
    assert json.loads((lab.run() / "receipt.json").read_text())["state"] == "stopped"


def test_a_second_run_and_a_resume_find_the_store_of_the_first(lab: Lab) -> None:
    lab.fit(data__tokenizer="bpe", data__vocab_size=300)
    lab.fit(data__tokenizer="bpe", data__vocab_size=300)
    assert lab("fit", "--ckpt_path", "last", "--trainer.max_steps=14").code == 0
    assert lab("validate").code == 0
    kept = {entry.name for entry in (lab.folder / "data" / "cache").iterdir()}
    assert len(kept - {"sources"}) == 1


def test_a_run_reads_its_corpus_once(lab: Lab, corpus_reads: list[str]) -> None:
    lab.fit(trainer__max_steps=1)
    assert corpus_reads == ["text.txt"]
    lab.fit(trainer__max_steps=1)  # the file is as it was
    assert corpus_reads == ["text.txt"]
    text = lab.folder / "text.txt"
    text.write_text(text.read_text() + "more")
    lab.fit(trainer__max_steps=1)
    assert corpus_reads == ["text.txt"] * 2


def test_the_python_interface_trains_scores_and_goes_on(lab: Lab) -> None:
    def trainer() -> Trainer:
        return Trainer(
            max_steps=4,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            val_check_interval=2,
            check_val_every_n_epoch=None,
        )

    config = DecoderConfig(dim=16, n_layers=1, context_length=16)
    model = LanguageModel(decoder=config)
    data = TextDataModule(DataConfig(corpus="text.txt", batch_size=8))
    running = trainer()
    running.fit(model, datamodule=data)
    (scores,) = trainer().validate(model, datamodule=data)
    assert scores["val_targets"] == 1211
    running.save_checkpoint("python.ckpt")
    score = ["validate", "--data.corpus=text.txt"]
    for argv in (score, ["generate", "--max_new_tokens=5"]):
        outcome = lab(*argv, "--ckpt_path", "python.ckpt")
        assert outcome.code == 0, outcome.err
    again = lab(
        "fit",
        *[f for f in flags(model__init_from="python.ckpt") if "model.decoder" not in f],
    )
    assert again.code == 0, again.err
    assert "--model.init_from" in lab.refused("fit", "--ckpt_path", "python.ckpt")
