"""Two real processes on the CPU do the work of one."""

from __future__ import annotations

import json
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from llama_lab.runs.stopping import StopSignals
from tests.runs.conftest import Lab, diagnostics_of, flags, start

DDP = ("--trainer.devices=2", "--trainer.strategy=ddp")


def test_two_processes_log_the_losses_and_diagnostics_of_one(lab: Lab) -> None:
    settings = {
        "trainer__max_steps": 20,
        "trainer__val_check_interval": 10,
        "diagnostics_every": 10,
        "model__optimizer__kind": "muon",
        "model__averaging__kind": "ema",
        "model__averaging__decay": 0.8,
    }
    lab.fit(**settings, name="one")
    process = start(lab.folder, "fit", *flags(**settings, name="two"), *DDP)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.count("done in") == 1
    one, two = lab.metrics(name="one"), lab.metrics(name="two")
    assert len(one) == len(two) == 20
    # Sums in another order differ in float32's last bits, and Muon rounds what it makes of them to
    # bfloat16's 8: entries of a step of 0.2 lr may differ by 2^-8 of it. In each of 20 steps the
    # loss then moves by at most that, times the root of a matrix's 256 entries, times the norm 1
    # that gradients are clipped to.
    moved = 20 * 0.2 * 1e-3 * 256**0.5 * 2**-8
    for a, b in zip(one, two, strict=True):
        assert float(a["train_loss"]) == pytest.approx(float(b["train_loss"]), abs=moved)
        if a["val_loss"]:
            assert float(a["val_loss"]) == pytest.approx(float(b["val_loss"]), abs=moved)
            assert a["val_targets"] == b["val_targets"]
    receipts = [json.loads((lab.run(0, n) / "receipt.json").read_text()) for n in ("one", "two")]
    assert receipts[0]["order"] == receipts[1]["order"]
    assert receipts[1]["device"]["processes"] == 2

    one, two = (diagnostics_of(lab.run(name=name)) for name in ("one", "two"))
    assert len(one) == len(two) == 6
    for a, b in zip(one, two, strict=True):
        assert (a["step"], a["layer"]) == (b["step"], b["layer"])
        for name in a:
            if name.endswith("gradient_norm") or name == "update_ratio":
                # A step is five products in bfloat16, one after the other.
                assert float(a[name]) == pytest.approx(float(b[name]), rel=5 * 2**-8)
        # The first process looks at its own share of the batch.
        assert float(a["activation_rms"]) == pytest.approx(float(b["activation_rms"]), rel=0.2)

    # The same checkpoint, scored by one process and by two, at batch sizes that do not divide.
    best = str(lab.run(0, "one") / "checkpoints" / "best.ckpt")
    scores = []
    process = start(lab.folder, "validate", "--ckpt_path", best, *DDP)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    for extra in ((), ("--data.batch_size=7",), ("--data.batch_size=64",)):
        scores.append(lab("validate", "--ckpt_path", best, *extra).out)
    scores = [dict(line.split() for line in text.splitlines()) for text in (*scores, out)]
    assert scores[0]["val_targets"] == str(len((lab.folder / "text.txt").read_text()[10903:]) - 1)
    for score in scores[1:]:
        assert score["val_targets"] == scores[0]["val_targets"]
        assert float(score["val_loss"]) == pytest.approx(float(scores[0]["val_loss"]), abs=1e-6)


def test_a_signal_to_one_process_stops_both_at_the_same_step_and_one_process_resumes(
    lab: Lab,
) -> None:
    long = flags(trainer__max_steps=100_000, trainer__val_check_interval=50_000)
    process = start(lab.folder, "fit", *long, *DDP)
    metrics = lab.run() / "metrics.csv"
    end = time.monotonic() + 90
    while not metrics.is_file():
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 143, err
    assert "Traceback" not in err
    step = lab.checkpoint()["global_step"]
    resumed = lab(
        "fit",
        "--ckpt_path",
        "last",
        "--name",
        "tiny",
        "--trainer.devices=1",
        "--trainer.strategy=auto",
        f"--trainer.max_steps={step + 3}",
    )
    assert resumed.code == 0, resumed.err
    lab.fit(trainer__max_steps=step + 3, trainer__val_check_interval=50_000, name="one")
    orders = [
        json.loads((lab.run(0, n) / "receipt.json").read_text())["order"] for n in ("tiny", "one")
    ]
    assert orders[0] == orders[1]


def test_a_signal_that_comes_during_the_reduction_is_acted_on_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signals = StopSignals()
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    trainer: Any = SimpleNamespace(world_size=2, strategy=strategy)

    def arrives(flag: torch.Tensor, op: Any) -> None:
        signals._receive(signal.SIGTERM, None)

    monkeypatch.setattr(torch.distributed, "all_reduce", arrives)
    assert signals.asked(trainer, 1) == 0
    assert signals.asked(trainer, 2) == signal.SIGTERM


@pytest.mark.slow
def test_a_batch_that_devices_do_not_divide_is_refused(lab: Lab) -> None:
    process = start(lab.folder, "fit", *flags(data__batch_size=9), *DDP)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 2
    assert err.startswith("llama-lab: error: --data.batch_size 9")
    assert len(err.strip().splitlines()) == 1
    assert not lab.run().exists()


def test_torch_is_built_with_gloo() -> None:
    assert torch.distributed.is_gloo_available()
