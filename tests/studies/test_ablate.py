"""Whole studies through the command line: real workers, real runs, real reports."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

pytest.importorskip("scipy", reason="the statistics of studies need the extra `lab`")
pytest.importorskip("plotly", reason="the report of a study needs the extra `lab`")

from llama_lab.cli import main
from llama_lab.dotted_names import unflatten
from tests.runs.conftest import TEXT, TINY, equal_weights, start
from tests.runs.test_board import FAILURE, SUCCESS, Table

STUDY: dict[str, Any] = {
    "base": "llama.yaml",
    "seeds": [0, 1],
    "probe": True,
    "settings": unflatten(
        {
            **{key: value for key, value in TINY.items() if "." in key},
            "model.decoder.dropout": 0.1,
        }
    ),
    "arms": {
        "layernorm": {"model.decoder.norm.kind": "layernorm"},
        "leaky": {"model.fault": "no_causal_mask"},
        "explodes": {"model.optimizer.lr": 1e30, "trainer.gradient_clip_val": None},
    },
    "scores": {"32": {"data.context_length": 32}, "tiled": {"model.fault": "kv_tiled"}},
    "decode": {"context": 8, "tokens": 4},
}


def write(folder: Path, **content: Any) -> None:
    """``trial.yaml`` and its text."""
    (folder / "text.txt").write_text(TEXT)
    (folder / "trial.yaml").write_text(yaml.safe_dump({**STUDY, **content}))


def call(folder: Path, *argv: str, code: int = 0) -> str:
    """What ``llama-lab`` prints in this process; it must end with ``code``."""
    out, err, before = io.StringIO(), io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            ended = main(list(argv))
    finally:
        os.chdir(before)
    assert ended == code, out.getvalue() + err.getvalue()
    return out.getvalue() if code == 0 else err.getvalue()


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Workers take the number from here; this process has one as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A study that has run: its working folder, and what it printed."""
    folder = tmp_path_factory.mktemp("study")
    write(folder)
    return folder, call(folder, "ablate", "--config", "trial.yaml")


def results(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (folder / "logs/studies/trial/results.json").read_text(encoding="utf-8")
    )
    return found


def arm(folder: Path, name: str) -> dict[str, Any]:
    return next(arm for arm in results(folder)["arms"] if arm["name"] == name)


def weights(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    return found


def test_it_says_what_it_will_run_and_how_long_before_it_does(done: tuple[Path, str]) -> None:
    _, out = done
    before, _, after = out.partition("   1/8")
    assert "4 arms x 2 seeds" in before
    assert "12 steps of 8 x 16 tokens" in before
    assert "for the 8 left" in before
    assert "report:" in after


def test_tensorboard_sorts_the_runs_of_a_study_by_what_its_arms_change(
    done: tuple[Path, str],
) -> None:
    table = Table(done[0] / "logs/studies/trial")
    arms = ("base", "layernorm", "leaky", "explodes")
    runs = {f"{arm}/seed_{seed}" for arm in arms for seed in (0, 1)}
    assert table.rows.keys() == runs
    changed = {"model.decoder.norm.kind", "model.fault", "model.optimizer.lr"}
    clip = "trainer.gradient_clip_val"
    assert table.differing() == {*changed, clip, "name", "seed_everything", "parameters"}
    for run in runs:
        arm, _, seed = run.partition("/seed_")
        assert (table.setting(run, "name"), table.setting(run, "seed_everything")) == (
            arm,
            int(seed),
        )
        assert table.status(run) == (FAILURE if arm == "explodes" else SUCCESS)
    assert table.setting("base/seed_0", "model.fault") == "none"
    assert table.setting("explodes/seed_0", clip) == 0.0


def test_every_run_is_an_ordinary_run_folder_with_arm_and_seed_in_its_name(
    done: tuple[Path, str],
) -> None:
    folder, _ = done
    for name in ("base", "layernorm", "leaky"):
        for seed in (0, 1):
            run = folder / "logs/studies/trial" / name / f"seed_{seed}"
            for file in ("config.yaml", "metrics.csv", "receipt.json", "checkpoints/best.ckpt"):
                assert (run / file).is_file()
            assert list(run.glob("events.out.tfevents*"))
    assert "val_loss" in call(folder, "validate", "--ckpt_path", "logs/studies/trial/base/seed_0")


def test_a_run_of_a_warm_worker_equals_a_fit_of_its_own_process_to_the_bit(
    done: tuple[Path, str],
) -> None:
    folder, _ = done
    # The last run of the worker: many others, one of them diverged, came before it.
    run = folder / "logs/studies/trial/leaky/seed_1"
    call(folder, "fit", "--config", str(run / "config.yaml"), "--name", "alone")
    assert equal_weights(weights(run), weights(folder / "logs/alone/run_0"))


def test_arms_of_a_seed_did_the_same_work(done: tuple[Path, str]) -> None:
    folder, _ = done
    receipts = {
        (name, run["seed"]): run["receipt"]
        for name in ("base", "layernorm", "leaky")
        for run in arm(folder, name)["runs"]
    }
    for seed in (0, 1):
        assert len({receipts[name, seed]["order"] for name in ("base", "layernorm", "leaky")}) == 1
        equal = [receipts[name, seed]["initial_weights"] for name in ("base", "layernorm")]
        for part in ("embedding", "attention", "feed_forward", "head"):
            assert equal[0][part] == equal[1][part]
    assert len({receipts["base", seed]["order"] for seed in (0, 1)}) == 2


def test_an_arm_that_diverges_is_told_of_and_drops_no_other(done: tuple[Path, str]) -> None:
    folder, out = done
    assert {run["end"] for run in arm(folder, "explodes")["runs"]} == {"diverged"}
    assert all("not finite" in run["reason"] for run in arm(folder, "explodes")["runs"])
    assert {run["end"] for run in arm(folder, "leaky")["runs"]} == {"finished"}
    assert "arm diverged at seed 0" in out
    family = {a["name"]: a for a in results(folder)["family"]["arms"]}
    assert family["explodes"]["verdict"] == "diverged in 2 of 2"
    assert family["layernorm"]["comparison"]["seeds"] == [0, 1]


def test_the_primary_measure_is_the_lowest_bits_per_byte_of_the_validations(
    done: tuple[Path, str],
) -> None:
    folder, _ = done
    for run in arm(folder, "layernorm")["runs"]:
        path = folder / "logs/studies/trial" / run["folder"] / "metrics.csv"
        with path.open() as file:
            rows = [r for r in csv.DictReader(file) if r["val_bits_per_byte"]]
        assert [int(r["step"]) for r in rows] == [5, 10, 12]
        assert run["primary"] == min(float(r["val_bits_per_byte"]) for r in rows)
        assert run["last_loss"] == float(rows[-1]["val_loss"])
    difference = [
        theirs["primary"] - ours["primary"]
        for theirs, ours in zip(
            arm(folder, "layernorm")["runs"], arm(folder, "base")["runs"], strict=True
        )
    ]
    family = {a["name"]: a for a in results(folder)["family"]["arms"]}
    assert family["layernorm"]["comparison"]["difference"] == pytest.approx(sum(difference) / 2)


def test_last_weights_are_scored_under_other_settings_as_validate_does(
    done: tuple[Path, str],
) -> None:
    folder, _ = done
    run = arm(folder, "base")["runs"][0]
    scores = {score["name"]: score for score in run["scores"]}
    path = str(folder / "logs/studies/trial" / run["folder"])
    for name, flag in (("32", "--data.context_length=32"), ("tiled", "--model.fault=kv_tiled")):
        out = call(folder, "validate", "--ckpt_path", path, flag)
        values = dict(line.split() for line in out.splitlines())
        assert scores[name]["val_loss"] == pytest.approx(float(values["val_loss"]), rel=1e-6)
    assert scores["tiled"]["val_loss"] != scores["32"]["val_loss"]


def test_an_arm_that_sees_later_tokens_is_found_and_gets_no_verdict(done: tuple[Path, str]) -> None:
    folder, _ = done
    assert {run["causal"] for run in arm(folder, "leaky")["runs"]} == {False}
    assert {run["causal"] for run in arm(folder, "base")["runs"]} == {True}
    family = {a["name"]: a for a in results(folder)["family"]["arms"]}
    assert family["leaky"]["verdict"] == "no verdict"
    assert "sees later tokens" in family["leaky"]["sentence"]


def test_started_again_it_trains_nothing_and_writes_the_same_results(
    done: tuple[Path, str],
) -> None:
    folder, _ = done
    before = results(folder)
    written = (folder / "logs/studies/trial/base/seed_0/checkpoints/last.ckpt").stat().st_mtime_ns
    out = call(folder, "ablate", "--config", "trial.yaml", "--report_only", "true")
    assert "8 runs are finished" in out
    after = results(folder)
    assert {**before, "command": ""} == {**after, "command": ""}
    path = folder / "logs/studies/trial/base/seed_0/checkpoints/last.ckpt"
    assert path.stat().st_mtime_ns == written


def test_runs_lists_the_runs_of_a_study_and_in_what_they_differ(done: tuple[Path, str]) -> None:
    folder, _ = done
    listed = json.loads(call(folder, "runs", "--format", "json", "--name", "studies/trial"))
    by_folder = {Path(run["folder"]).relative_to("logs/studies/trial"): run for run in listed}
    run = by_folder[Path("layernorm/seed_1")]
    assert (run["state"], run["steps"], run["max_steps"], run["seed"]) == ("finished", 12, 12, 1)
    assert run["differs"] == {"model.decoder.norm.kind": "layernorm"}
    assert by_folder[Path("explodes/seed_0")]["state"] == "failed"
    assert "norm.kind layernorm" in " ".join(call(folder, "runs").split())


def test_a_changed_study_does_not_pass_old_runs_for_new_ones(done: tuple[Path, str]) -> None:
    folder, _ = done
    err = call(folder, "ablate", "--config", "trial.yaml", "--model.optimizer.lr", "0.5", code=1)
    assert "was trained with model.optimizer.lr 0.002" in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.slow
def test_stopped_and_killed_and_started_again_it_ends_as_a_study_that_was_not(
    done: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = done
    write(tmp_path, seeds=[0], arms={"layernorm": STUDY["arms"]["layernorm"]}, scores={})
    written: dict[Path, int] = {}
    for number, code, name in (
        (signal.SIGTERM, 143, "base/seed_0"),
        (signal.SIGKILL, -9, "layernorm/seed_0"),
    ):
        process = start(tmp_path, "ablate", "--config", "trial.yaml")
        last = tmp_path / "logs/studies/trial" / name / "checkpoints" / "last.ckpt"
        wait_for(last, process)
        process.send_signal(number)
        process.communicate(timeout=120)
        assert process.returncode == code
        for done_before in tmp_path.rglob("outcome.json"):
            written[done_before] = done_before.stat().st_mtime_ns
    assert written
    call(tmp_path, "ablate", "--config", "trial.yaml")
    assert all(path.stat().st_mtime_ns == when for path, when in written.items())
    for name in ("base", "layernorm"):
        run = f"logs/studies/trial/{name}/seed_0"
        assert equal_weights(weights(tmp_path / run), weights(folder / run))


@pytest.mark.parametrize(
    ("name", "to_parent", "to_worker"),
    [
        pytest.param("SIGUSR1", True, True, id="all"),
        pytest.param("SIGUSR2", True, False, id="the parent alone", marks=pytest.mark.slow),
        pytest.param("SIGUSR1", False, True, id="the worker alone", marks=pytest.mark.slow),
    ],
)
def test_an_announced_end_saves_the_run_and_the_same_command_goes_on_with_it(
    tmp_path: Path, name: str, to_parent: bool, to_worker: bool
) -> None:
    write(tmp_path, seeds=[0], arms={"layernorm": STUDY["arms"]["layernorm"]}, scores={})
    command = ("ablate", "--config", "trial.yaml", "--trainer.max_steps", "100000")
    run, log = (tmp_path / "logs/studies/trial" / p for p in ("base/seed_0", "worker-logs"))
    process = start(tmp_path, *command)
    wait_for(run / "checkpoints" / "last.ckpt", process)
    workers = children(process.pid)
    assert len(workers) == 1
    for pid in [process.pid] * to_parent + workers * to_worker:
        os.kill(pid, getattr(signal, name))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 143, out + err
    assert f"stopped by {name}" in err
    assert "the same command goes on" in err
    assert len(err.strip().splitlines()) == 1
    step = weights(run)["global_step"]
    assert json.loads((run / "receipt.json").read_text())["state"] == "stopped"

    process = start(tmp_path, *command)
    until = time.monotonic() + 60
    while f"going on from step {step:,}\n" not in (log / "base-seed_0.txt").read_text():
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    assert weights(run)["global_step"] >= step


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=True)
    return [int(word) for word in found.stdout.split()]


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a running study has written a file."""
    end = time.monotonic() + 120
    while not path.is_file():
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)


def test_a_run_that_did_other_work_stops_the_study_with_the_difference_named(
    done: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = done
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "logs/studies/trial/results.json").unlink()
    path = tmp_path / "logs/studies/trial/layernorm/seed_1/receipt.json"
    receipt = json.loads(path.read_text())
    for key, value, words in (
        ("order", "00ff", "order of the data 00ff where"),
        ("initial_weights", {**receipt["initial_weights"], "head": "00ff"}, "weights of head 00ff"),
        ("sequences", 95, "sequences consumed 95 where 96 was due"),
    ):
        path.write_text(json.dumps({**receipt, key: value}))
        err = call(tmp_path, "ablate", "--config", "trial.yaml", code=1)
        assert "arm layernorm, seed 1" in err
        assert words in err
    assert not (tmp_path / "logs/studies/trial/results.json").exists()


@pytest.mark.slow
def test_two_at_once_give_the_same_weights(done: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = done
    write(tmp_path, seeds=[0], arms={"other": STUDY["arms"]["layernorm"]}, scores={})
    out = call(tmp_path, "ablate", "--config", "trial.yaml", "--jobs", "2")
    assert "2 at once" in out
    assert "a single seed does not show how much is chance" in out
    for name, there in (("base", "base"), ("other", "layernorm")):
        run, other = (f"logs/studies/trial/{arm}/seed_0" for arm in (name, there))
        assert equal_weights(weights(tmp_path / run), weights(folder / other))


def test_each_arm_takes_its_own_best_value_from_equally_many_trials(tmp_path: Path) -> None:
    rates = [1e-6, 1e-2]
    write(
        tmp_path,
        seeds=[0],
        arms={"layernorm": STUDY["arms"]["layernorm"]},
        tune={"model.optimizer.lr": rates},
        tune_seeds=[7],
        scores={},
        decode=None,
    )
    call(tmp_path, "ablate", "--config", "trial.yaml")
    for name in ("base", "layernorm"):
        found = arm(tmp_path, name)
        trials = found["tuned"]["trials"]
        assert [t["values"]["model.optimizer.lr"] for t in trials] == rates
        assert {t["seed"] for t in trials} == {7}
        assert trials[1]["primary"] < trials[0]["primary"]
        assert found["tuned"]["chosen"] == {"model.optimizer.lr": 1e-2}
        config = tmp_path / "logs/studies/trial" / name / "seed_0" / "config.yaml"
        assert yaml.safe_load(config.read_text())["model"]["optimizer"]["lr"] == 1e-2


@pytest.mark.slow
def test_seeds_that_were_added_after_a_look_are_told_of(
    done: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = done
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    call(tmp_path, "ablate", "--config", "trial.yaml", "--seeds", "[0,1,2]")
    family = results(tmp_path)["family"]
    assert family["looks"] == [2, 3]
    assert family["exploratory"] is True


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--config", "nowhere"), "no such study or file; there are"),
        (("--config", "trial.yaml", "--jobs", "0"), "--jobs 0: must be 1 or more"),
        (("--config", "trial.yaml", "--trainer.max_stepz", "3"), "max_stepz"),
        (("--config", "trial.yaml", "--data.corpus", "nowhere.txt"), "nowhere.txt"),
        (("--config", "trial.yaml", "--seeds", "[1,1]"), "twice"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_run(
    tmp_path: Path, argv: tuple[str, ...], words: str
) -> None:
    write(tmp_path)
    err = call(tmp_path, "ablate", *argv, code=2)
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("receipt.json"))
