"""Every command on a pretended accelerator, under CUDA's rules and under Metal's, as on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from tests.device.conftest import BOTH, ROOT, Machine, flags
from tests.device.pretended import NAME

# A loss is a mean of logarithms that both devices round, about 10 times on the way and in another
# order; a step moves the weights by about the learning rate, 1e-3, times what the gradient is off.
FLOAT32 = 1e-5
BFLOAT16 = torch.finfo(torch.bfloat16).eps  # of a product, and a loss averages many
# Weights, gradients and what is logged are rounded as well, each by up to half of that.
ALL_BFLOAT16 = 3 * BFLOAT16
LOSSES = ("train_loss", "val_loss", "val_bits_per_byte", "grad_norm")


def assert_same(here: list[dict[str, float]], there: list[dict[str, float]], within: float) -> None:
    """Rows of numbers, which may differ by rounding."""
    assert len(here) == len(there) > 0
    for a, b in zip(here, there, strict=True):
        assert a == pytest.approx(b, rel=within, abs=1e-7)


@pytest.fixture(scope="module")
def machines(make_machine: Any) -> dict[str | None, Machine]:
    """Where a run was trained, and gone on with, on each kind of device."""
    found = {rules: make_machine(rules) for rules in (None, *BOTH)}
    for machine in found.values():
        machine.trainer("fit", *flags(), "--diagnostics_every=2")
        machine.trainer("fit", "--name=tiny", "--ckpt_path=last", "--trainer.max_steps=6")
    return found


@pytest.fixture(params=BOTH)
def machine(request: Any, machines: dict[str | None, Machine]) -> Machine:
    """The device."""
    return machines[request.param]


@pytest.fixture
def cpu(machines: dict[str | None, Machine]) -> Machine:
    """What it is held against."""
    return machines[None]


def test_a_run_learns_what_it_learns_on_the_cpu_and_goes_on(machine: Machine, cpu: Machine) -> None:
    assert [row["step"] for row in machine.metrics()] == [1, 2, 3, 4, 5, 6]
    assert_same(machine.metrics(), cpu.metrics(), FLOAT32)


def test_its_receipt_names_the_device_and_the_same_work(machine: Machine, cpu: Machine) -> None:
    here, there = (json.loads(m.read("logs/tiny/run_0/receipt.json")) for m in (machine, cpu))
    assert (here["device"]["kind"], here["state"]) == (NAME, "finished")
    assert [here[k] for k in ("order", "initial_weights")] == [
        there[k] for k in ("order", "initial_weights")
    ]


def test_diagnostics_see_what_they_see_on_the_cpu(machine: Machine, cpu: Machine) -> None:
    # A part's gradient, of at most hundreds of entries, is a shorter sum than the loss.
    assert_same(machine.table("diagnostics.csv"), cpu.table("diagnostics.csv"), 1e-4)


@pytest.mark.parametrize("verb", ["validate", "test"])
def test_its_checkpoint_scores_as_on_the_cpu(
    machine: Machine, cpu: Machine, verb: str, on_the_cpu: dict[str, Any]
) -> None:
    if verb not in on_the_cpu:
        on_the_cpu[verb] = numbers(cpu.trainer(verb, "--name=tiny"))
    here, there = numbers(machine.trainer(verb, "--name=tiny")), on_the_cpu[verb]
    assert here == pytest.approx(there, rel=FLOAT32)
    assert here[f"{'val' if verb == 'validate' else 'test'}_targets"] > 0


def numbers(lines: str) -> dict[str, float]:
    """``name value`` on each line."""
    return {name: float(value) for name, value in map(str.split, lines.splitlines())}


def test_its_checkpoint_writes_the_text_that_it_writes_on_the_cpu(machine: Machine) -> None:
    words = ("generate", "--ckpt_path=logs/tiny/run_0", "--max_new_tokens=40", "--temperature=0")
    code, text, err = machine.try_out(*words)
    assert code == 0, err
    assert f"on {NAME}" in err
    assert machine(*words, "--accelerator=cpu") == text
    code, _, err = machine.try_out(*words, "--accelerator=tpu")
    assert code == 2
    assert err.endswith(f"--accelerator tpu: there is none on this machine; use {NAME} or cpu\n")


RUNS: dict[str, tuple[dict[str, Any], float]] = {
    "muon, windows, caps, sinks, workers": (
        {
            "model__optimizer__kind": "muon",
            "model__decoder__attention__window": 8,
            "model__decoder__attention__softcap": 20.0,
            "model__decoder__attention__sinks": "true",
            "model__decoder__logit_softcap": 15.0,
            "data__num_workers": 1,
            "trainer__accumulate_grad_batches": 2,
        },
        FLOAT32,
    ),
    "ema, dropout, scaled angles": (
        {
            "model__averaging__kind": "ema",
            "model__averaging__decay": 0.9,
            "model__decoder__dropout": 0.1,
            "model__decoder__position__rope_scaling__kind": "dynamic",
        },
        FLOAT32,
    ),
    "tail, documents, the 2017 parts": (
        {
            "model__averaging__kind": "tail",
            "model__averaging__start_step": 2,
            "model__z_loss": 0.001,
            "model__decoder__position__kind": "alibi",
            "model__decoder__norm__kind": "layernorm",
            "data__corpus": "lines.jsonl",
            "data__document_mask": "true",
        },
        FLOAT32,
    ),
    "products in bfloat16": ({"trainer__precision": "bf16-mixed"}, BFLOAT16),
    "weights in bfloat16": ({"trainer__precision": "bf16-true"}, ALL_BFLOAT16),
}


@pytest.fixture(scope="module")
def on_the_cpu() -> dict[str, Any]:
    """What was found there: it is the same for both rules."""
    return {}


@pytest.mark.parametrize("rules", BOTH)
@pytest.mark.parametrize("run", RUNS)
def test_switches_train_as_on_the_cpu(
    run: str, rules: str, make_machine: Any, on_the_cpu: dict[str, Any]
) -> None:
    changes, within = RUNS[run]
    if run not in on_the_cpu:
        cpu = make_machine(None)
        cpu.trainer("fit", *flags(**changes))
        on_the_cpu[run] = cpu.metrics()
    machine = make_machine(rules)
    machine.trainer("fit", *flags(**changes))
    assert_same(
        [only_losses(row) for row in machine.metrics()],
        [only_losses(row) for row in on_the_cpu[run]],
        within,
    )


def only_losses(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if name in LOSSES}


@pytest.mark.parametrize("rules", BOTH)
def test_the_bench_times_steps_and_decoding(rules: str, make_machine: Any) -> None:
    machine = make_machine(rules)
    (machine.folder / "tiny.yaml").write_text("{}")
    tried = flags(trainer__max_steps=5, trainer__log_every_n_steps=5)
    left_out = ("--name", "--seed_everything", "--trainer.val_check")
    kept = [flag for flag in tried if not flag.startswith(left_out)]
    found = json.loads(machine("bench", "tiny", *kept, *machine.flags, "--format", "json"))
    assert found["device"] == NAME
    assert found["tokens_per_second"] > 0
    assert found["decoding"]["tokens_per_second"] > 0
    assert sum(found["share"].values()) == pytest.approx(1)


@pytest.mark.parametrize("rules", BOTH)
def test_the_range_of_rates_is_walked(
    rules: str, make_machine: Any, on_the_cpu: dict[str, Any]
) -> None:
    pytest.importorskip("plotly", reason="pages need plotly")

    def losses(machine: Machine) -> list[float]:
        size = [f for f in flags() if f.startswith(("--model.decoder", "--data"))]
        machine.trainer("lr-range", "llama.yaml", "--steps=20", "--repeats=1", *size)
        # Rates grow until the loss leaves: only the first steps are small ones.
        return json.loads(machine.read("logs/lr-range/llama/results.json"))["losses"][:10]

    if "losses" not in on_the_cpu:
        on_the_cpu["losses"] = losses(make_machine(None))
    assert losses(make_machine(rules)) == pytest.approx(on_the_cpu["losses"], rel=FLOAT32)


@pytest.mark.parametrize("rules", BOTH)
def test_a_worker_of_a_study_times_trains_scores_and_probes(
    rules: str, make_machine: Any, on_the_cpu: dict[str, Any]
) -> None:
    def score(machine: Machine) -> float:
        train = {
            "arguments": [*flags(), *machine.flags],
            "folder": str(machine.folder / "logs" / "tiny" / "run_0"),
            "scores": {"twice": {"data.context_length": 32}},
            "decode": {"context": 8, "tokens": 4},
            "probe": True,
        }
        answer = perform(machine, "train", train)
        assert answer["causal"] is True
        assert answer["decoding"]["tokens_per_second"] > 0
        return float(answer["scores"][0]["val_loss"])

    if "score" not in on_the_cpu:
        on_the_cpu["score"] = score(make_machine(None))
    machine = make_machine(rules)
    assert score(machine) == pytest.approx(on_the_cpu["score"], rel=FLOAT32)
    step = {
        "decoder": {"dim": 16, "n_layers": 1, "context_length": 8, "vocab_size": 11},
        "optimizer": {},
        "batch_size": 4,
        "accumulation": 2,
        "context": 8,
        "precision": "bf16-mixed",
        "device": NAME,
    }
    assert perform(machine, "time", step)["step"] > 0


def perform(machine: Machine, task: str, settings: dict[str, Any]) -> Any:
    request = {"do": task, "with": settings, "log": str(machine.folder / "log.txt")}
    answer = machine.call("llama_lab.studies.worker:perform", request=request)
    assert answer["end"] == "finished", machine.read("log.txt")
    return answer


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no bfloat16": (
        "older_metal",
        {"trainer__precision": "bf16-mixed"},
        f"--trainer.precision bf16-mixed: {NAME} does not compute in bfloat16, as a trial showed",
    ),
    "no float64": (
        "metal",
        {"trainer__precision": "64-true"},
        f"--trainer.precision 64-true: {NAME} does not compute in float64, as a trial showed",
    ),
    "no compiler": (
        "cuda",
        {"model__compile": "true"},
        "--model.compile true is impossible here",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_device_lacks_is_refused_in_one_line(case: str, make_machine: Any) -> None:
    rules, changes, words = REFUSED[case]
    machine = make_machine(rules)
    code, _, err = machine.try_out("fit", *flags(**changes), *machine.flags)
    assert code == 2, err
    assert err.count("\n") == 1
    assert err.startswith(f"llama-lab: error: {words}")


def test_muon_multiplies_in_float32_where_there_is_no_bfloat16(make_machine: Any) -> None:
    machine = make_machine("older_metal")
    machine.trainer("fit", *flags(model__optimizer__kind="muon"))
    losses = [row["train_loss"] for row in machine.metrics() if "train_loss" in row]
    assert losses[-1] < losses[0]


STUDY = """
base: tiny.yaml
settings: {{trainer.accelerator: {name}, trainer.strategy: {name}}}
seeds: [1, 2]
probe: true
arms:
  layernorm: {{model.decoder.norm.kind: layernorm}}
"""
STARTS = """
import os
if os.environ.get("PRETENDED_RULES"):
    from tests.device import pretended
    pretended.install(os.environ["PRETENDED_RULES"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("rules", BOTH)
def test_a_study_runs_in_workers_of_its_own(rules: str, make_machine: Any) -> None:
    folder = make_machine(rules).folder
    lines = [flag.removeprefix("--").split("=") for flag in flags() if "name" not in flag]
    config: dict[str, Any] = {}
    for dotted, value in lines:
        *groups, last = dotted.split(".")
        group = config
        for word in groups:
            group = group.setdefault(word, {})
        group[last] = value
    (folder / "tiny.yaml").write_text(json.dumps(config).replace('"', ""))
    (folder / "study.yaml").write_text(STUDY.format(name=NAME))
    (folder / "sitecustomize.py").write_text(STARTS)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))),
        "PRETENDED_RULES": rules,
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "llama_lab", "ablate", "--config", "study.yaml"]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    receipts = list(folder.glob("logs/studies/study/*/seed_*/receipt.json"))
    assert len(receipts) == 4
    for receipt in receipts:
        assert json.loads(receipt.read_text())["device"]["kind"] == NAME
