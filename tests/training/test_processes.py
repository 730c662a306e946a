"""What needs whole weights is refused where processes may divide them."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import (
    DDPStrategy,
    DeepSpeedStrategy,
    FSDPStrategy,
    ModelParallelStrategy,
)

from llama_lab.errors import UserError
from llama_lab.runs.diagnostics import Diagnostics
from llama_lab.training.averaging import AveragedWeights, AveragingConfig
from llama_lab.training.module import LanguageModel
from llama_lab.training.processes import require_whole_weights


@pytest.mark.parametrize("strategy", [FSDPStrategy, ModelParallelStrategy, object.__new__])
def test_only_strategies_that_copy_weights_whole_are_taken(strategy: Any) -> None:
    # DeepSpeed's own package is not there to construct it.
    made = strategy(DeepSpeedStrategy) if strategy is object.__new__ else strategy()
    with pytest.raises(UserError, match=rf"--a 1: {type(made).__name__} .* set --a 2, or"):
        require_whole_weights(made, "--a 1", "--a 2")
    require_whole_weights(DDPStrategy(), "--a 1", "--a 2")


@pytest.mark.parametrize("setting", ["--diagnostics_every 7", "averaging.kind ema"])
def test_what_reads_whole_weights_asks_for_them(setting: str) -> None:
    model = LanguageModel()
    trainer = Trainer(accelerator="cpu", strategy=ModelParallelStrategy(), logger=False)
    model.trainer = trainer
    ask = {
        "--diagnostics_every 7": lambda: Diagnostics(7).setup(trainer, model, "fit"),
        "averaging.kind ema": lambda: AveragedWeights(AveragingConfig(kind="ema")).setup(
            trainer, model, "fit"
        ),
    }[setting]
    with pytest.raises(UserError, match=f"{setting}: ModelParallelStrategy"):
        ask()
