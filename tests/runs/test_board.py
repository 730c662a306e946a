"""TensorBoard: the groups of curves, the charts, and the table of runs, read from the files."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams.backend_context import Context
from tensorboard.plugins.hparams.list_session_groups import Handler

from llama_lab.runs.events import TAGS, RunEvents, tag_of
from llama_lab.runs.records import COLUMNS
from tests.runs.conftest import Lab, flags, start
from tests.runs.test_branches import AT_ONCE
from tests.runs.test_resume import logged_steps, wait_for

ONE_OF_EACH = ["_hparams_/session_end_info", "_hparams_/session_start_info"]
LAYOUT = "custom_scalars__config__"
SUCCESS, FAILURE, UNKNOWN = (
    api_pb2.STATUS_SUCCESS,
    api_pb2.STATUS_FAILURE,
    api_pb2.STATUS_UNKNOWN,
)


class Table:
    """What TensorBoard itself makes of a folder of runs for its tab HPARAMS."""

    def __init__(self, logs: Path) -> None:
        multiplexer = EventMultiplexer()
        multiplexer.AddRunsFromDirectory(str(logs))
        multiplexer.Reload()
        provider = MultiplexerDataProvider(multiplexer, str(logs))
        backend = Context(TBContext(data_provider=provider))
        request = api_pb2.ListSessionGroupsRequest(
            allowed_statuses=list(api_pb2.Status.values()), slice_size=1000
        )
        context = RequestContext()
        metadata = backend.hparams_metadata(context, "")
        self.experiment = backend.experiment_from_metadata(
            context, "", True, metadata, backend.hparams_from_data_provider(context, "", 1000)
        )
        groups = Handler(context, backend, "", request).run().session_groups
        self.rows = {group.name: group for group in groups}

    def differing(self) -> set[str]:
        return {info.name for info in self.experiment.hparam_infos if info.differs}

    def setting(self, run: str, name: str) -> Any:
        value = self.rows[run].hparams[name]
        return getattr(value, value.WhichOneof("kind"))

    def metric(self, run: str, tag: str) -> float:
        (value,) = [v.value for v in self.rows[run].metric_values if v.name.tag == tag]
        return value

    def status(self, run: str) -> int:
        (session,) = self.rows[run].sessions
        return session.status


def written(folder: Path, *tags: str) -> list[str]:
    """The tags of the events on disk, where they are among those asked for."""
    return sorted(
        value.tag
        for path in folder.glob("events.out.tfevents.*")
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.tag in tags
    )


def charts(folder: Path) -> dict[str, list[str]]:
    """The regular expressions of each chart of the one layout, by category and title."""
    (layout,) = [
        Layout.FromString(value.tensor.string_val[0])
        for path in folder.glob("events.out.tfevents.*")
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
        if value.tag == LAYOUT
    ]
    return {
        f"{category.title}: {chart.title}": list(chart.multiline.tag)
        for category in layout.category
        for chart in category.chart
    }


def curves(logs: Path, run: str) -> set[str]:
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(logs))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(logs))
    found = provider.list_scalars(RequestContext(), experiment_id="", plugin_name="scalars")
    return set(found[run])


def best_of(lab: Lab, number: int = 0) -> dict[str, float]:
    receipt = json.loads((lab.run(number) / "receipt.json").read_text())
    return receipt["best"]


class Foreign(Callback):
    """A user's callback that logs metrics under names of its own."""

    def on_train_batch_end(self, trainer: Any, module: Any, *args: Any) -> None:
        module.log_dict({"mine": 1.0, "weights/size": 2.0})


def test_every_metric_has_a_group_and_metrics_csv_keeps_its_names(lab: Lab) -> None:
    lab.fit(trainer__callbacks=f"{__name__}.Foreign")
    groups = {"loss", "optimizer", "speed", "data"}
    assert {TAGS[name].split("/")[0] for name in COLUMNS if name != "step"} == groups
    own = {"loss/val_best", "loss/val_best_step"}
    foreign = {"other/mine", "weights/size", "data/epoch"}
    assert curves(lab.folder / "logs", "tiny/run_0") == {
        *own,
        *foreign,
        "loss/train",
        "loss/val",
        "loss/val_perplexity",
        "loss/val_bits_per_byte",
        "loss/val_targets",
        "optimizer/lr",
        "optimizer/grad_norm",
        "speed/tokens_per_second",
        "speed/flops_per_second",
        "speed/mfu",
        "data/passes",
    }
    header = (lab.run() / "metrics.csv").read_text().split("\n")[0].split(",")
    assert set(header) == {*COLUMNS, "mine", "weights/size", "epoch"}


def test_a_monitored_rate_lies_with_the_optimiser() -> None:
    assert tag_of("lr-AdamW/pg1") == "optimizer/lr-AdamW/pg1"


def test_both_losses_are_in_one_chart_with_those_of_the_layers_beside_it(lab: Lab) -> None:
    lab.fit(trainer__max_steps=3)
    lab.fit(trainer__max_steps=3, diagnostics_every=2)
    plain, measured = charts(lab.run(0)), charts(lab.run(1))
    (pattern,) = plain.pop("loss: training and validation")
    found = curves(lab.folder / "logs", "tiny/run_0")
    assert {tag for tag in found if re.match(pattern, tag)} == {"loss/train", "loss/val"}
    assert plain == {}
    assert measured.pop("loss: training and validation") == [pattern]
    assert len(measured) == 6  # swiglu has no dead units
    found = curves(lab.folder / "logs", "tiny/run_1")
    for (expression,) in measured.values():
        assert len([tag for tag in found if re.match(expression, tag)]) == 2


def test_the_table_of_runs_shows_what_differs_and_the_last_and_best_losses(lab: Lab) -> None:
    # At so large a rate the best validation is not the last.
    lab.fit(model__optimizer__lr=2.0, trainer__max_steps=4, trainer__val_check_interval=1)
    lab.fit(model__z_loss=0.001, model__decoder__norm__kind="layernorm")
    table = Table(lab.folder / "logs")
    assert table.differing() >= {
        "model.optimizer.lr",
        "model.z_loss",
        "model.decoder.norm.kind",
        "trainer.max_steps",
        "parameters",
    }
    assert "model.decoder.dim" not in table.differing()
    first, second = "tiny/run_0", "tiny/run_1"
    assert table.setting(first, "model.optimizer.lr") == 2.0
    assert table.setting(first, "model.z_loss") == 0.0
    assert table.setting(first, "model.decoder.tie_embeddings") is False
    assert table.setting(first, "model.optimizer.betas") == "0.9, 0.95"
    assert table.setting(first, "data.corpus") == "text.txt"
    assert table.setting(first, "seed_everything") == 3.0
    assert table.setting(second, "model.decoder.norm.kind") == "layernorm"
    # What null means is resolved: 16 / 4, and 8 / 3 of 16 rounded up to 32.
    assert table.setting(first, "model.decoder.attention.head_dim") == 4.0
    assert table.setting(first, "model.decoder.feed_forward.hidden_dim") == 64.0
    for number, run in enumerate((first, second)):
        rows, best = lab.metrics(number), best_of(lab, number)
        assert table.metric(run, "loss/val_best") == pytest.approx(best["val_loss"])
        assert table.metric(run, "loss/val_best_step") == best["step"]
        assert table.metric(run, "loss/val") == pytest.approx(float(rows[-1]["val_loss"]))
        assert table.metric(run, "loss/train") == pytest.approx(float(rows[-1]["train_loss"]))
        assert table.status(run) == SUCCESS
        assert written(lab.run(number), *ONE_OF_EACH) == ONE_OF_EACH
    assert best_of(lab)["step"] < 4
    # The first five metrics are those that the table shows before anything is ticked.
    shown = [metric.name.tag for metric in table.experiment.metric_infos][:5]
    assert shown == ["data/passes", "loss/train", "loss/val", "loss/val_best", "loss/val_best_step"]


def test_a_resumed_run_has_one_line_with_the_settings_that_hold_now(lab: Lab) -> None:
    lab.fit(diagnostics_every=5)
    more = ("--trainer.max_steps=16", "--diagnostics_every=null")
    assert lab("fit", "--ckpt_path", "last", "--name", "tiny", *more).code == 0
    table = Table(lab.folder / "logs")
    assert table.rows.keys() == {"tiny/run_0"}
    assert table.setting("tiny/run_0", "trainer.max_steps") == 16.0
    assert table.status("tiny/run_0") == SUCCESS
    assert written(lab.run(), *ONE_OF_EACH) == ONE_OF_EACH
    # What was measured before is drawn still.
    assert len(charts(lab.run())) == 7
    best = logged_steps(lab.run(), "loss/val_best")
    assert best == logged_steps(lab.run(), "loss/val") == [5, 10, 12, 15, 16]


def test_a_stopped_run_is_no_success_and_one_after_it_went_on(lab: Lab) -> None:
    long = flags(trainer__max_steps=5000, trainer__val_check_interval=1000)
    process = start(lab.folder, "fit", *long)
    wait_for(lab.run() / "metrics.csv")
    assert written(lab.run(), *ONE_OF_EACH) == ONE_OF_EACH[1:]  # on disk while it goes on
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    table = Table(lab.folder / "logs")
    assert table.setting("tiny/run_0", "trainer.max_steps") == 5000.0
    assert table.status("tiny/run_0") == UNKNOWN
    assert written(lab.run(), *ONE_OF_EACH) == ONE_OF_EACH
    end = lab.checkpoint()["global_step"] + 2
    arguments = ("--ckpt_path", str(lab.run()), f"--trainer.max_steps={end}")
    assert lab("fit", *arguments).code == 0
    table = Table(lab.folder / "logs")
    assert table.setting("tiny/run_0", "trainer.max_steps") == end
    assert table.status("tiny/run_0") == SUCCESS
    assert written(lab.run(), *ONE_OF_EACH) == ONE_OF_EACH


def test_a_failed_run_is_a_failure_and_keeps_its_settings(lab: Lab) -> None:
    settings = {"model__optimizer__lr": 1e30, "model__schedule__warmup_steps": 0}
    assert lab("fit", *flags(**settings, trainer__gradient_clip_val=None)).code == 1
    table = Table(lab.folder / "logs")
    assert table.status("tiny/run_0") == FAILURE
    assert table.setting("tiny/run_0", "model.optimizer.lr") == 1e30
    assert table.setting("tiny/run_0", "trainer.gradient_clip_val") == 0.0


def test_a_run_that_a_callback_ended_is_a_success(lab: Lab) -> None:
    assert lab("fit", *flags(), *AT_ONCE).code == 0
    table = Table(lab.folder / "logs")
    assert table.status("tiny/run_0") == SUCCESS
    assert table.metric("tiny/run_0", "loss/val_best") == pytest.approx(best_of(lab)["val_loss"])


def test_a_branch_has_a_line_of_its_own_and_the_best_loss_that_it_took_along(lab: Lab) -> None:
    lab.fit(
        model__optimizer__lr=2.0, trainer__max_steps=4, trainer__val_check_interval=1, keep_every=3
    )
    before = {path: path.read_bytes() for path in lab.run().glob("events*")}
    path = lab.run() / "checkpoints" / "step_3.ckpt"
    assert best_of(lab)["step"] < 3
    assert lab("fit", "--ckpt_path", str(path), "--trainer.max_steps=5").code == 0
    assert before == {path: path.read_bytes() for path in lab.run().glob("events*")}
    table = Table(lab.folder / "logs")
    assert table.setting("tiny/run_0", "trainer.max_steps") == 4.0
    assert table.setting("tiny/run_1", "trainer.max_steps") == 5.0
    assert table.metric("tiny/run_1", "loss/val_best_step") == best_of(lab, 1)["step"] < 3
    shutil.rmtree(lab.run())
    assert Table(lab.folder / "logs").status("tiny/run_1") == SUCCESS


def test_a_run_that_was_killed_at_its_end_is_a_success_once_that_is_found(lab: Lab) -> None:
    lab.fit(trainer__max_steps=2)
    receipt = lab.run() / "receipt.json"
    receipt.write_text(receipt.read_text().replace('"finished"', '"running"'))
    RunEvents(lab.run()).cut(2)
    assert written(lab.run(), *ONE_OF_EACH) == []
    assert lab("fit", "--ckpt_path", "last", "--name", "tiny").code == 0
    assert written(lab.run(), *ONE_OF_EACH) == ONE_OF_EACH[:1]
