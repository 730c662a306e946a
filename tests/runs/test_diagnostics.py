"""What a run measures of its layers: the numbers, where they go, and that nothing else changes."""

from __future__ import annotations

import copy
import itertools
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from llama_lab.data.config import DataConfig
from llama_lab.data.datamodule import TextDataModule
from llama_lab.inspect.activity import observe
from llama_lab.model.decoder import Decoder, DecoderConfig
from llama_lab.model.feed_forward import FeedForwardConfig
from llama_lab.runs.diagnostics import Diagnostics
from llama_lab.runs.events import RunEvents
from llama_lab.training.module import LanguageModel
from tests.runs.conftest import Lab, diagnostics_of, equal_weights, flags
from tests.runs.test_resume import logged_steps

INITIAL = "per_layer/initial_gradient_norm"
QUANTITIES = {
    "gradient_norm",
    "attention_gradient_norm",
    "feed_forward_gradient_norm",
    "activation_rms",
    "attention_entropy",
    "dead_units",
    "update_ratio",
}


def events_of(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return events


class Witness(Callback):
    """Keeps the microbatches, and a copy of the network as it was before the first."""

    def __init__(self) -> None:
        self.batches: list[Any] = []
        self.before: Decoder | None = None

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self.before = self.before or copy.deepcopy(module.network)
        self.batches.append(batch)


def norm_by_hand(tensors: list[torch.Tensor]) -> float:
    return math.sqrt(sum(v * v for tensor in tensors for v in tensor.flatten().tolist()))


def test_every_number_is_what_autograd_and_the_weights_say(lab: Lab) -> None:
    """One step of two microbatches, clipped hard, with weight decay."""
    witness, events = Witness(), RunEvents(lab.folder)
    config = DecoderConfig(
        dim=16, n_layers=2, context_length=16, feed_forward=FeedForwardConfig(kind="relu")
    )
    model = LanguageModel(decoder=config)
    model.run.folder = lab.folder
    trainer = Trainer(
        max_steps=1,
        accumulate_grad_batches=2,
        gradient_clip_val=1e-3,
        accelerator="cpu",
        logger=events,
        callbacks=[witness, Diagnostics(every=5)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(model, datamodule=TextDataModule(DataConfig(corpus="text.txt", batch_size=8)))

    before = witness.before
    assert before is not None
    for batch in witness.batches:
        loss = before.loss(before(batch.inputs), batch.targets, reduction="mean")
        (loss / len(witness.batches)).backward()
    assert len(witness.batches) == 2
    activities = observe(before, witness.batches[-1].inputs)
    rows = diagnostics_of(lab.folder)
    assert [(row.pop("step"), row.pop("layer")) for row in rows] == [("1", "1"), ("1", "2")]
    logged = events_of(lab.folder)
    for layer, row in enumerate(rows):
        block, after = before.blocks[layer], dict(model.network.blocks[layer].named_parameters())
        old = dict(block.named_parameters())
        changes = [(after[name] - old[name]).detach() for name in old]
        expected = {
            "gradient_norm": norm_by_hand([p.grad for p in block.parameters()]),
            "attention_gradient_norm": norm_by_hand([p.grad for p in block.attention.parameters()]),
            "feed_forward_gradient_norm": norm_by_hand(
                [p.grad for p in block.feed_forward.parameters()]
            ),
            "update_ratio": norm_by_hand(changes) / norm_by_hand(list(old.values())),
            **{name: value.item() for name, value in activities[layer]._asdict().items()},
        }
        assert {name: float(value) for name, value in row.items()} == pytest.approx(
            expected, rel=1e-4
        )
        assert set(row) == QUANTITIES
        assert expected["gradient_norm"] > 1e-2  # so it is the one before clipping
        for name, value in row.items():
            (scalar,) = logged.Scalars(f"per_layer/{name}/layer_0{layer + 1}")
            assert (scalar.step, scalar.value) == (1, pytest.approx(float(value), rel=1e-6))


def test_the_first_step_and_every_so_many_are_measured_in_csv_and_tensorboard(lab: Lab) -> None:
    lab.fit(diagnostics_every=5, model__decoder__feed_forward__kind="reglu")
    rows = diagnostics_of(lab.run())
    steps = [1, 5, 10]
    places = [(int(row["step"]), int(row["layer"])) for row in rows]
    assert places == [(step, layer) for step in steps for layer in (1, 2)]
    assert all(math.isfinite(float(value)) for row in rows for value in row.values())
    events = events_of(lab.run())
    tags = {tag for tag in events.Tags()["scalars"] if tag.startswith("per_layer/")}
    names = {f"per_layer/{q}/layer_{n}" for q in QUANTITIES for n in ("01", "02")}
    assert tags == names | {INITIAL}
    for tag in names:
        assert [s.step for s in events.Scalars(tag)] == steps
    assert not [name for name in lab.metrics()[0] if "per_layer" in name]
    (layout,) = events.Tensors("custom_scalars__config__")
    losses, layers = Layout.FromString(layout.tensor_proto.string_val[0]).category
    assert (losses.title, layers.title) == ("loss", "diagnostics")
    charts = layers.chart
    drawn = [[tag for tag in tags if re.match(c.multiline.tag[0], tag)] for c in charts]
    assert sorted(itertools.chain(*drawn)) == sorted(names)
    assert {len(lines) for lines in drawn} == {2}
    assert "diagnostics_every: 5" in (lab.run() / "config.yaml").read_text()


def test_the_gradient_norm_at_initialisation_is_drawn_over_the_layers(lab: Lab) -> None:
    lab.fit(diagnostics_every=5, trainer__max_steps=2, model__decoder__n_layers=3)
    norms = [float(row["gradient_norm"]) for row in diagnostics_of(lab.run())]
    drawn = events_of(lab.run()).Scalars(INITIAL)
    assert [point.step for point in drawn] == [1, 2, 3]
    assert [point.value for point in drawn] == pytest.approx(norms, rel=1e-6)


def test_last_layers_gradients_are_the_largest_with_post_norm_and_the_smallest_with_pre(
    lab: Lab,
) -> None:
    """Xiong et al. 2020, arXiv:2002.04745, figure 3, at 12 layers and before the first update."""
    curves = {}
    for placement in ("post", "pre"):
        lab.fit(
            name=placement,
            diagnostics_every=1,
            trainer__max_steps=1,
            model__decoder__dim=64,
            model__decoder__n_layers=12,
            model__decoder__norm__kind="layernorm",
            model__decoder__norm__placement=placement,
            model__decoder__feed_forward__kind="relu",
            model__decoder__init__std=0.1,
        )
        drawn = events_of(lab.run(name=placement)).Scalars(INITIAL)
        curves[placement] = [point.value for point in drawn]
    growth = {name: sum(c[-4:]) / sum(c[:4]) for name, c in curves.items()}
    assert growth["post"] > 1.3
    assert growth["pre"] < 0.7
    assert curves["post"][-1] > 1.5 * curves["pre"][-1]


def test_only_relus_have_dead_units(lab: Lab) -> None:
    lab.fit(diagnostics_every=5)
    assert {row["dead_units"] for row in diagnostics_of(lab.run())} == {""}
    assert not [tag for tag in events_of(lab.run()).Tags()["scalars"] if "dead_units" in tag]


def test_weights_are_the_same_to_the_bit_with_and_without(lab: Lab) -> None:
    settings = {"model__decoder__dropout": 0.1, "trainer__accumulate_grad_batches": 2}
    lab.fit(**settings)
    lab.fit(**settings, diagnostics_every=1)
    assert equal_weights(lab.checkpoint(number=0), lab.checkpoint(number=1))
    assert lab.metrics(0) == lab.metrics(1)
    assert not (lab.run(0) / "diagnostics.csv").exists()
    assert not [t for t in events_of(lab.run(0)).Tags()["scalars"] if "per_layer" in t]


def resumable(**changes: Any) -> list[str]:
    """More layers than steps before the stop; a schedule that does not read the budget."""
    settings = {
        "model__decoder__n_layers": 6,
        "model__decoder__dropout": 0.1,
        "model__schedule__min_lr_ratio": 1.0,
        "trainer__val_check_interval": 100,
        "diagnostics_every": 2,
    }
    return flags(**{**settings, **changes})


def test_a_resumed_run_leaves_neither_gap_nor_duplicate_and_keeps_the_first_curve(lab: Lab) -> None:
    assert lab("fit", *resumable()).code == 0
    assert lab("fit", *resumable(name="half", trainer__max_steps=5)).code == 0
    before = (lab.run() / "diagnostics.csv").read_text()
    weights = lab.checkpoint()
    # As a run stands that was killed long after its last checkpoint, in the midst of a row.
    with (lab.run() / "diagnostics.csv").open("a") as file:
        file.write("13,1,0.0")
    half, last = (lab.run(name=n) / "checkpoints" / "last.ckpt" for n in ("half", "tiny"))
    shutil.copy(half, last)
    shutil.copy(lab.run(name="half") / "receipt.json", lab.run() / "receipt.json")
    resumed = lab("fit", "--ckpt_path", str(last), "--trainer.max_steps=12")
    assert resumed.code == 0, resumed.err
    assert equal_weights(lab.checkpoint(), weights)
    assert (lab.run() / "diagnostics.csv").read_text() == before
    assert logged_steps(lab.run(), "per_layer/update_ratio/layer_06") == [1, 2, 4, 6, 8, 10, 12]
    assert logged_steps(lab.run(), INITIAL) == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_it_may_be_switched_off_and_on_when_a_run_goes_on(lab: Lab) -> None:
    assert lab("fit", *resumable(trainer__max_steps=5)).code == 0
    go_on = ("fit", "--ckpt_path", "last", "--name", "tiny")
    assert lab(*go_on, "--trainer.max_steps=7", "--diagnostics_every=null").code == 0
    assert {row["step"] for row in diagnostics_of(lab.run())} == {"1", "2", "4"}
    assert lab(*go_on, "--trainer.max_steps=9", "--diagnostics_every=1").code == 0
    assert {row["step"] for row in diagnostics_of(lab.run())} == {"1", "2", "4", "8", "9"}
    assert lab("validate", "--ckpt_path", str(lab.run())).code == 0
    assert lab("fit", *resumable(trainer__max_steps=3, diagnostics_every=None)).code == 0
    again = lab("fit", "--ckpt_path", "last", "--trainer.max_steps=4", "--diagnostics_every=2")
    assert again.code == 0, again.err
    assert {row["step"] for row in diagnostics_of(lab.run(1))} == {"4"}
    assert logged_steps(lab.run(1), INITIAL) == []


def test_what_a_dead_run_measured_after_its_checkpoint_goes_though_nothing_is_measured_any_more(
    lab: Lab,
) -> None:
    assert lab("fit", *resumable(trainer__max_steps=5)).code == 0
    with (lab.run() / "diagnostics.csv").open("a") as file:
        file.write("6,1,0.0,0.0,0.0,0.0,0.0,,0.0\n")
    arguments = ("--ckpt_path", "last", "--trainer.max_steps=7", "--diagnostics_every=null")
    assert lab("fit", *arguments).code == 0
    assert {row["step"] for row in diagnostics_of(lab.run())} == {"1", "2", "4"}


@pytest.mark.parametrize("every", [0, -3])
def test_an_interval_that_is_none_is_refused(lab: Lab, every: int) -> None:
    line = lab.refused("fit", *flags(diagnostics_every=every))
    assert line == f"--diagnostics_every {every}: must be 1 or more, or null"


def test_mixed_precision_measures_what_float32_does_but_for_its_rounding(lab: Lab) -> None:
    settings = {"diagnostics_every": 1, "trainer__max_steps": 1}
    lab.fit(**settings)
    lab.fit(**settings, trainer__precision="bf16-mixed")
    full, mixed = diagnostics_of(lab.run(0)), diagnostics_of(lab.run(1))
    for a, b in zip(full, mixed, strict=True):
        assert a["gradient_norm"] != b["gradient_norm"]
        assert a["activation_rms"] != b["activation_rms"]
        for name in QUANTITIES - {"dead_units"}:
            assert float(a[name]) == pytest.approx(float(b[name]), rel=3e-2)
