"""What limits a step follows from its numbers, and no setting is named that is set already."""

from __future__ import annotations

from typing import Any

import pytest

from llama_lab.bench.limits import Step, limit_of

MEASURED: dict[str, Any] = {
    "seconds": 0.1,
    "mfu": 0.2,
    "bandwidth_share": 0.1,
    "bf16_gain": 4.0,
    "threads": 2,
    "cores": 8,
    "thread_gain": 1.2,
    "n_layers": 4,
    "batch_size": 32,
    "accumulation": 1,
    "num_workers": None,
    "corpus_fits": True,
    "log_interval": 10,
    "optimizer": "adamw",
    "compiled": False,
    "can_compile": True,
}
COMPUTING = {"data": 0.0, "forward": 0.3, "backward": 0.6, "optimizer": 0.05, "other": 0.05}
WAITING = {"data": 0.5, "forward": 0.2, "backward": 0.25, "optimizer": 0.03, "other": 0.02}
LOGGING = {"data": 0.0, "forward": 0.2, "backward": 0.3, "optimizer": 0.1, "other": 0.4}
UPDATING = {"data": 0.0, "forward": 0.2, "backward": 0.3, "optimizer": 0.45, "other": 0.05}


def limit(share: dict[str, float] = COMPUTING, **changes: Any) -> str:
    assert sum(share.values()) == pytest.approx(1)
    assert changes.keys() <= MEASURED.keys()
    line = limit_of(Step(share=share, **{**MEASURED, **changes}))
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("share", "changes", "what", "remedy"),
    [
        (WAITING, {"num_workers": 0}, "data bound: 50%", "--data.num_workers null"),
        (WAITING, {"num_workers": 2}, "data bound", "--data.num_workers null"),
        (WAITING, {"corpus_fits": False}, "data bound", "--data.num_workers 2"),
        (WAITING, {"corpus_fits": False, "num_workers": 0}, "data bound", "--data.num_workers 2"),
        (
            WAITING,
            {"corpus_fits": False, "num_workers": 3},
            "data bound",
            "--data.num_workers 6 (now 3)",
        ),
        (WAITING, {}, "data bound", "--data.batch_size (now 32)"),
        (LOGGING, {"log_interval": 1}, "logging bound: 40%", "--trainer.log_every_n_steps 50"),
        (LOGGING, {}, "overhead bound: 40%", "--data.batch_size (now 32)"),
        (LOGGING, {"accumulation": 4}, "overhead bound", "--trainer.accumulate_grad_batches"),
        (UPDATING, {}, "optimiser bound: 45%", "--data.batch_size (now 32)"),
        (UPDATING, {"optimizer": "muon"}, "optimiser bound", "--model.optimizer.kind adamw"),
        (COMPUTING, {"thread_gain": 3.6}, "thread bound: 90%", "OMP_NUM_THREADS=8"),
        (COMPUTING, {"mfu": 0.7}, "compute bound: MFU 70%", "bf16-mixed multiplies 4.0 times"),
        (COMPUTING, {"mfu": 0.7, "bf16_gain": 1.1}, "compute bound", "--model.decoder.dim"),
        (COMPUTING, {"mfu": 0.7, "bf16_gain": None}, "compute bound", "--model.decoder.dim"),
        (COMPUTING, {"bandwidth_share": 0.6}, "memory-bandwidth bound: 60%", "--model.compile"),
        (
            COMPUTING,
            {"bandwidth_share": 0.6, "compiled": True},
            "memory-bandwidth bound",
            "bf16-mixed halves",
        ),
        (
            COMPUTING,
            {"bandwidth_share": 0.6, "compiled": True, "bf16_gain": None},
            "memory-bandwidth bound",
            "--model.decoder.dim",
        ),
        (COMPUTING, {"seconds": 0.002}, "overhead bound: a layer takes 0.45 ms", "batch_size"),
        (
            COMPUTING,
            {"seconds": 0.002, "thread_gain": 3.6},
            "overhead bound",
            "--model.compile true",
        ),
        (COMPUTING, {}, "kernel bound: MFU 20%", "--model.compile true"),
        (COMPUTING, {"bandwidth_share": None}, "kernel bound", "--model.compile true"),
        (COMPUTING, {"compiled": True}, "kernel bound", "--model.decoder.dim"),
        (COMPUTING, {"thread_gain": None}, "kernel bound", "--model.compile true"),
    ],
)
def test_each_limit_is_named_with_its_number_and_a_setting_that_helps(
    share: dict[str, float], changes: dict[str, Any], what: str, remedy: str
) -> None:
    line = limit(share, **changes)
    assert line.startswith(what)
    assert remedy in line


@pytest.mark.parametrize("share", [COMPUTING, WAITING, LOGGING, UPDATING])
@pytest.mark.parametrize("seconds", [0.002, 0.1])
@pytest.mark.parametrize("traffic", [0.1, 0.6])
@pytest.mark.parametrize("mfu", [0.2, 0.7])
def test_no_setting_is_named_that_is_so_already(
    share: dict[str, float], seconds: float, traffic: float, mfu: float
) -> None:
    numbers = {"seconds": seconds, "bandwidth_share": traffic, "mfu": mfu}
    as_it_is = {"compiled": True, "bf16_gain": None, "thread_gain": None, "log_interval": 50}
    line = limit(share, **numbers, **as_it_is)
    for setting in ("compile", "bf16", "OMP_NUM_THREADS", "log_every", "kind adamw", "workers"):
        assert setting not in line
    assert "--model.compile" not in limit(share, **numbers, can_compile=False)
