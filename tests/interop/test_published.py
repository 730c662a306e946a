"""Published models and their published numbers, from the folder of test data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from llama_lab.cli import main
from llama_lab.generation.generate import LoadedModel, load_model
from llama_lab.model.loss import next_token_loss
from tests.interop.conftest import greedy, load_theirs, logits_of, run, tensors_of

TINY = (
    "gpt2-small-random",
    "llama-attention-mlp-bias",
    "llama-gqa-bf16-sharded",
    "llama-gqa-tied",
    "llama-gqa-tied-v4config",
    "llama-linear-rope-scaling",
    "llama-mha-untied",
    "llama-mqa-headdim16",
    "llama3-rope-scaling",
    "mistral-sliding16",
    "qwen2-qkvbias-tied",
    "qwen3-qknorm",
)


@pytest.mark.parametrize("name", TINY)
def test_a_tiny_folder_gives_its_expected_logits_loss_and_tokens(
    test_data: Path, tmp_path: Path, name: str
) -> None:
    folder = test_data / "models" / "tiny-random" / name
    run("import", folder, "--output", tmp_path / "a.ckpt")
    model = load_model(tmp_path / "a.ckpt")
    arrays, expected = np.load(folder / "expected.npz"), json.loads(read(folder, "expected.json"))
    tokens = torch.from_numpy(arrays["input_ids"]).long()
    wanted = torch.from_numpy(arrays["logits"])
    torch.testing.assert_close(logits_of(model.decoder, tokens), wanted, rtol=1e-4, atol=1e-4)
    assert mean_loss(model, tokens) == pytest.approx(
        expected["mean_next_token_loss_nats"], abs=1e-4
    )
    prompt, new = expected["greedy_prompt"], expected["greedy_new_tokens"]
    assert greedy(model.decoder, prompt, len(new)) == new
    run("export", tmp_path / "a.ckpt", "--output", tmp_path / "out")
    before, after = tensors_of(folder), tensors_of(tmp_path / "out")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key].float(), after[key]) for key in before)


def read(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


@torch.no_grad()
def mean_loss(model: LoadedModel, tokens: torch.Tensor) -> float:
    """Mean next-token loss in nats."""
    hidden = model.decoder(tokens[:, :-1])
    weight = model.decoder.head_weight
    return float(next_token_loss(hidden, weight, tokens[:, 1:], reduction="mean"))


# ---- stories260K ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["llama2.c file", "folder"])
def stories(request: Any, test_data: Path, tmp_path_factory: Any) -> Path:
    """The checkpoint of stories260K, from each of its two forms."""
    path = tmp_path_factory.mktemp("stories") / "stories.ckpt"
    models = test_data / "models"
    if request.param == "folder":
        run("import", models / "stories260K-hf", "--output", path)
    else:
        files = models / "stories260K"
        binary, tokenizer = files / "stories260K.bin", files / "tok512.bin"
        run("import", binary, "--tokenizer", tokenizer, "--output", path)
    return path


@pytest.fixture(scope="module")
def expected(test_data: Path) -> dict[str, Any]:
    return json.loads(read(test_data / "models" / "stories260K", "expected.json"))


def test_stories_give_the_published_logits_and_loss(stories, expected, test_data) -> None:
    model = load_model(stories)
    arrays = np.load(test_data / "models" / "stories260K" / "expected_logits.npz")
    tokens = torch.from_numpy(arrays["input_ids"]).long()[None]
    wanted = torch.from_numpy(arrays["logits"])
    torch.testing.assert_close(logits_of(model.decoder, tokens)[0], wanted, rtol=0, atol=1e-4)
    loss = expected["mean_nll_nats_on_all_257_ids"]
    assert mean_loss(model, tokens) == pytest.approx(loss, abs=1e-4)


@torch.no_grad()
def test_scoring_follows_the_tokenizers_begin_of_text(
    stories, test_data, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    text = read(test_data, "tinyshakespeare.txt")[:6000]
    Path("text.txt").write_text(text)
    model, length = load_model(stories), 128
    ids = torch.from_numpy(model.tokenizer.encode(text).astype(np.int64))
    total = {1: 0.0, None: 0.0}
    for first in range(0, len(ids), length):
        chunk = ids[first : first + length]
        begun = torch.cat([torch.tensor([1]), chunk])[None]
        total[1] += mean_loss(model, begun) * len(chunk)
        follow = ids[first : first + length + 1][None]
        if follow.shape[1] > 1:
            total[None] += mean_loss(model, follow) * (follow.shape[1] - 1)
    scored = {1: len(ids), None: len(ids) - 1}
    score = ["validate", "--ckpt_path", stories, "--data.corpus=text.txt", "--data.val_fraction=1"]
    for flags, start in (([], 1), (["--data.begin_of_text=false"], None)):
        capsys.readouterr()
        run(*score, f"--data.context_length={length}", *flags)
        values = dict(line.split() for line in capsys.readouterr().out.splitlines())
        assert int(float(values["val_targets"])) == scored[start]
        assert float(values["val_loss"]) == pytest.approx(total[start] / scored[start], rel=1e-5)


def test_a_fine_tuned_run_has_the_begin_of_text_in_front_of_each_document(
    stories, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [f"Once upon a time there was a cat, number {n}." for n in range(40)]
    Path("d.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    short = ["--data.context_length=16", "--trainer.max_steps=2", "--trainer.val_check_interval=2"]
    start = ["fit", "--model.init_from", stories, "--data.corpus=d.jsonl", *short]
    run(*start, "--name=auto")
    assert re.search(r"id 1\)? stands in front of 40 texts", capsys.readouterr().out)
    run(*start, "--name=none", "--data.begin_of_text=false")
    receipts = {
        name: json.loads(Path("logs", name, "run_0", "receipt.json").read_text())
        for name in ("auto", "none")
    }
    begun = receipts["auto"]["store"]["report"]["begin_of_text"]
    assert (begun["id"], begun["documents"]) == (1, 40)
    assert "begin_of_text" not in receipts["none"]["store"]["report"]
    tokens = {n: r["store"]["train"]["tokens"] for n, r in receipts.items()}
    assert tokens["auto"] - tokens["none"] == receipts["auto"]["store"]["train"]["documents"]
    run("fit", "--ckpt_path", "logs/auto/run_0", "--trainer.max_steps=3")  # the same store
    old = Path("logs", "none", "run_0", "checkpoints", "last.ckpt")
    contents = torch.load(old, weights_only=True)
    del contents["llama_lab"]["config"]["data"]["begin_of_text"]  # as older versions wrote it
    torch.save(contents, old)
    run("fit", "--ckpt_path", old, "--trainer.max_steps=3")


@pytest.mark.parametrize("which", ["unconditional", "prompted"])
def test_stories_are_told_word_for_word(stories, expected, capsys, which) -> None:
    case = expected[which]
    ids = case.get("first_100_new_ids") or case["new_100_ids"]
    model = load_model(stories)
    assert greedy(model.decoder, case["prompt_ids"], len(ids)) == ids
    capsys.readouterr()
    prompt = ["--prompt", case["prompt"]] if "prompt" in case else []
    arguments = ["--temperature", "0", "--max_new_tokens", "100", "--accelerator", "cpu", *prompt]
    run("generate", "--ckpt_path", stories, *arguments)
    assert capsys.readouterr().out == (case.get("first_100_text") or case["text"]) + "\n"


def test_stories_tokenizer_gives_the_published_ids_and_the_text_again(stories, expected) -> None:
    tokenizer = load_model(stories).tokenizer
    for case in expected["tokenizer_cases"]:
        assert [1, *tokenizer.encode(case["text"]).tolist()] == case["ids_with_bos"]
        assert tokenizer.decode(case["ids_with_bos"]) == case["text"]


@pytest.mark.parametrize("batch_size", [7, 64])
def test_stories_loss_is_the_token_weighted_one_at_every_batch_size(
    stories, expected, test_data, tmp_path, monkeypatch, capsys, batch_size
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (test_data / "tinyshakespeare.txt").read_text(encoding="utf-8")[:20000]
    Path("text.txt").write_text(text, encoding="utf-8")
    data = ["--data.corpus", "text.txt", "--data.val_fraction", "1", "--data.context_length", "128"]
    capsys.readouterr()
    # The published figure is of windows that begin with the text's own tokens.
    data += ["--data.begin_of_text", "false"]
    machine = ["--trainer.accelerator", "cpu", "--data.batch_size", str(batch_size)]
    code = main(["validate", "--ckpt_path", str(stories), *data, *machine])
    said = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert code == 0
    case = expected["perplexity_case"]
    assert float(said["val_loss"]) == pytest.approx(case["token_weighted_nats"], abs=1e-5)
    assert int(said["val_targets"]) == case["n_targets"]


def test_the_interleaved_stories_go_out_as_the_folder_that_transformers_reads(
    stories, expected, test_data, tmp_path, transformers
) -> None:
    run("export", stories, "--output", tmp_path / "out")
    ours, theirs = tensors_of(tmp_path / "out"), tensors_of(test_data / "models" / "stories260K-hf")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for case in expected["tokenizer_cases"]:
        assert tokenizer(case["text"])["input_ids"] == case["ids_with_bos"]
    model = load_theirs(transformers, tmp_path / "out")
    case = expected["prompted"]
    inputs = tokenizer(case["prompt"], return_tensors="pt")
    said = model.generate(**inputs, do_sample=False, max_new_tokens=100)
    assert tokenizer.decode(said[0], skip_special_tokens=True) == case["text"]
