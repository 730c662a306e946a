"""Runs whose weights are divided between real processes, and their checkpoints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from llama_lab.checkpoints import SHARDED_KEY
from llama_lab.parallel.sharded_checkpoints import load_whole
from tests.parallel.conftest import free_port
from tests.runs.conftest import Lab, flags, start

TWO = {"trainer__devices": 2, "trainer__strategy": "fsdp"}
# Losses of about 3 and weights of about 0.1, in float32, over the steps of a tiny run.
ALIKE = 1e-5
# In Adam's denominator it keeps gradients that are 0 but for rounding from making whole steps.
RUN: dict[str, Any] = {
    "trainer__max_steps": 20,
    "trainer__val_check_interval": 10,
    "data__batch_size": 12,
    "model__optimizer__eps": 1e-4,
}


def fit(lab: Lab, **settings: Any) -> None:
    """A run of several processes, which must succeed."""
    process = start(lab.folder, "fit", *flags(**{**RUN, **settings}))
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err


def check_alike(lab: Lab, name: str, other: str, number: int = 0) -> None:
    """Two runs did the same work, and ended with the same weights."""
    folders = lab.run(0, name), lab.run(number, other)
    a, b = (load_whole(folder / "checkpoints" / "last.ckpt") for folder in folders)
    assert a["state_dict"].keys() == b["state_dict"].keys()
    for key, tensor in a["state_dict"].items():
        torch.testing.assert_close(tensor, b["state_dict"][key], rtol=0, atol=ALIKE)
    states = (c["optimizer_states"][0]["state"] for c in (a, b))
    for one, two in zip(*(s.values() for s in states), strict=True):
        for key in one:
            torch.testing.assert_close(one[key], two[key], rtol=0, atol=ALIKE)
    receipts = [json.loads((folder / "receipt.json").read_text()) for folder in folders]
    for key in ("order", "initial_weights", "sequences", "state", "steps"):
        assert receipts[0][key] == receipts[1][key], key
    for key, value in receipts[0]["last"].items():
        assert value == pytest.approx(receipts[1]["last"][key], abs=ALIKE * 30), key
    rows = {row["step"]: row for row in lab.metrics(0, name)}
    for row in lab.metrics(number, other):
        expected = rows[row["step"]]
        assert float(row["train_loss"]) == pytest.approx(float(expected["train_loss"]), abs=ALIKE)
        assert row["val_targets"] == expected["val_targets"]


def test_two_processes_train_as_one_and_one_goes_on_from_their_checkpoint(lab: Lab) -> None:
    fit(lab, **TWO, name="two", keep_every=10)
    lab.fit(**RUN, name="one")
    check_alike(lab, "one", "two")

    checkpoints = lab.run(0, "two") / "checkpoints"
    middle = str(checkpoints / "step_10.ckpt")
    for command in (("generate",), ("validate",)):
        line = lab.refused(*command, "--ckpt_path", middle)
        assert f"llama-lab consolidate {middle}" in line
    assert "llama-lab consolidate" in lab.refused("export", middle, "--output", "x")
    assert len(list(checkpoints.glob("last.shards-*"))) == 1

    alone = ("--trainer.devices=1", "--trainer.strategy=auto")
    resumed = lab("fit", "--ckpt_path", middle, *alone)
    assert resumed.code == 0, resumed.err
    check_alike(lab, "one", "two", 1)
    last = lab.run(1, "two") / "checkpoints" / "last.ckpt"
    assert SHARDED_KEY not in torch.load(last, weights_only=True)

    single = lab("consolidate", middle, "--output", "whole.ckpt")
    assert single.code == 0, single.err
    assert "already" in lab.refused("consolidate", middle, "--output", "whole.ckpt")
    assert "single file already" in lab.refused("consolidate", "whole.ckpt", "--output", "y")
    whole, shards = (load_whole(lab.folder / path) for path in ("whole.ckpt", middle))
    assert all(torch.equal(t, shards["state_dict"][n]) for n, t in whole["state_dict"].items())
    assert lab("generate", "--ckpt_path", "whole.ckpt", "--max_new_tokens", "3").code == 0
    # The shards are named by the file, and do not go with it by themselves.
    moved = lab.folder / "moved.ckpt"
    moved.write_bytes(Path(middle).read_bytes())
    assert "its shards are missing" in lab.refused("fit", "--ckpt_path", str(moved), *alone)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"trainer__strategy": "fsdp_cpu_offload"}, ["fsdp_cpu_offload", "auto, ddp, fsdp"]),
        ({"trainer__strategy": "deepspeed"}, ["deepspeed", "auto, ddp, fsdp"]),
        ({"trainer__tensor_parallel": 2}, ["--trainer.strategy fsdp", "tensor_parallel 1"]),
        ({"trainer__tensor_parallel": 0, "trainer__strategy": "fsdp"}, ["must be 1 or more"]),
        ({"trainer__process_timeout": 0}, ["--trainer.process_timeout 0", "seconds"]),
    ],
)
def test_impossible_processes_are_refused(
    lab: Lab, settings: dict[str, Any], words: list[str]
) -> None:
    line = lab.refused("fit", *flags(**settings))
    assert all(word in line for word in words), line


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"trainer__devices": 3, "trainer__strategy": "ddp"},
        {"trainer__devices": 3, "trainer__strategy": "fsdp"},
        {"trainer__devices": 2, "trainer__strategy": "ddp", "trainer__accumulate_grad_batches": 2},
        {**TWO, "trainer__accumulate_grad_batches": 2, "data__num_workers": 1},
        {**TWO, "trainer__tensor_parallel": 2},
        {**TWO, "trainer__devices": 4, "trainer__tensor_parallel": 2},
        {**TWO, "model__checkpoint_activations": "block"},
        {"model__checkpoint_activations": "attention"},
        {**TWO, "trainer__devices": 1},
    ],
    ids=lambda s: "-".join(str(v) for v in s.values()),
)
def test_every_division_trains_as_one_process(lab: Lab, settings: dict[str, Any]) -> None:
    lab.fit(**RUN, name="one")
    fit(lab, **settings, name="many")
    check_alike(lab, "one", "many")


@pytest.mark.slow
def test_a_sharded_run_goes_on_with_other_processes_and_strategies(lab: Lab) -> None:
    lab.fit(**RUN, name="one")
    fit(lab, **TWO, name="two", keep_every=10)
    folder = lab.run(0, "two") / "checkpoints"
    assert lab("consolidate", str(folder / "step_10.ckpt"), "--output", "whole.ckpt").code == 0
    (folder / "whole.ckpt").write_bytes((lab.folder / "whole.ckpt").read_bytes())
    ways = [
        ("step_0.ckpt", "--trainer.devices=3"),
        ("step_10.ckpt", "--trainer.devices=3"),
        ("step_10.ckpt", "--trainer.devices=2", "--trainer.tensor_parallel=2"),
        ("step_10.ckpt", "--trainer.devices=2", "--trainer.strategy=ddp"),
        ("whole.ckpt", "--trainer.devices=2"),
    ]
    for number, (file, *extra) in enumerate(ways, start=1):
        process = start(lab.folder, "fit", "--ckpt_path", str(folder / file), *extra)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, (file, extra, err)
        check_alike(lab, "one", "two", number)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
def test_two_torchrun_nodes_train_as_one_process(lab: Lab, strategy: str) -> None:
    lab.fit(**RUN, name="one")
    port = free_port()
    launch = Path(__file__).parent.parent.parent / "configs" / "launch" / "torchrun.sh"
    program = lab.folder / "llama-lab"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m llama_lab "$@"\n')
    program.chmod(0o755)
    path = f"{lab.folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    place = {"NODES": "2", "MAIN": "127.0.0.1", "GPUS": "1", "PORT": str(port), "PATH": path}
    settings = flags(**RUN, name="nodes", trainer__strategy=strategy)
    nodes = [
        subprocess.Popen(
            ["bash", str(launch), *settings],
            cwd=lab.folder,
            env={**os.environ, **place, "NODE": str(node), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    errors = [node.communicate(timeout=300)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], errors
    check_alike(lab, "one", "nodes")


def children(pid: int) -> list[int]:
    """Processes that a process started, by the order of their numbers."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sorted(int(child) for child in found)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads Linux's /proc")
@pytest.mark.parametrize("strategy", ["fsdp", "ddp"])
@pytest.mark.parametrize(
    ("signum", "victim", "code", "words"),
    [
        (signal.SIGTERM, 0, 143, "stopped by SIGTERM at step"),
        (signal.SIGTERM, 1, 143, "stopped by SIGTERM at step"),
        (signal.SIGKILL, 1, 1, "error: process 1 of 2: ended by SIGKILL"),
        (signal.SIGSTOP, 1, 1, "error: process 1 did not answer within --trainer.process_timeout"),
    ],
)
def test_a_process_that_is_told_to_stop_or_dies_or_hangs_ends_the_run(
    lab: Lab, signum: int, victim: int, code: int, words: str, strategy: str
) -> None:
    settings = flags(
        trainer__max_steps=100_000,
        trainer__val_check_interval=50_000,
        trainer__process_timeout=20,
        trainer__devices=2,
        trainer__strategy=strategy,
        checkpoint_every=5,
    )
    process = start(lab.folder, "fit", *settings)
    last = lab.run() / "checkpoints" / "last.ckpt"
    end = time.monotonic() + 120
    while not last.is_file():
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(process.pid if victim == 0 else children(process.pid)[victim - 1], signum)
    began = time.monotonic()
    _, err = process.communicate(timeout=90)
    assert process.returncode == code, err
    assert words in err
    assert "Traceback" not in err
    assert time.monotonic() - began < 20 + 30  # the timeout, and the time to end
    step = load_whole(last)["global_step"]
    resumed = lab(
        "fit",
        *("--ckpt_path", "last", "--name", "tiny"),
        *("--trainer.devices=1", "--trainer.strategy=auto", f"--trainer.max_steps={step + 2}"),
    )
    assert resumed.code == 0, resumed.err


@pytest.mark.slow
def test_the_first_process_tells_the_error_of_another(lab: Lab) -> None:
    only_second = "sys.modules['os'].environ.get('LOCAL_RANK', '0') == '1'"
    (lab.folder / "sitecustomize.py").write_text(
        "import sys, os\n"
        f"if {only_second}:\n"
        "    import llama_lab.training.module as m\n"
        "    from llama_lab.errors import RunError\n"
        "    def fail(self, batch, batch_idx):\n"
        "        if batch_idx == 3: raise RunError('the disk of this process is on fire')\n"
        "        return plain(self, batch, batch_idx)\n"
        "    plain = m.LanguageModel.training_step\n"
        "    m.LanguageModel.training_step = fail\n"
    )
    path = f"{lab.folder}{os.pathsep}{Path(__file__).parent.parent.parent}"
    process = start(lab.folder, "fit", *flags(**{**RUN, **TWO}), PYTHONPATH=path)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert "llama-lab: error: process 1 of 2: the disk of this process is on fire" in err
