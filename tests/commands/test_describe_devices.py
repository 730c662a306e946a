"""Memory and traffic of several devices, as ``llama-lab describe`` says them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from llama_lab.cli import main as entry


def test_devices_share_what_is_held_and_each_says_what_it_sends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = ["--model.decoder.vocab_size=64", "--device_memory=64KiB", "--bandwidth=1MB"]
    asked = ["--devices=8", "--strategy=fsdp", "--tensor_parallel=2", "--format=json"]
    assert entry(["describe", "mini-llama", *sizes, *asked]) == 0
    account = json.loads(capsys.readouterr().out)
    devices, total = account["devices"], account["parameters"]["total"]
    assert devices["marked"] == "computed, not measured"
    by_name = {
        (row["strategy"], row["devices"], row["tensor_parallel"]): row for row in devices["table"]
    }
    alone, eight = by_name["ddp", 8, 1], by_name["fsdp", 8, 1]
    assert alone["memory"]["weights"] == alone["memory"]["gradients"] == 4 * total
    assert alone["memory"]["optimizer_states"] == 8 * total
    # Rows that 8 does not divide are rounded up.
    assert 4 * total / 8 <= eight["memory"]["weights"] <= 1.02 * 4 * total / 8
    assert alone["sent"] == round(2 * 4 * total * 7 / 8)
    blocks = sum(account["parameters"]["by_part"][p] for p in ("attention", "feed_forward", "norm"))
    norm = account["decoder"]["dim"]  # the last one is in no block
    gathered = 2 * (blocks - norm) + (total - blocks + norm)
    assert eight["sent"] == round(4 * (gathered + total) * 7 / 8)
    assert eight["seconds"] == eight["sent"] / 1e6
    assert eight["fits"] is False
    row = devices["asked"]
    assert (row["devices"], row["tensor_parallel"]) == (8, 2)
    assert row["memory"]["activations"] < eight["memory"]["activations"]
    assert entry(["describe", "mini-llama", *sizes, *asked[:-1]]) == 0
    out = capsys.readouterr().out
    assert "computed, not measured" in out
    assert "4,096" in out


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--devices=9", "--tensor_parallel=2"], "--tensor_parallel 2 does not divide --devices 9"),
        (["--devices=8", "--tensor_parallel=8"], "--tensor_parallel 8 does not divide"),
        (["--devices=8", "--tensor_parallel=2", "--strategy=ddp"], "needs --strategy fsdp"),
        (["--devices=8", "--bandwidth=fast"], "--bandwidth fast"),
    ],
)
def test_devices_that_cannot_share_are_refused(
    refused: Callable[..., str], extra: list[str], words: str
) -> None:
    line = refused("describe", "mini-llama", "--model.decoder.vocab_size=64", *extra)
    assert words in line
