"""A run that was stopped anywhere ends as the run that was not."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from tests.runs.conftest import Lab, equal_weights, flags, start

STEPS = 40


def exact(**changes: object) -> list[str]:
    """A run with all that a resume could lose: dropout, accumulation, intervals out of phase."""
    settings: dict[str, object] = {
        "model__decoder__dropout": 0.1,
        "trainer__accumulate_grad_batches": 2,
        "trainer__max_steps": STEPS,
        "trainer__val_check_interval": 7,
        "trainer__log_every_n_steps": 3,
        "checkpoint_every": 4,
    }
    return flags(**{**settings, **changes})


def wait_for(path: Path, seconds: float = 90) -> None:
    """Wait until a file is there."""
    end = time.monotonic() + seconds
    while not path.is_file():
        assert time.monotonic() < end, f"no {path}"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "workers", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (None, 0))]
)
def test_killed_at_a_random_step_and_resumed_it_ends_the_same_to_the_bit(
    lab: Lab, workers: int | None
) -> None:
    assert lab("fit", *exact(data__num_workers=workers, name="whole")).code == 0
    rng = random.Random(f"{workers}")
    process = start(lab.folder, "fit", *exact(data__num_workers=workers))
    wait_for(lab.run() / "checkpoints" / "last.ckpt")
    time.sleep(rng.uniform(0.0, 0.4))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    stopped_at = lab.checkpoint()["global_step"]
    if stopped_at == STEPS:
        pytest.fail("the run ended before it was killed: make it longer")

    assert lab("fit", "--ckpt_path", "last", "--name", "tiny").code == 0
    whole = torch.load(lab.run(0, "whole") / "checkpoints" / "last.ckpt", weights_only=True)
    assert lab.checkpoint()["global_step"] == STEPS
    assert equal_weights(lab.checkpoint(), whole)
    assert not lab.run(1).exists()
    assert lab.metrics() == lab.metrics(name="whole")
    receipts = [
        json.loads((lab.run(0, name) / "receipt.json").read_text()) for name in ("tiny", "whole")
    ]
    for key in ("order", "sequences", "tokens", "initial_weights", "best"):
        assert receipts[0][key] == receipts[1][key]


def logged_steps(folder: Path, tag: str) -> list[int]:
    """Steps of a tag over all event files of a run, as they lie on disk."""
    steps = []
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            steps += [event.step for value in event.summary.value if value.tag == tag]
    return steps


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"]
)
def test_a_signal_saves_the_step_it_stops_at_and_the_records_have_no_gap(
    lab: Lab, signum: signal.Signals, code: int
) -> None:
    arguments = flags(trainer__max_steps=5000, trainer__val_check_interval=1000)
    process = start(lab.folder, "fit", *arguments)
    wait_for(lab.run() / "config.yaml")
    metrics = lab.run() / "metrics.csv"
    wait_for(metrics)
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "--ckpt_path" in err
    assert "Traceback" not in err
    assert json.loads((lab.run() / "receipt.json").read_text())["state"] == "stopped"
    step = lab.checkpoint()["global_step"]
    end = step + 4
    resumed = lab("fit", "--ckpt_path", str(lab.run()), "--trainer.max_steps", str(end))
    assert resumed.code == 0, resumed.err
    assert "restated" in resumed.out
    expected = list(range(1, end + 1))
    assert [int(r["step"]) for r in lab.metrics() if r["train_loss"]] == expected
    assert logged_steps(lab.run(), "loss/train") == expected


def test_records_behind_the_checkpoint_are_dropped_when_resumed(lab: Lab) -> None:
    lab.fit(trainer__max_steps=12, checkpoint_every=4)
    best = lab.run() / "checkpoints" / "best.ckpt"
    early = torch.load(best, weights_only=True)["global_step"]
    lab("fit", "--ckpt_path", str(best), "--trainer.max_steps", "14")
    assert early <= 12
    assert [int(r["step"]) for r in lab.metrics()] == list(range(1, 15))
    assert logged_steps(lab.run(), "loss/train") == list(range(1, 15))


def test_accumulation_and_workers_may_change_and_the_work_stays_the_same(lab: Lab) -> None:
    """The data's place is kept as sequences consumed, not as batches of some size."""
    lab.fit(trainer__max_steps=12)
    lab.fit(trainer__max_steps=6, trainer__val_check_interval=6, name="half")
    half = lab.run(0, "half")
    resumed = lab(
        "fit",
        "--ckpt_path",
        str(half),
        "--trainer.max_steps=12",
        "--trainer.accumulate_grad_batches=4",
        "--data.num_workers=0",
    )
    assert resumed.code == 0, resumed.err
    orders = [
        json.loads((folder / "receipt.json").read_text())["order"] for folder in (lab.run(), half)
    ]
    assert orders[0] == orders[1]
    steps = [int(r["step"]) for r in lab.metrics(name="half") if r["val_loss"]]
    assert steps == [6, 12]


def test_a_checkpoint_that_contradicts_explicit_settings_is_refused_with_both(lab: Lab) -> None:
    lab.fit()
    last = str(lab.run() / "checkpoints" / "last.ckpt")
    line = lab.refused("fit", "--ckpt_path", last, "--model.decoder.dim", "32")
    assert "--model.decoder.dim is 16 there and 32 here" in line
    (lab.folder / "other.yaml").write_text("model: {optimizer: {lr: 0.5}}\ndata: {batch_size: 4}\n")
    line = lab.refused("fit", "--config", "other.yaml", "--ckpt_path", last)
    assert "lr is 0.001 there and 0.5 here" in line
    assert "batch_size is 8 there and 4 here" in line
    line = lab.refused("validate", "--ckpt_path", last, "--model.decoder.n_layers", "3")
    assert "n_layers is 2 there and 3 here" in line


def test_resuming_on_another_text_is_refused(lab: Lab) -> None:
    lab.fit()
    (lab.folder / "text.txt").write_text((lab.folder / "text.txt").read_text()[::-1])
    line = lab.refused("fit", "--ckpt_path", "last", "--trainer.max_steps", "20")
    assert "--data.corpus" in line
    assert "differ" in line


def test_a_finished_run_that_is_resumed_is_left_as_it_is(lab: Lab) -> None:
    lab.fit()
    receipt = lab.run() / "receipt.json"
    finished = receipt.read_text()
    # As a kill leaves it that comes between the last checkpoint and the last receipt.
    receipt.write_text(finished.replace('"finished"', '"running"'))
    before = {f: f.read_bytes() for f in lab.run().rglob("*") if f.is_file() and f != receipt}
    again = lab("fit", *flags(), "--ckpt_path", "last")
    assert again.code == 0, again.err
    assert "nothing is left to train" in again.out
    assert receipt.read_text() == finished
    assert before == {f: f.read_bytes() for f in before}
    line = lab.refused("fit", "--ckpt_path", "last", "--trainer.max_steps", "5")
    assert "--trainer.max_steps 5" in line


def test_last_without_a_run_is_an_error_and_not_a_fresh_start(lab: Lab) -> None:
    assert "--ckpt_path last" in lab.refused("fit", *flags(), "--ckpt_path", "last")


def test_a_truncated_checkpoint_is_named(lab: Lab) -> None:
    lab.fit()
    last = lab.run() / "checkpoints" / "last.ckpt"
    whole = last.read_bytes()
    for size in (0, 100, len(whole) // 2, len(whole) - 10):
        last.write_bytes(whole[:size])
        for verb in ("fit", "validate", "generate"):
            line = lab.refused(verb, "--ckpt_path", str(last))
            assert str(last) in line
            assert "not a whole checkpoint" in line


def test_init_from_starts_a_fresh_run_from_old_weights(lab: Lab) -> None:
    lab.fit()
    (lab.folder / "text.txt").write_text("1 times 1 is 1, and 2 less one is 1;\n" * 100)
    last = lab.run() / "checkpoints" / "last.ckpt"
    changes = {"model__optimizer__lr": 1e-9, "model__decoder__dropout": 0.1}
    lab.fit(**changes, model__init_from=str(last), trainer__max_steps=1)
    old, new = lab.checkpoint(number=0), lab.checkpoint(number=1)
    assert new["global_step"] == 1
    assert new["llama_lab"]["tokenizer"] == old["llama_lab"]["tokenizer"]
    for name, weight in old["state_dict"].items():
        torch.testing.assert_close(new["state_dict"][name], weight, atol=1e-6, rtol=0)
    line = lab.refused("fit", *flags(model__init_from=str(last), model__decoder__dim=32))
    assert "--model.decoder.dim is 16 there and 32 here" in line


def test_init_from_names_the_tensor_that_does_not_fit(lab: Lab) -> None:
    learned = {"model__decoder__position__kind": "learned"}
    lab.fit(**learned, trainer__max_steps=1)
    old = lab.run() / "checkpoints" / "last.ckpt"
    longer = flags(**learned, model__init_from=str(old), model__decoder__context_length=32)
    line = lab.refused("fit", *longer)
    assert line.startswith(f"--model.init_from {old}: ")
    assert "position_embedding.weight has shape [16, 16] instead of [32, 16]" in line
    assert "give the checkpoint's own settings" in line


def test_init_from_can_be_resumed_without_the_old_file(lab: Lab) -> None:
    lab.fit()
    old = lab.run() / "checkpoints" / "last.ckpt"
    lab.fit(model__init_from=str(old), name="new", trainer__max_steps=4)
    old.unlink()
    outcome = lab("fit", "--ckpt_path", "last", "--name", "new", "--trainer.max_steps", "6")
    assert outcome.code == 0, outcome.err


def test_init_from_takes_a_run_folder(lab: Lab) -> None:
    lab.fit()
    lab.fit(model__init_from="logs/tiny/run_0", trainer__max_steps=1, model__optimizer__lr=1e-9)
    for name, weight in lab.checkpoint(number=0)["state_dict"].items():
        torch.testing.assert_close(
            lab.checkpoint(number=1)["state_dict"][name], weight, atol=1e-6, rtol=0
        )
    line = lab.refused("fit", *flags(model__init_from="nowhere"))
    assert "--model.init_from nowhere" in line


def test_scoring_does_not_ask_for_the_devices_of_training(lab: Lab) -> None:
    lab.fit()
    path = lab.run() / "checkpoints" / "best.ckpt"
    contents = torch.load(path, weights_only=True)
    contents["llama_lab"]["config"]["trainer"] |= {"accelerator": "cuda", "devices": 8}
    torch.save(contents, path)
    assert lab("validate", "--ckpt_path", str(path)).code == 0
