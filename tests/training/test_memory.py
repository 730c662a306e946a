"""What ``describe`` counts for training, against what a run of ``fit`` holds after a step."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from llama_lab.inspect.memory import PRECISIONS, training_memory
from llama_lab.runs.command_line import LabCLI
from llama_lab.training.averaging import AveragedWeights, AveragingKind
from llama_lab.training.optimizers import OPTIMIZERS
from tests.runs.conftest import Lab, flags


@pytest.mark.parametrize("averaging", get_args(AveragingKind))
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_counted_is_what_a_run_holds(
    lab: Lab, precision: Any, kind: Any, averaging: AveragingKind
) -> None:
    if averaging != "none" and precision == "bf16-true":
        pytest.skip("an average in bfloat16 is refused")
    settings = {"model__optimizer__kind": kind, "model__averaging__kind": averaging}
    cli = LabCLI("fit", flags(**settings, trainer__precision=precision, trainer__max_steps=1))
    cli.fit()
    network, trainer = cli.model.decoder, cli.trainer
    counted = training_memory(
        network.config,
        precision,
        OPTIMIZERS[kind].states,
        batch_size=8,
        context=16,
        averages=averaging != "none",
    )
    parameters = list(network.parameters())
    assert counted.weights == sum(p.nbytes for p in parameters)
    state = trainer.optimizers[0].state
    states = [s for p in parameters for s in state[p].values() if s.dim() > 0]
    assert counted.optimizer_states == sum(s.nbytes for s in states)
    averages = [
        callback._average_model
        for callback in trainer.callbacks
        if isinstance(callback, AveragedWeights)
    ]
    held = [p for average in averages if average is not None for p in average.parameters()]
    assert counted.averaged_weights == sum(p.nbytes for p in held)
