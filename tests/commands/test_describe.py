"""``llama-lab describe`` through its entry point."""

import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from llama_lab.commands.describe import build_parser
from llama_lab.model.decoder import DecoderConfig
from tests.commands.conftest import describe, described, refusal

BIG = {
    "vocab_size": 32000,
    "dim": 512,
    "n_layers": 4,
    "attention.n_heads": 8,
    "feed_forward.hidden_dim": 1365,
}
BASE_2017 = {
    "vocab_size": 37000,
    "dim": 512,
    "n_layers": 6,
    "attention.n_heads": 8,
    "feed_forward.hidden_dim": 2048,
    "feed_forward.kind": "relu",
    "feed_forward.bias": "true",
    "attention.qkv_bias": "true",
    "attention.output_bias": "true",
    "position.kind": "sinusoidal",
    "tie_embeddings": "true",
}


def flags(settings):
    words = ((f"--model.decoder.{name}", str(value)) for name, value in settings.items())
    return [word for pair in words for word in pair]


@pytest.mark.parametrize(
    ("config", "settings", "total"),
    [
        # By hand: embedding and head 2·V·D (one when tied), attention 2·D·(H+K)·E, feed-forward
        # 2·D·F or 3·D·F, norms, places and biases.
        ("transformer-2017", {"vocab_size": 1719}, 1_244_928),
        ("llama", {"vocab_size": 1719}, 1_178_496),
        ("llama", {**BIG, "attention.n_kv_heads": 2}, 43_780_608),
        ("llama", {**BIG, "attention.n_kv_heads": 8}, 45_353_472),
        ("transformer-2017", BASE_2017, 37_858_304),
    ],
)
def test_known_models_have_their_known_count(here, capsys, config, settings, total):
    content = described(capsys, f"configs/{config}.yaml", *flags(settings))
    assert content["parameters"]["total"] == total
    assert sum(content["parameters"]["by_part"].values()) == total


def test_names_paths_bare_decoder_files_and_presets_say_the_same(here, capsys):
    (here / "configs/decoders/small.yaml").write_text("{dim: 64, vocab_size: 100}\n")
    (here / "configs/run.yaml").write_text("model: {decoder: small}\ndata: {corpus: a.txt}\n")
    (here / "configs/beside.yaml").write_text("model: {decoder: decoders/small.yaml}\n")
    (here / "configs/plain.yaml").write_text("data: {corpus: a.txt}\n")
    expected = asdict(DecoderConfig(dim=64, vocab_size=100))
    for name in ("small", "decoders/small", "configs/decoders/small.yaml", "run", "beside"):
        content = described(capsys, name)
        assert content["decoder"] == expected, name
        assert content["name"] == name
    content = described(capsys, "plain", "--model.decoder", "small", "--model.decoder.dim=32")
    assert content["decoder"] == asdict(DecoderConfig(dim=32, vocab_size=100))
    content = described(capsys, "plain", "--model.decoder", '{"dim": 32, "vocab_size": 9}')
    assert content["decoder"] == asdict(DecoderConfig(dim=32, vocab_size=9))


def test_a_preset_is_a_whole_decoder_and_single_flags_change_it_wherever_they_stand(here, capsys):
    (here / "configs/decoders/small.yaml").write_text("{dim: 64, vocab_size: 100}\n")
    (here / "run.yaml").write_text("model: {decoder: {n_layers: 9, norm: {kind: layernorm}}}\n")
    preset = ("--model.decoder", "small")
    assert described(capsys, "run", *preset)["decoder"] == asdict(
        DecoderConfig(dim=64, vocab_size=100)
    )
    before = described(capsys, "run", "--model.decoder.dim=32", *preset)
    assert before["decoder"] == asdict(DecoderConfig(dim=32, vocab_size=100))
    inline = described(capsys, "run", "--model.decoder", '{"vocab_size": 9}')
    assert inline["decoder"]["n_layers"] == 9


def test_a_faulty_preset_is_named(here):
    (here / "configs/decoders/bad.yaml").write_text("{dim: 7}\n")
    (here / "run.yaml").write_text("model: {decoder: bad}\n")
    for arguments in (["run"], ["llama", "--model.decoder", "bad"]):
        assert refusal(*arguments).startswith("configs/decoders/bad.yaml: --model.decoder.dim 7")


def test_a_config_without_a_decoder_describes_the_default_one(here, capsys):
    (here / "plain.yaml").write_text("trainer: {max_steps: 5}\n")
    content = described(capsys, "plain", *flags({"vocab_size": 50}))
    assert content["decoder"] == asdict(DecoderConfig(vocab_size=50))


def test_a_checkpoint_describes_its_own_decoder_and_takes_overrides(write_run, capsys, tokenizers):
    path = write_run()
    content = described(capsys, str(path))
    assert content["decoder"]["vocab_size"] == tokenizers["char"].vocab_size
    assert content["decoder"]["attention"]["n_kv_heads"] == 1
    assert described(capsys, "best") == {**content, "name": "best"}
    wider = described(capsys, str(path), *flags({"attention.n_kv_heads": "null"}))
    grown = wider["parameters"]["by_part"]["attention"] - 2 * 2 * 16 * 8
    assert grown == content["parameters"]["by_part"]["attention"]


def test_the_table_names_parts_counts_and_shares(here, capsys):
    assert describe("llama", *flags({"vocab_size": 1719})) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = {words[0]: words[1:] for words in lines if words}
    assert rows["attention"] == ["196,608", "16.7", "%", "768.0", "KiB"]
    assert rows["total"] == ["1,178,496", "100.0", "%", "4.5", "MiB"]
    assert {"embedding", "position", "feed_forward", "norm", "head"} <= rows.keys()


def test_a_null_vocabulary_is_asked_for(here):
    line = refusal("llama")
    assert "--model.decoder.vocab_size null" in line
    assert "give --model.decoder.vocab_size N" in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{dmi: 64}", ["bad.yaml: ", "did you mean --model.decoder.dim?"]),
        ("{norm: {knd: rmsnorm}}", ["bad.yaml: ", "did you mean --model.decoder.norm.kind?"]),
        ("model: {decoder: {dimm: 3}}", ["bad.yaml: ", "did you mean --model.decoder.dim?"]),
        ("{norm: {kind: rmsnorn}}", ["bad.yaml: ", "must be layernorm or rmsnorm"]),
        ("{dim: 2020-01-01}", ["bad.yaml: ", "--model.decoder.dim 2020-01-01"]),
        ("{norm: null}", ["bad.yaml: ", "--model.decoder.norm null"]),
        ("model: {decoder: [1]}", ["bad.yaml: model.decoder [1]"]),
        ("model: {decoder: absent}", ["--model.decoder absent: no such preset or file"]),
        ("dim: [", ["bad.yaml: not a YAML file"]),
        ("", ["bad.yaml: no settings in it"]),
    ],
)
def test_a_faulty_file_is_refused_in_one_line(here, text, words):
    (here / "bad.yaml").write_text(text)
    line = refusal("bad.yaml")
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lama"], "lama: no such file"),
        (["nowhere.ckpt"], "nowhere.ckpt: no such file"),
        (["llama", "--model.decoder.dmi", "64"], "did you mean --model.decoder.dim?"),
        (["llama", "--model.decoder.norm.kind", "rmsnorn"], "must be layernorm or rmsnorm"),
        (["llama", "--format", "xml"], "--format xml: must be table or json"),
        (["llama", "--model.decoder.norm.bias", "true"], "set --model.decoder.norm.bias null"),
        (["llama", "--model.decoder.attention.n_kv_heads", "3"], "n_kv_heads 3"),
        (["llama", "--model.decoder", "absent"], "--model.decoder absent: no such preset"),
        (["llama", "--model.decoder"], "--model.decoder: its value is missing"),
        ([], "NAME_OR_FILE is missing"),
    ],
)
def test_a_faulty_call_is_refused_in_one_line(here, arguments, words):
    assert words in refusal(*arguments)


def test_a_binary_file_is_no_config(here):
    (here / "weights.bin").write_bytes(b"\xff\xfe\x00PK")
    assert "not a YAML file" in refusal("weights.bin")


def test_help_documents_every_decoder_setting():
    text = " ".join(build_parser("llama-lab describe").format_help().split())

    def leaves(prefix, settings):
        for name, value in settings.items():
            if isinstance(value, dict):
                yield from leaves(f"{prefix}.{name}", value)
            else:
                yield f"{prefix}.{name}"

    for flag in leaves("--model.decoder", asdict(DecoderConfig())):
        entry = text.rsplit(f"{flag} ", 1)[1].split(" --model")[0]
        assert "(type: " in entry, flag
        assert len(entry.split(" (type: ")[0].split()) > 3, f"{flag} has no words of its own"


def test_weights_of_any_size_are_counted_without_lightning(here, capsys):
    lightning_before = "lightning" in sys.modules
    huge = {"vocab_size": 128256, "dim": 16384, "n_layers": 126, "attention.n_heads": 128}
    content = described(capsys, "llama", *flags(huge))
    assert content["parameters"]["total"] > 3e11  # 1.2 TB of float32
    assert ("lightning" in sys.modules) == lightning_before
    assert Path("configs/llama.yaml").exists()


def test_a_probe_of_sound_weights_finds_nothing(write_run, capsys):
    content = described(capsys, str(write_run()), "--probe", "true")
    assert content["causal"] is True
    assert content["max_difference"] == 0
    assert content["fault"] is None
    assert "causal" not in described(capsys, "best")


def test_a_probe_of_weights_that_are_not_finite_is_refused(write_run):
    path = write_run()
    contents = torch.load(path, weights_only=True)
    contents["state_dict"]["decoder.head.weight"][0] = float("nan")
    torch.save(contents, path)
    assert "not finite" in refusal(str(path), "--probe", "true")


def test_a_fault_of_the_future_is_said_in_json_and_table(write_run, capsys):
    path = write_run()
    contents = torch.load(path, weights_only=True)
    contents["llama_lab"]["fault"] = "no_causal_mask"
    torch.save(contents, path)
    content = described(capsys, str(path), "--probe", "true")
    assert content["causal"] is False
    assert content["max_difference"] > 1e-4
    assert describe(str(path), "--probe", "true") == 0
    table = " ".join(capsys.readouterr().out.split())
    assert "--model.fault no_causal_mask" in table
    assert "causal: false" in table
