"""Going on from older checkpoints, checkpoints that are kept, and callbacks that end a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runs.conftest import Lab, equal_weights, flags

EARLY = ["--trainer.callbacks=EarlyStopping", "--trainer.callbacks.monitor=val_loss"]
# No validation improves by a hundred nats: the one after the first ends the run.
AT_ONCE = [*EARLY, "--trainer.callbacks.min_delta=100", "--trainer.callbacks.patience=1"]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_from_an_older_checkpoint_a_run_branches_and_cuts_nothing(lab: Lab) -> None:
    lab.fit(keep_every=4)
    before = contents(lab.run())
    outcome = lab("fit", "--ckpt_path", str(lab.run() / "checkpoints" / "step_4.ckpt"))
    assert outcome.code == 0, outcome.err
    assert "its run went on to step 12" in outcome.out
    assert contents(lab.run()) == before
    # The same weights, batches and draws: it ends as the run that it left.
    assert equal_weights(lab.checkpoint(), lab.checkpoint(number=1))
    receipt = json.loads((lab.run(1) / "receipt.json").read_text())
    assert receipt["branched_from"]["step"] == 4
    assert lab.checkpoint("best", 1)["global_step"] in (5, 10, 12)
    assert lab.metrics(1) == [row for row in lab.metrics() if int(row["step"]) > 4]


def test_a_branch_takes_the_best_checkpoint_so_far_along(lab: Lab) -> None:
    # A rate so large that the loss rises after the first validation.
    lab.fit(model__optimizer__lr=2.0, trainer__max_steps=4, trainer__val_check_interval=1)
    best = lab.checkpoint("best")
    assert best["global_step"] < 4
    outcome = lab("fit", "--ckpt_path", "best", "--name", "tiny")
    assert outcome.code == 0, outcome.err
    assert lab.checkpoint("last", 1)["global_step"] == 4
    assert lab.checkpoint("best", 1)["global_step"] == best["global_step"]
    assert equal_weights(lab.checkpoint("best", 1), best)


def test_from_its_newest_checkpoint_a_run_goes_on_in_its_folder(lab: Lab) -> None:
    lab.fit(trainer__max_steps=7)
    assert lab("fit", "--ckpt_path", "last", "--name", "tiny", "--trainer.max_steps=9").code == 0
    assert not lab.run(1).exists()
    assert [int(row["step"]) for row in lab.metrics()] == list(range(1, 10))


def test_numbered_checkpoints_are_kept_from_the_initial_weights_on(lab: Lab) -> None:
    lab.fit(keep_every=5)
    names = {p.name for p in (lab.run() / "checkpoints").iterdir()}
    assert names == {"best.ckpt", "last.ckpt", "step_0.ckpt", "step_5.ckpt", "step_10.ckpt"}
    assert [lab.checkpoint(f"step_{n}")["global_step"] for n in (0, 5, 10)] == [0, 5, 10]
    path = str(lab.run() / "checkpoints" / "step_0.ckpt")
    assert lab("validate", "--ckpt_path", path).code == 0
    assert lab("fit", "--ckpt_path", path).code == 0
    assert equal_weights(lab.checkpoint(), lab.checkpoint(number=1))


def test_a_model_checkpoint_without_a_folder_writes_into_the_run_s(lab: Lab) -> None:
    callback = ["--trainer.callbacks=ModelCheckpoint", "--trainer.callbacks.every_n_train_steps=5"]
    more = ["--trainer.callbacks.save_top_k=-1"]
    assert lab("fit", *flags(), *callback, *more).code == 0
    found = {p for p in lab.files() if p.suffix == ".ckpt"}
    assert all(p.parts[:4] == ("logs", "tiny", "run_0", "checkpoints") for p in found)
    assert len(found) == 4  # best, last, and two of its own


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (["ModelCheckpoint", "save_last=true"], "save_last true: every run writes last.ckpt"),
        (["ModelCheckpoint", "filename=best"], "filename best: every run writes best.ckpt"),
        (["EarlyStopping", "monitor=valloss"], "monitor valloss is not logged"),
        (["LearningRateFinder"], "llama-lab lr-range"),
    ],
)
def test_a_callback_that_breaks_a_promise_is_refused(
    lab: Lab, callback: list[str], words: str
) -> None:
    name, *settings = callback
    given = [f"--trainer.callbacks={name}", *(f"--trainer.callbacks.{word}" for word in settings)]
    assert words in lab.refused("fit", *flags(), *given)


def test_a_run_that_a_callback_ended_says_which_and_why_and_how_to_go_on(lab: Lab) -> None:
    outcome = lab("fit", *flags(), *AT_ONCE)
    assert outcome.code == 0, outcome.err
    assert "EarlyStopping ended the run at step 10 of 12" in outcome.out
    assert "did not improve in the last 1 validations" in outcome.out
    assert "--trainer.callbacks null" in outcome.out
    assert json.loads((lab.run() / "receipt.json").read_text())["ended_early"]["by"]

    again = lab("fit", "--ckpt_path", "last", "--name", "tiny")
    assert again.code == 0
    assert "EarlyStopping ended the run at step 10 of 12" in again.out
    assert lab.checkpoint()["global_step"] == 10

    without = ("--trainer.callbacks", "null")
    assert lab("fit", "--ckpt_path", "last", "--name", "tiny", *without).code == 0
    assert lab.checkpoint()["global_step"] == 12


def test_more_patience_on_resume_is_what_counts(lab: Lab) -> None:
    assert lab("fit", *flags(trainer__val_check_interval=2), *AT_ONCE).code == 0
    assert lab.checkpoint()["global_step"] == 4
    more = [*AT_ONCE[:-1], "--trainer.callbacks.patience=3"]
    outcome = lab("fit", "--ckpt_path", "last", "--name", "tiny", *more)
    assert outcome.code == 0, outcome.err
    assert lab.checkpoint()["global_step"] == 8  # two validations more
