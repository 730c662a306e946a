"""What ``llama-lab describe`` says of FLOPs, caches and memory, through its entry point."""

import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from llama_lab.cli import main as entry
from llama_lab.commands.describe import build_parser
from llama_lab.commands.describe_accounts import AccountOptions, parse_bytes
from llama_lab.inspect.memory import PRECISIONS, activation_bytes
from llama_lab.model.decoder import DecoderConfig
from llama_lab.training.averaging import AveragingKind
from tests.commands.conftest import describe, described, refusal

GIB = 1 << 30
HUGE = ("--batch_size", "9999999", "--context", "9999999")


def test_a_cache_of_128k_is_known(here, capsys):
    long = ("--context", "131072")
    content = described(capsys, "llama-7b", *long)
    assert content["kv_cache"]["mha"] == content["kv_cache"]["gqa"]
    assert content["kv_cache"]["mha"]["bytes"] == 64 * GIB
    assert content["kv_cache"]["mqa"]["bytes"] == 2 * GIB
    assert content["kv_cache_bytes_per_token"] == 64 * GIB // 131072
    grouped = described(capsys, "llama-7b", *long, "--model.decoder.attention.n_kv_heads", "8")
    assert grouped["kv_cache"]["mha"]["bytes"] == 64 * GIB
    assert grouped["kv_cache"]["gqa"] == {
        "n_kv_heads": 8,
        "bytes_per_token": 16 * GIB // 131072,
        "bytes": 16 * GIB,
    }
    more = described(capsys, "llama-7b", *long, "--batch_size", "3", "--cache_precision", "32")
    assert more["kv_cache"]["mha"]["bytes"] == 6 * 64 * GIB


def test_the_context_is_the_decoders_unless_it_is_given(here, capsys):
    content = described(capsys, "llama3-8b")
    assert content["context"] == 8192
    assert content["kv_cache"]["gqa"]["bytes"] == GIB
    flops = content["flops_per_token"]
    assert flops["training"] == 3 * flops["forward"]
    shorter = described(capsys, "llama3-8b", "--context", "4096")["flops_per_token"]
    assert flops["forward"] - shorter["forward"] == 32 * 4 * 4096 * 4096


def test_bytes_and_training_memory_follow_the_precision(here, capsys):
    for precision, size in (("32-true", 4), ("bf16-mixed", 4), ("bf16-true", 2)):
        content = described(capsys, "mini-llama", "--precision", precision)
        count = content["parameters"]
        assert content["bytes"] == {
            "total": size * count["total"],
            "by_part": {part: size * n for part, n in count["by_part"].items()},
        }
        memory = content["training_memory"][precision]
        activations = memory["activations"]
        assert memory == {
            "optimizer": "adamw",
            "weights": size * count["total"],
            "gradients": size * count["total"],
            "optimizer_states": 2 * size * count["total"],
            "activations": activations,
            "averaged_weights": 0,
            "total": 4 * size * count["total"] + activations,
        }
        assert content["generation_memory"]["weights"] == size * count["total"]


def test_activations_are_those_of_the_batch_and_the_context(here, capsys):
    at = ("--batch_size", "3", "--context", "200")
    content = described(capsys, "mini-llama", "--model.decoder.vocab_size", "300", *at)
    config = DecoderConfig.from_dict(content["decoder"])
    for precision, memory in content["training_memory"].items():
        assert memory["activations"] == activation_bytes(config, precision, 3, 200)


def test_every_precision_and_optimiser_is_known(here):
    assert get_args(get_type_hints(AccountOptions)["precision"]) == tuple(PRECISIONS)
    choices, _ = get_args(get_type_hints(AccountOptions)["averaging"])
    assert get_args(choices) == get_args(AveragingKind)


def test_muon_remembers_one_number_for_each_matrix_of_the_blocks(here, capsys):
    content = described(capsys, "llama-7b", "--optimizer", "muon")
    of_blocks = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008)
    memory = content["training_memory"]["32-true"]
    assert memory["optimizer"] == "muon"
    assert memory["optimizer_states"] == 4 * (2 * content["parameters"]["total"] - of_blocks)


def test_a_configs_own_optimiser_is_counted_where_none_is_given(here, capsys):
    size = ("--model.decoder.vocab_size", "65")
    for flags, kind in (((), "muon"), (("--optimizer", "adamw"), "adamw")):
        content = described(capsys, "nanogpt-cpu-best", *size, *flags)
        assert content["training_memory"]["32-true"]["optimizer"] == kind


def test_an_average_takes_the_memory_of_the_weights_once_more(here, capsys):
    size = ("--model.decoder.vocab_size=65",)
    (here / "averaged.yaml").write_text("model: {averaging: {kind: ema}}")
    plain, own, none, flag = (
        described(capsys, name, *size, *flags)["training_memory"]["bf16-mixed"]
        for name, flags in (
            ("llama", ()),
            ("averaged.yaml", ()),
            ("averaged.yaml", ("--averaging=none",)),
            ("averaged.yaml", ("--averaging=tail",)),
        )
    )
    assert plain["averaged_weights"] == none["averaged_weights"] == 0
    for memory in (own, flag):
        assert memory["averaged_weights"] == memory["weights"]
        assert memory["total"] == none["total"] + memory["weights"]


def test_what_fits_is_said_for_training_and_generation(here, capsys):
    bf16 = ("llama-7b", "--precision", "bf16-true", "--device_memory")
    # 12.6 GiB of weights, four times that and 12.7 GiB of activations in training; 1 GiB of cache
    # for 2,048 tokens.
    for memory, training, generation in (
        ("13.5GiB", False, False),
        ("13.6GiB", False, True),
        ("60GiB", False, True),
        ("64GiB", True, True),
    ):
        content = described(capsys, *bf16, memory)
        assert content["fits"] == {"training": training, "generation": generation}, memory
    assert content["device_memory"] == 64 * GIB
    more = described(capsys, *bf16, "24GiB", "--batch_size", "12")
    assert more["fits"]["generation"] is False
    assert described(capsys, *bf16, "64GiB", "--batch_size", "2")["fits"]["training"] is False
    assert described(capsys, "llama-7b")["fits"] is None


def test_sizes_are_read_in_both_units():
    for text, size in (("24GiB", 24 * GIB), ("80 gb", 80 * 10**9), ("1.5KiB", 1536), ("7B", 7)):
        assert parse_bytes("--device_memory", text) == size


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device_memory", "24"], "--device_memory 24: must be a number above 0 and a unit (B,"),
        (["--device_memory", "24XB"], "such as 24GiB"),
        (["--device_memory", "0GiB"], "--device_memory 0GiB: must be a number above 0"),
        (["--device_memory=-1GiB"], "--device_memory -1GiB: must be a number above 0"),
        (["--device_memory", "nan GiB"], "--device_memory nan GiB: must be"),
        (["--device_memory", "9" * 400 + "GiB"], "must be a number above 0"),
        (["--context", "0"], "--context 0: must be a whole number from 1"),
        (["--context", "1.5"], "--context 1.5: must be a whole number"),
        (["--batch_size", "0"], "--batch_size 0: must be a whole number from 1"),
        (["--batch_size", "9" * 30], "must be a whole number from 1"),
        (
            [*HUGE, "--model.decoder.attention.softcap", "30"],
            "--batch_size 9999999 and --context 9999999: the sizes are impossible",
        ),
        (["--precision", "16"], "must be 32-true or bf16-mixed or bf16-true"),
        (["--cache_precision", "8"], "--cache_precision 8: must be 16 or 32"),
        (["--model.decoder.dim", str(10**18)], "the sizes are impossible"),
    ],
)
def test_a_faulty_question_is_refused_in_one_line(here, arguments, words):
    assert words in refusal("mini-llama", *arguments)


def test_learned_positions_reach_no_longer_context(here, capsys):
    line = refusal("gpt2", "--context", "2048")
    assert "--context 2048: --model.decoder.position.kind learned reaches 1024 tokens" in line
    described(capsys, "gpt2", "--context", "2048", "--model.decoder.context_length", "2048")


@pytest.mark.parametrize("width", [80, 120])
def test_the_tables_keep_to_the_width(here, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    arguments = ["llama3-70b", "--context", "131072", "--batch_size", "64"]
    assert describe(*arguments, "--device_memory", "80GiB") == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert "…" not in out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    assert "multi-head 64 2.5 MiB 20.0 TiB" in rows
    assert "as configured 8 320.0 KiB 2.5 TiB" in rows
    assert any(row.startswith("adamw, bf16-true 131.4 GiB 131.4 GiB 262.8 GiB ") for row in rows)
    assert "32-true 262.8 GiB 2.5 TiB 2.8 TiB" in rows
    assert "training in 32-true: does not fit in 80.0 GiB" in rows
    kept = "* kept of 64 x 131,072 tokens for the backward; fused attention, no dropout"
    assert kept in rows
    assert "** without activations, which come on top" in rows


def test_an_exported_folder_is_described_by_its_config_alone(write_run, here, capsys):
    checkpoint = str(write_run())
    assert entry(["export", checkpoint, "--output", "folder"]) == 0
    capsys.readouterr()
    expected = described(capsys, checkpoint)
    Path("folder/model.safetensors").unlink()
    content = described(capsys, "folder")
    assert content == {**expected, "name": "folder", "decoder": content["decoder"]}
    wider = described(capsys, "folder", "--model.decoder.attention.n_kv_heads", "null")
    assert wider["kv_cache"]["gqa"] == expected["kv_cache"]["mha"]
    Path("folder/config.json").write_text('{"model_type": "bert"}')
    assert "folder/config.json: model_type bert: this version reads" in refusal("folder")
    Path("folder/config.json").write_text("{")
    assert "folder/config.json: not a JSON file" in refusal("folder")


def test_help_names_what_json_holds():
    text = " ".join(build_parser("llama-lab describe").format_help().split())
    for name in (
        "flops_per_token.training",
        "kv_cache.mha",
        "training_memory.32-true",
        "activations",
        "fits",
    ):
        assert name in text


def test_the_largest_preset_is_described_at_once_and_without_weights(here):
    program = """if True:
        import resource, sys, time
        import torch
        from llama_lab.commands.describe import main
        started = time.process_time()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        main(["llama3-70b", "--context", "131072", "--format", "json"], "llama-lab describe")
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(time.process_time() - started, grown, file=sys.stderr)
    """
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, grown = result.stderr.split()
    assert float(seconds) < 6  # about 2 s, of which 1 s is sympy, which operations on `meta` import
    assert int(grown) < 300_000  # kilobytes; the weights are 141,000,000 in bfloat16
