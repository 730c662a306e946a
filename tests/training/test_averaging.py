"""Averaged weights: what is averaged, and that it is what is scored, saved and gone on from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy

from llama_lab.model.decoder import DecoderConfig
from llama_lab.model.settings import SettingError
from llama_lab.training.averaging import (
    AveragedWeights,
    AveragingConfig,
    averaged_steps,
)
from llama_lab.training.module import LanguageModel
from tests.runs.conftest import Lab, equal_weights, flags

# A shorter run then has the rates of a longer one.
STEADY = {"model__schedule__kind": "constant"}
Weights = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    """The weights after each step of the run without an average: index 0 is after step 1."""
    from llama_lab.runs.command_line import LabCLI
    from tests.runs.conftest import TEXT

    folder = tmp_path_factory.mktemp("plain")
    (folder / "text.txt").write_text(TEXT)
    corpus, root = str(folder / "text.txt"), str(folder)
    after: list[Weights] = []
    cli = LabCLI("fit", flags(**STEADY, data__corpus=corpus, trainer__default_root_dir=root))

    def keep(*_: Any) -> None:
        after.append({k: v.clone() for k, v in cli.model.state_dict().items()})

    cli.metrics.on_train_batch_end = keep  # type: ignore[method-assign]
    cli.fit()
    return after


def averaged(kind: str, weights: list[Weights], decay: float = 0.9) -> Weights:
    """By the definition."""
    if kind == "tail":
        return {k: torch.stack([w[k] for w in weights]).mean(0) for k in weights[0]}
    average = weights[0]
    for step, later in enumerate(weights[1:], start=1):
        kept = min(decay, (1 + step) / (10 + step))
        average = {k: kept * average[k] + (1 - kept) * later[k] for k in average}
    return average


@pytest.mark.parametrize(
    ("kind", "settings", "first"),
    [
        ("ema", {"decay": 0.4}, 1),
        ("ema", {"decay": 0.9, "start_step": 8}, 8),
        ("tail", {"start_step": 8}, 8),
        ("tail", {}, 10),  # the last quarter of twelve steps
    ],
)
def test_the_average_is_scored_saved_sampled_and_gone_on_from(
    lab: Lab, plain: list[Weights], kind: str, settings: dict[str, Any], first: int
) -> None:
    own = {f"model__averaging__{name}": value for name, value in settings.items()} | STEADY
    early = ("callbacks+=ModelCheckpoint", "callbacks.every_n_train_steps=7")
    file = ("callbacks.dirpath=early", "callbacks.filename=seven")
    flag = flags(model__averaging__kind=kind, **own)
    outcome = lab("fit", *flag, *(f"--trainer.{word}" for word in (*early, *file)))
    assert outcome.code == 0, outcome.err
    last = lab.checkpoint()
    decay = settings.get("decay", 0.999)
    expected = averaged(kind, plain[first - 1 :], decay)
    for name, tensor in last["state_dict"].items():
        # Training itself knows nothing of the average.
        assert torch.equal(last["current_model_state"][name], plain[-1][name])
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)
    logged = float(lab.metrics()[-1]["val_loss"])
    scored = lab("validate", "--ckpt_path", str(lab.run() / "checkpoints" / "last.ckpt"))
    assert float(scored.out.split()[1]) == pytest.approx(logged, abs=1e-6)

    # Until it starts it is the weights of the moment.
    after_seven = torch.load(lab.folder / "early" / "seven.ckpt", weights_only=True)
    for name, tensor in after_seven["state_dict"].items():
        begun = averaged(kind, plain[:7], decay) if first == 1 else plain[6]
        torch.testing.assert_close(tensor, begun[name], rtol=1e-5, atol=1e-6)


def test_a_resumed_run_ends_with_the_same_average_to_the_bit(lab: Lab) -> None:
    steady = {
        **STEADY,
        "model__averaging__kind": "ema",
        "model__optimizer__kind": "muon",
        "trainer__val_check_interval": 6,
    }
    lab.fit(**steady, name="whole")
    lab.fit(**steady, trainer__max_steps=6)
    assert lab("fit", "--ckpt_path", "last", "--name", "tiny", "--trainer.max_steps=12").code == 0
    whole = torch.load(lab.run(name="whole") / "checkpoints" / "last.ckpt", weights_only=True)
    assert equal_weights(lab.checkpoint(), whole)
    for name, tensor in whole["current_model_state"].items():
        assert torch.equal(lab.checkpoint()["current_model_state"][name], tensor)


def test_the_average_lies_on_the_device_that_trains() -> None:
    model = LanguageModel(decoder=DecoderConfig(dim=16, n_layers=1, vocab_size=5))
    # At setup the module is still on the CPU, as it would be beside a GPU.
    strategy = SingleDeviceStrategy(device=torch.device("meta"))
    averages = AveragedWeights(AveragingConfig(kind="ema"))
    averages.setup(Trainer(accelerator="cpu", strategy=strategy, logger=False), model, "fit")
    assert averages._average_model is not None
    assert {p.device.type for p in averages._average_model.parameters()} == {"meta"}
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_lightnings_own_averaging_is_refused_with_ours_named(lab: Lab) -> None:
    line = lab.refused("fit", *flags(), "--trainer.callbacks+=EMAWeightAveraging")
    assert "--model.averaging.kind" in line


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trainer__precision": "bf16-true"}, ["averaging.kind ema", "bf16-true", "bf16-mixed"]),
        ({"model__averaging__start_step": 12}, ["start_step 12 would do nothing", "max_steps 12"]),
    ],
)
def test_an_average_that_would_not_move_is_refused(
    lab: Lab, settings: dict[str, Any], words: list[str]
) -> None:
    line = lab.refused("fit", *flags(model__averaging__kind="ema", **settings))
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"decay": 0.9}, "averaging.decay"),
        ({"start_step": 3}, "averaging.start_step"),
        ({"kind": "tail", "decay": 0.9}, "averaging.decay"),
        ({"kind": "ema", "decay": 1.0}, "decay 1.0: must be in"),
        ({"kind": "ema", "start_step": 0}, "start_step 0: must be 1"),
    ],
)
def test_a_setting_that_does_nothing_or_cannot_be_is_refused(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingError, match=words):
        AveragingConfig(**settings)


@pytest.mark.parametrize(
    ("config", "max_steps", "steps"),
    [
        (AveragingConfig(kind="ema"), 200, 23),  # 1 / (1 - 200/209)
        (AveragingConfig(kind="ema"), 100_000, 1000),
        (AveragingConfig(kind="ema", decay=0.9), 1000, 10),
        (AveragingConfig(kind="ema", start_step=100), 100, 1),
        (AveragingConfig(kind="tail"), 200, 50),
        (AveragingConfig(kind="tail", start_step=101), 200, 100),
    ],
)
def test_a_run_says_over_how_many_steps_it_averages(
    config: AveragingConfig, max_steps: int, steps: int
) -> None:
    assert averaged_steps(config, max_steps) == steps


@pytest.mark.parametrize("kind", ["ema", "tail"])
def test_a_short_run_s_average_is_no_worse_than_its_weights(lab: Lab, kind: str) -> None:
    settings = {
        "model__optimizer__lr": 0.01,
        "trainer__max_steps": 120,
        "trainer__val_check_interval": 60,
    }
    lab.fit(**settings, name="plain")
    outcome = lab.fit(**settings, model__averaging__kind=kind, name=kind)
    assert "average" in outcome.out
    of_weights, of_average = (
        float(lab.metrics(name=name)[-1]["val_loss"]) for name in ("plain", kind)
    )
    # With 0.999 from the first step on, 0.999^120 = 89 % of it would be the first weights.
    assert of_average < 1.05 * of_weights
