"""Folders and files that lie: one line, nothing run, nothing written, memory bounded."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.interop.conftest import run, write_bin, write_tokenizer_bin

ROOT = Path(__file__).resolve().parents[2]
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(sound_folder: Path, tmp_path: Path) -> Path:
    """A sound folder, to be spoilt."""
    return Path(shutil.copytree(sound_folder, tmp_path / "in"))


@pytest.fixture
def refusal(folder: Path, tmp_path: Path, refused: Any) -> Callable[[], str]:
    """Import the spoilt folder, which must be refused without a trace; the line."""

    def refusal() -> str:
        before = sorted(tmp_path.rglob("*"))
        line = refused("import", folder, "--output", tmp_path / "a.ckpt")
        assert sorted(tmp_path.rglob("*")) == before
        return line

    return refusal


def spoil(folder: Path, name: str = "config.json", **values: Any) -> None:
    content = json.loads((folder / name).read_text(encoding="utf-8"))
    (folder / name).write_text(json.dumps({**content, **values}), encoding="utf-8")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"hidden_size": 64, "head_dim": None}, "embed_tokens.weight has shape"),
        ({"intermediate_size": 64}, "has shape"),
        ({"num_attention_heads": 8, "head_dim": None}, "k_proj.weight has shape"),
        ({"num_hidden_layers": 1}, "belongs to no part"),
        ({"num_hidden_layers": 3}, "is missing"),
        ({"num_hidden_layers": 60000}, "60,000 layers"),
        ({"vocab_size": 10**12}, "vocab_size 1000000000000: must be a whole number from 1 to"),
        ({"vocab_size": 10**7}, "embed_tokens.weight has shape"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings 1000000000000"),
        ({"num_attention_heads": 10**12}, "num_attention_heads 1000000000000"),
        ({"head_dim": 10**9}, "head_dim 1000000000"),
        ({"num_attention_heads": 65536, "num_key_value_heads": 3}, "cannot express"),
        ({"num_key_value_heads": 0}, "num_key_value_heads 0"),
        ({"hidden_size": -32}, "hidden_size -32"),
        ({"hidden_size": 32.0}, "hidden_size 32.0"),
        ({"hidden_size": "32"}, "hidden_size 32: must be a whole number"),
        ({"hidden_size": True}, "hidden_size true"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": [32]}, "hidden_size [32]"),
        ({"rms_norm_eps": float("nan")}, "NaN is no number"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps small"),
        ({"rms_norm_eps": 10**400}, "must be a finite number above 0"),
        ({"rope_theta": -1}, "rope_theta -1"),
        ({"rope_theta": 5.0}, "rope_theta 5.0: contradicts rope_parameters"),
        ({"rope_parameters": 5}, "rope_parameters 5: must be an object"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type longrope"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        ({"attention_bias": "no"}, "attention_bias no"),
        ({"hidden_act": "mish"}, "hidden_act mish"),
        ({"model_type": "bert"}, "model_type bert: this version reads llama"),
        ({"model_type": {"a": 1}}, "model_type"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"eos_token_id": -1}, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_config_that_lies_is_refused(folder, refusal, values, words) -> None:
    spoil(folder, **values)
    if words is None:
        (folder / "generation_config.json").unlink()
        words = "eos_token_id -1: must be ids"
    assert words in refusal()


@pytest.mark.parametrize(
    ("name", "n_items"),
    [("config.json", 1 << 19), ("generation_config.json", 1 << 19), (INDEX, 6 << 20)],
)
def test_a_file_that_is_too_long_for_its_kind_is_refused_unread(
    folder, refusal, name, n_items
) -> None:
    """A hundred bytes of memory may stand behind three of ``[],``."""
    if name == INDEX:
        (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(b'{"a": [' + b"[]," * n_items + b"[]]}")
    assert f"{name}: {3 * n_items + 11:,} bytes are too many" in refusal()


@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors", INDEX]
)
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_what_is_no_file_is_refused_and_not_taken_for_absent(folder, refusal, name, make) -> None:
    if name == INDEX:
        (folder / "model.safetensors").unlink()
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    assert refusal() == f"{folder / name}: not a file"


def test_what_a_file_says_does_not_steer_the_terminal(folder, refusal) -> None:
    spoil(folder, hidden_act="\x1b[2J\nsilu")
    assert r"hidden_act \x1b[2J silu" in refusal()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a": ' * 100_000]
)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_file_that_is_no_json_is_refused(folder, refusal, name, content) -> None:
    (folder / name).write_bytes(content)
    assert name in refusal()


def test_a_folder_without_a_config_is_refused(folder, refusal) -> None:
    (folder / "config.json").unlink()
    assert refusal().endswith("config.json: no such file")


@pytest.mark.parametrize("keep", [0, 7, 100, 3000, -1])
def test_a_truncated_file_of_tensors_is_refused(folder, refusal, keep) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "model.safetensors: not a whole safetensors file" in refusal()


def test_a_header_that_boasts_is_refused(folder, refusal) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}})
    content = struct.pack("<Q", len(header)) + header.encode() + bytes(64)
    (folder / "model.safetensors").write_bytes(content)
    assert "not a whole safetensors file" in refusal()
    for size in (1 << 62, 1 << 25):
        content = struct.pack("<Q", size) + bytes(64)
        (folder / "model.safetensors").write_bytes(content)
        assert f"a header of {size:,} bytes is too large" in refusal()


def test_integer_weights_are_refused(folder, refusal) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)
    save_file(tensors, folder / "model.safetensors")
    assert "tensor model.norm.weight is of type I8" in refusal()


class Malice:
    """Would run code when unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("pwned",)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_a_pickle_is_not_opened(folder, refusal, monkeypatch, tmp_path, name) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Malice()))
    line = refusal()
    assert "a pickle, which could run code" in line or "not a whole safetensors file" in line
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "place",
    [
        "../other.safetensors",
        "/etc/passwd",
        "{absolute}",
        "sub/../../other.safetensors",
        "..\\other.safetensors",
        "..",
        "",
        5,
        None,
        "config.json",
        "/" + "a" * 5000,
    ],
)
def test_an_index_that_points_elsewhere_is_refused(folder, refusal, tmp_path, place) -> None:
    other = tmp_path / "other.safetensors"
    (folder / "model.safetensors").rename(other)
    place = str(other) if place == "{absolute}" else place
    names = load_file(other)
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, place)}))
    assert "which is not the name of a safetensors file in that folder" in refusal()


@pytest.mark.parametrize("content", [{}, {"weight_map": []}, {"weight_map": {}}])
def test_an_index_without_places_is_refused(folder, refusal, content) -> None:
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_text(json.dumps(content))
    assert "has no weight_map" in refusal()


def test_an_index_that_names_the_wrong_file_or_a_file_too_few(folder, refusal) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    places = dict.fromkeys(tensors, "a.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {**places, "more": "a.safetensors"}}))
    assert "tensor more is missing from a.safetensors" in refusal()
    (folder / INDEX).write_text(json.dumps({"weight_map": {**places, "more": "b.safetensors"}}))
    assert "b.safetensors: no such file" in refusal()
    save_file({"model.norm.weight": tensors["model.norm.weight"]}, folder / "b.safetensors")
    assert "tensor model.norm.weight is in two files" in refusal()


def test_a_tokenizer_of_another_model_is_refused(folder, refusal) -> None:
    spoil(
        folder,
        "tokenizer.json",
        model={"type": "WordLevel", "vocab": {"a": 5000}, "unk_token": "a"},
    )
    line = refusal()
    assert "tokenizer.json: id 5000" in line
    assert "not below the model's vocab_size" in line


def grows(times: int) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * times}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"normalizer": {"type": "Sequence", "normalizers": [grows(10)] * 9}},
            "its normalizer may make 10,000 characters of one in 4 steps",
        ),
        (
            {"decoder": {"type": "Sequence", "decoders": [grows(10)] * 9}},
            "its decoder may make 10,000 characters of one in 4 steps",
        ),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 2000}}, "2,000 characters of one"),
        ({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}] * 99}}, "in 65 steps"),
    ],
    ids=["normalizer", "decoder", "prepend", "steps"],
)
def test_a_tokenizer_that_makes_much_of_little_is_refused(folder, refusal, values, words) -> None:
    spoil(folder, "tokenizer.json", **values)
    assert words in refusal()


def test_a_tokenizer_that_begins_texts_with_an_unknown_id_is_refused(folder, refusal) -> None:
    text = {"Sequence": {"id": "A", "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "s", "type_id": 0}}, text],
        "pair": [text],
        "special_tokens": {"s": {"id": "s", "ids": [99999], "tokens": ["s"]}},
    }
    spoil(folder, "tokenizer.json", post_processor=template)
    assert "puts id 99999 in front of a text, which has no row" in refusal()


def test_a_name_that_is_too_long_is_refused(folder, refusal) -> None:
    names = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    place = "a" * 5000 + ".safetensors"
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(names, place)}))
    assert "a longer name than this system has" in refusal()


def test_a_decoder_that_is_no_sum_of_pieces_is_refused(folder, refusal) -> None:
    spoil(folder, "tokenizer.json", decoder={"type": "WordPiece", "prefix": "##", "cleanup": True})
    assert "its decoder has the step WordPiece" in refusal()


def test_memory_is_bounded_whatever_is_claimed(folder, tmp_path) -> None:
    """In a process of its own, whose memory is limited to what a sound import of it takes."""
    code = (
        "import sys, resource, torch; from llama_lab.cli import main;"
        "import llama_lab.interop.huggingface, llama_lab.commands.importing;"
        "used = int(open('/proc/self/statm').read().split()[0]) * 4096;"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2);"
        "sys.exit(main(['import', *sys.argv[1:]]))"
    )
    assert resource.RLIMIT_AS is not None
    spoil(
        folder,
        max_position_embeddings=1 << 24,
        num_attention_heads=1 << 16,
        num_key_value_heads=1 << 16,
        head_dim=1 << 16,
        intermediate_size=1 << 24,
    )
    result = subprocess.run(
        [sys.executable, "-c", code, str(folder), "--output", str(tmp_path / "a.ckpt")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2, result.stderr
    assert result.stderr.count("\n") == 1


# ---- llama2.c ------------------------------------------------------------------------------------


def test_a_small_llama2c_file_is_read(tmp_path) -> None:
    run(*write_bin(tmp_path), "--output", tmp_path / "a.ckpt")
    run(*write_bin(tmp_path, untied=True), "--output", tmp_path / "b.ckpt")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"vocab_size": 1 << 30}, "vocab_size 1073741824 is not in 1 to"),
        ({"vocab_size": 0}, "vocab_size 0"),
        ({"vocab_size": 16_000_000}, "its sizes"),
        ({"dim": 0}, "dim 0"),
        ({"dim": -8}, "dim -8"),
        ({"n_heads": 32}, "n_heads 32"),
        ({"n_kv_heads": 3}, "n_kv_heads 3"),
        ({"n_layers": 60_000}, "its sizes"),
        ({"seq_len": 1 << 23}, "its sizes"),
        ({"hidden_dim": 17}, "its sizes"),
        ({"dim": 0x616B3432}, "a later llama2.c format"),
    ],
)
def test_a_llama2c_header_that_lies_is_refused(tmp_path, refused, changes, words) -> None:
    command = write_bin(tmp_path, **changes)
    assert words in refused(*command, "--output", tmp_path / "a.ckpt")


@pytest.mark.parametrize("keep", [0, 3, 27, 28, 500, -4])
def test_a_truncated_llama2c_file_is_refused(tmp_path, refused, keep) -> None:
    command = write_bin(tmp_path)
    path = Path(command[1])
    path.write_bytes(path.read_bytes()[:keep])
    assert "model.bin" in refused(*command, "--output", tmp_path / "a.ckpt")


def test_a_llama2c_model_with_another_base_is_refused(tmp_path, refused) -> None:
    line = refused(*write_bin(tmp_path, theta=1e6), "--output", tmp_path / "a.ckpt")
    assert "its rope tables are not those of the base 10000" in line


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 pieces"),
        (bytes(20), "pieces, the model has"),
        (np.float32(np.nan).tobytes() * 3, "not a llama2.c tokenizer"),
        (struct.pack("<ifi", 5, 0.0, 1 << 30) + b"abc", "not a llama2.c tokenizer"),
        (struct.pack("<ifi", 5, 0.0, -1), "not a llama2.c tokenizer"),
        (struct.pack("<if", 5, 0.0), "is cut off"),
    ],
)
def test_a_broken_llama2c_tokenizer_is_refused(tmp_path, refused, content, words) -> None:
    command = write_bin(tmp_path)
    Path(command[3]).write_bytes(content)
    assert words in refused(*command, "--output", tmp_path / "a.ckpt")


def test_a_llama2c_tokenizer_without_bytes_is_refused(tmp_path, refused) -> None:
    command = write_bin(tmp_path)
    write_tokenizer_bin(Path(command[3]), [b"x%d" % i for i in range(269)])
    assert "are not the bytes" in refused(*command, "--output", tmp_path / "a.ckpt")
