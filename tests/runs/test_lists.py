"""Lists among the settings: what a later one leaves out of an earlier one is said."""

from __future__ import annotations

from typing import Any

import pytest

from llama_lab.runs.lists import Listed, left_out, lists_among, lists_in
from tests.runs.conftest import TEXT, Lab, flags

STOPPING: dict[str, Any] = {"class_path": "EarlyStopping", "init_args": {"monitor": "val_loss"}}
WATCHING: dict[str, Any] = {"class_path": "lightning.pytorch.callbacks.LearningRateMonitor"}


def lines(*earlier: Listed, **now: Any) -> list[str]:
    """With what ``trainer.callbacks`` came to be."""
    return [
        str(left)
        for left in left_out(earlier, {"trainer": {"callbacks": now.get("callbacks")}, "data": now})
    ]


@pytest.mark.parametrize("spelling", [STOPPING, [STOPPING], "EarlyStopping", ["a.EarlyStopping"]])
def test_a_list_is_found_however_it_is_written(spelling: Any) -> None:
    for settings in {"trainer": {"callbacks": spelling}}, {"trainer.callbacks": spelling}:
        (listed,) = lists_in(settings, "run.yaml")
        assert lines(listed, callbacks=[WATCHING]) == [
            "--trainer.callbacks LearningRateMonitor: EarlyStopping from run.yaml is left out; "
            "to keep it, write --trainer.callbacks+=LearningRateMonitor"
        ]
        assert lines(listed) == [
            "--trainer.callbacks null: EarlyStopping from run.yaml is left out"
        ]
        # Other settings of the same class are what was asked for.
        assert lines(listed, callbacks=[WATCHING, {"class_path": "EarlyStopping"}]) == []


def test_flags_replace_what_flags_before_them_list_and_add_with_a_plus() -> None:
    words = ["--trainer.callbacks", "A", "--trainer.callbacks=[B, C]", "--trainer.callbacks+=D"]
    assert [listed.items for listed in lists_among(words)] == [["A"], ["B", "C"]]
    assert lists_among([]) == []


def test_texts_are_a_list_where_there_are_several() -> None:
    for corpus, said in (["a.txt"], []), (["a.txt", "sub/b.txt"], ["a.txt", "sub/b.txt"]):
        found = lines(*lists_in({"data": {"corpus": corpus}}, "run.yaml"), corpus="c.txt")
        assert bool(found) == bool(said)
        assert all(word in line for word in said for line in found)
        assert not any("+=" in line for line in found)


def test_a_run_says_what_a_flag_leaves_out_and_a_plus_keeps_it(lab: Lab) -> None:
    (lab.folder / "stop.yaml").write_text(
        "trainer: {callbacks: {class_path: EarlyStopping, init_args: {monitor: val_loss}}}"
    )
    (lab.folder / "other.txt").write_text(TEXT)
    words = "EarlyStopping from stop.yaml is left out; to keep it, write --trainer.callbacks+="
    config, one = "--config=stop.yaml", "--trainer.callbacks=LearningRateMonitor"
    assert words in lab("fit", config, *flags(), one).out
    kept = lab("fit", config, *flags(), "--trainer.callbacks+=LearningRateMonitor")
    assert kept.code == 0, kept.err
    assert "left out" not in kept.out
    # Going on, the run's own list is the earlier one.
    more = ["fit", "--ckpt_path=last", "--name=tiny", "--trainer.max_steps=14"]
    added = lab(*more, "--trainer.callbacks+=ModelCheckpoint")
    assert added.code == 0, added.err
    assert "left out" not in added.out
    callbacks = lab.checkpoint(number=1)["llama_lab"]["config"]["trainer"]["callbacks"]
    assert [callback["class_path"].rpartition(".")[2] for callback in callbacks] == [
        "EarlyStopping",
        "LearningRateMonitor",
        "ModelCheckpoint",
    ]
    replaced = lab("fit", "--ckpt_path=last", "--name=tiny", "--trainer.max_steps=15", one)
    assert "EarlyStopping, ModelCheckpoint from" in replaced.out
    assert "last.ckpt are left out; to keep them, write" in replaced.out
