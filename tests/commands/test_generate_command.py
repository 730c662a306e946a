"""``llama-lab generate`` through its entry point."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from llama_lab.commands.generate import main
from llama_lab.errors import UserError
from llama_lab.generation.generate import load_model, sample_text
from llama_lab.generation.sampling import SamplingConfig
from llama_lab.model.settings import SettingError

ROOT = Path(__file__).resolve().parents[2]


def call(*arguments: str) -> int:
    return main(list(arguments), "llama-lab generate")


def refusal(*arguments: str) -> str:
    with pytest.raises((UserError, SettingError)) as refused:
        call(*arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def process(
    code: str, folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
    )


def test_standard_output_is_prompt_and_continuation_and_nothing_else(write_run, capsys):
    path = write_run()
    assert call("--prompt", "the cat", "--max_new_tokens", "20", "--seed", "3") == 0
    out, err = capsys.readouterr()
    model = load_model(path)
    expected = sample_text(
        model.decoder,
        model.tokenizer,
        prompt="the cat",
        max_new_tokens=20,
        sampling=SamplingConfig(),
        seed=3,
    )
    assert out == expected + "\n"
    assert len(expected) == len("the cat") + 20
    assert "best.ckpt, step 40" in err


def test_two_equal_calls_write_the_same_to_both_streams(write_run, capsys):
    write_run()
    call("--max_new_tokens", "30", "--temperature", "0")
    first = capsys.readouterr()
    call("--max_new_tokens", "30", "--temperature", "0")
    assert capsys.readouterr() == first


def test_without_a_checkpoint_the_newest_best_one_is_taken(write_run, capsys):
    newest = write_run(run="run_10")
    os.utime(write_run(run="run_2").parent, ns=(1, 1))
    call("--max_new_tokens", "1")
    assert str(Path("logs/name/run_10/checkpoints/best.ckpt")) in capsys.readouterr().err
    assert newest.exists()


@pytest.mark.parametrize(
    "spec", ["last", "logs/name/run_0", "logs/name/run_0/checkpoints/last.ckpt"]
)
def test_a_checkpoint_is_named_by_word_folder_or_file(write_run, capsys, spec):
    write_run(which="last")
    assert call("--ckpt_path", spec, "--max_new_tokens", "1") == 0
    assert "last.ckpt" in capsys.readouterr().err


def test_several_samples_take_successive_seeds_and_are_told_apart_on_standard_error(
    write_run, capsys
):
    write_run()
    arguments = ["--prompt", "a", "--max_new_tokens", "12"]
    single = []
    for seed in ("5", "6", "7"):
        call(*arguments, "--seed", seed)
        single.append(capsys.readouterr().out)
    assert len(set(single)) == 3
    call(*arguments, "--seed", "5", "--num_samples", "3")
    out, err = capsys.readouterr()
    assert out == "".join(single)
    assert "sample 3 of 3, --seed 7" in err


@pytest.mark.parametrize("arguments", [[], ["--prompt", ""]])
@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_no_prompt_works(write_run, capsys, arguments, tokenizer):
    write_run(tokenizer)
    assert call(*arguments, "--max_new_tokens", "5") == 0
    assert capsys.readouterr().out.endswith("\n")


@pytest.mark.parametrize("prompt", ["null", "1", "a: b", " ", "- a", "é😀"])
def test_any_text_is_a_prompt_as_it_stands(write_run, capsys, prompt):
    write_run("bpe")
    assert call("--prompt", prompt, "--max_new_tokens", "1") == 0
    assert capsys.readouterr().out.startswith(prompt)


def test_unknown_characters_in_the_prompt_are_named(write_run):
    write_run()
    line = refusal("--prompt", "the ß")
    assert line.startswith("--prompt: ")
    assert "'ß' (U+00DF)" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max_new_tokens", "0"], "--max_new_tokens 0: must be 1 or more"),
        (["--num_samples", "0"], "--num_samples 0: must be 1 or more"),
        (["--seed", "-1"], "--seed -1"),
        (["--seed", str(2**63)], f"--seed {2**63}"),
        (["--temperature", "-1"], "--temperature -1"),
        (["--temperature", "nan"], "--temperature nan"),
        (["--top_k", "0"], "--top_k 0"),
        (["--top_p", "0"], "--top_p 0"),
        (["--temperature", "0", "--top_k", "5"], "set --top_k null"),
        (["--accelerator", "tpu"], "--accelerator tpu: there is none on this machine; use "),
        (["--temprature", "1"], "did you mean --temperature?"),
        (["--ckpt_path", "nowhere.ckpt"], "--ckpt_path nowhere.ckpt: no such file"),
        ([], "--ckpt_path best: no run"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(here, arguments, words):
    assert words in refusal(*arguments)


def test_an_accelerator_that_is_not_there_is_refused_with_what_is(here, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refusal("--accelerator", "cuda") == (
        "--accelerator cuda: there is none on this machine; use cpu"
    )


def test_help_documents_every_flag_with_its_default_without_torch(here):
    code = (
        "import sys; from llama_lab.commands.generate import build_parser;"
        "build_parser('llama-lab generate').print_help(); assert 'torch' not in sys.modules"
    )
    result = process(code, here, COLUMNS="200")
    assert result.returncode == 0, result.stderr.decode()
    text = " ".join(result.stdout.decode().split())
    for flag, default in {
        "ckpt_path": "null",
        "prompt": "null",
        "max_new_tokens": "300",
        "temperature": "0.8",
        "top_k": "null",
        "top_p": "null",
        "seed": "0",
        "num_samples": "1",
        "accelerator": "auto",
    }.items():
        entry = text.rsplit(f"--{flag} ", 1)[1].split(" --")[0]
        assert f"default: {default})" in entry, flag


def test_the_c_locale_gets_and_gives_utf_8(write_run):
    write_run("bpe")
    c_locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = (sys.executable, "-m", "llama_lab", "generate", "--max_new_tokens=1")
    environment = {**os.environ, **c_locale, "PYTHONIOENCODING": ""}
    result = subprocess.run(
        [*words, "--prompt", "日本 é"], env=environment, capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr.decode()
    assert result.stdout.startswith("日本 é".encode())


def test_a_reader_that_leaves_early_ends_it_quietly(write_run):
    write_run()
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        result = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; from llama_lab.cli import main;"
                "sys.exit(main(['generate', '--max_new_tokens', '9']))",
            ],
            stdout=gone,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
    assert result.returncode == 0
    assert len(result.stderr.splitlines()) == 1, result.stderr.decode()
