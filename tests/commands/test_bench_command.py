"""``llama-lab bench``: the real step, decoding and ceilings, at tiny size."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

from llama_lab.bench.config_speed import BenchResult, DecodingSpeed, StepMs
from llama_lab.bench.limits import PHASES
from llama_lab.cli import main
from llama_lab.commands.bench import print_table

CONFIG = """
model:
  decoder: {dim: 16, n_layers: 2, context_length: 16, attention: {n_heads: 4, n_kv_heads: 2}}
data: {corpus: text.txt, batch_size: 8}
trainer: {accelerator: cpu, max_steps: 30, val_check_interval: 4}
checkpoint_every: 3
"""
TEXT = "".join(f"{i} times {i} is {i * i};\n" for i in range(300))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    (folder / "tiny.yaml").write_text(CONFIG)
    (folder / "resumed.yaml").write_text(CONFIG + "ckpt_path: elsewhere.ckpt\n")
    (folder / "text.txt").write_text(TEXT)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> tuple[dict[str, Any], str]:
    """The JSON of one call, and what went to standard error."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["bench", "tiny", "--data.batch_size", "12", "--trainer.accumulate_grad_batches=2"]
    state = torch.get_rng_state()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        code = main([*argv, "--format", "json"])
    torch.set_rng_state(state)
    assert code == 0, err.getvalue()
    return json.loads(out.getvalue()), err.getvalue()


def test_it_times_the_work_of_fit_with_the_flags_of_fit(found: tuple[dict[str, Any], str]) -> None:
    result, err = found
    assert result["name"] == "tiny"
    assert result["tokens_per_step"] == 12 * 16
    # 30 steps are the budget: one and two warm up, and of 27 two log intervals of ten are whole.
    assert result["steps"] == 20
    assert (result["device"], result["precision"]) == ("cpu", "32-true")
    assert result["threads"] == torch.get_num_threads()
    assert result["compiled"] is False
    assert "start" in result["compiled_because"]
    step = result["step_ms"]
    assert 0 < step["min"] <= step["median"] <= step["max"]
    assert result["limit"]
    assert "timing" in err


def test_the_shares_of_all_phases_sum_to_the_step(found: tuple[dict[str, Any], str]) -> None:
    share = found[0]["share"]
    assert tuple(share) == PHASES
    assert sum(share.values()) == pytest.approx(1)
    assert all(part > 0 for part in share.values())


def test_flops_are_those_of_describe_and_mfu_is_of_the_ceiling(
    found: tuple[dict[str, Any], str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    result = found[0]
    monkeypatch.chdir(folder)
    vocabulary = f"--model.decoder.vocab_size={len(set(TEXT))}"
    assert main(["describe", "tiny", vocabulary, "--format", "json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert result["flops_per_token"] == described["flops_per_token"]["training"]
    assert result["parameters"] == described["parameters"]["total"]
    flops = result["tokens_per_second"] * result["flops_per_token"]
    assert result["flops_per_second"] == pytest.approx(flops)
    ceiling = result["matmul_ceiling_flops_per_second"]
    assert result["mfu"] == pytest.approx(flops / ceiling)
    decoding = result["decoding"]
    read = decoding["tokens_per_second"] * decoding["bytes_per_token"]
    share = read / result["memory_bandwidth_bytes_per_second"]
    assert decoding["bandwidth_share"] == pytest.approx(share)


def test_nothing_is_left_but_the_token_store(
    found: tuple[dict[str, Any], str], folder: Path
) -> None:
    left = {path.name for path in folder.iterdir()}
    assert left == {"tiny.yaml", "resumed.yaml", "text.txt", "data"}
    assert [path.name for path in (folder / "data").iterdir()] == ["cache"]


def test_the_table_says_the_same_within_80_columns(
    found: tuple[dict[str, Any], str], capsys: Any
) -> None:
    result = found[0]
    print_table(
        BenchResult(
            **{
                **result,
                "step_ms": StepMs(**result["step_ms"]),
                "decoding": DecodingSpeed(**result["decoding"]),
            }
        )
    )
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    text = " ".join(out.split())
    assert f"{result['tokens_per_second']:,.0f} tokens/s" in text
    assert f"{result['mfu']:.1%}" in text
    assert result["limit"] in text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("lama",), "did you mean llama?"),
        (("tiny", "--trainer.val_check_interval=5"), "would do nothing"),
        (("tiny", "--name", "x"), "--name: no such setting"),
        (("tiny", "--data.batch_size"), "its value is missing"),
        (("tiny", "--data.batch_size=0"), "--data.batch_size 0"),
        (("resumed",), "the bench goes on with no run"),
        (("tiny", "--trainer.devices=2"), "--trainer.devices"),
    ],
)
def test_a_mistake_is_one_line(
    argv: tuple[str, ...],
    words: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
) -> None:
    monkeypatch.chdir(folder)
    assert words in refused("bench", *argv)
