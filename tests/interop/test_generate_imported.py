"""``generate`` with what an imported model came with: its template, sampling and special tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from llama_lab.generation.folder_files import render_chat, sampling_of_folder
from llama_lab.generation.generate import load_model, parsed_ids, prompt_ids
from llama_lab.generation.sampling import SamplingConfig
from tests.interop.conftest import run
from tests.interop.test_companions import GENERATION, IDS, NAMED, TEMPLATE

TEMPLATES = {
    "chatml": TEMPLATE,
    "blocks": (
        "  {% if tools %}no{% endif %}\n{% for m in messages %}\n  {% if loop.index > 1 %}"
        "{% break %}{% endif %}\n{{ bos_token }}[{{ m.role | upper }}] {{ m | tojson }}\n"
        "{% endfor %}\n{% generation %}é{% endgeneration %}{{ unk_token }}{{ pad_token }}\n"
    ),
    "namespace": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
        "{{ ns.n }}{{ dict(a=1) | tojson(indent=1) }}{{ strftime_now('%Y') }}"
        "{% if not add_generation_prompt %}{{ raise_exception('no') }}{% endif %}"
    ),
}
MESSAGES = [{"role": "user", "content": "the <|im_end|> 'cat' & é"}]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("place", ["file", "key", "list"])
def test_a_chat_is_rendered_as_transformers_renders_it(
    transformers, make_folder, name, place
) -> None:
    template = TEMPLATES[name]
    config: dict[str, Any] = {**NAMED, "tokenizer_class": "PreTrainedTokenizerFast"}
    files: dict[str, Any] = {"tokenizer_config": config}
    if place == "file":
        files |= {"chat_template": template}
        config["chat_template"] = "another"
    elif place == "key":
        config["chat_template"] = template
    else:
        several = [("rag", "another"), ("default", template)]
        config["chat_template"] = [{"name": n, "template": t} for n, t in several]
    folder = make_folder(IDS, **files)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    wanted = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    run("import", folder, "--output", folder.parent / "a.ckpt")
    model = load_model(folder.parent / "a.ckpt")
    text = render_chat(model.folder, Path("a.ckpt"), MESSAGES)
    assert text == wanted
    ids = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True)["input_ids"]
    if not theirs.split_special_tokens:
        assert parsed_ids(model.tokenizer, text) == ids


@pytest.fixture
def imported(make_folder: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of a model that came with everything."""
    config = {**NAMED, "chat_template": TEMPLATE}
    generation = {**IDS, **GENERATION, "repetition_penalty": 1.05, "no_repeat_ngram_size": 3}
    folder = make_folder(IDS, tokenizer_config=config, generation_config=generation)
    monkeypatch.chdir(folder.parent)
    run("import", folder, "--output", "a.ckpt")
    return folder.parent / "a.ckpt"


GENERATE = ["generate", "--ckpt_path", "a.ckpt", "--accelerator", "cpu", "--max_new_tokens", "8"]


def said(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[str, str]:
    capsys.readouterr()
    run(*GENERATE, *flags)
    out, err = capsys.readouterr()
    return out, err


def test_an_answer_is_what_continues_the_rendered_turn(imported, capsys) -> None:
    answer, _ = said(capsys, "--chat", "true", "--prompt", "the cat", "--temperature", "0")
    turn = "<|im_start|>user\nthe cat<|im_end|>\n<s><|im_start|>assistant\n"
    whole, _ = said(capsys, "--special_tokens", "parse", "--prompt", turn, "--temperature", "0")
    assert whole == turn + answer
    assert answer.strip()


def test_a_special_token_in_a_prompt_is_text_unless_it_is_to_be_parsed(imported, capsys) -> None:
    tokenizer = load_model(imported).tokenizer
    assert 281 not in prompt_ids(tokenizer, "a<|im_end|>")[0]
    assert prompt_ids(tokenizer, "a<|im_end|>", "parse")[0][-1] == 281
    _, err = said(capsys, "--prompt", "a<|im_end|>")
    assert "the prompt spells <|im_end|>, taken as text; --special_tokens parse takes" in err
    for quiet in (["--prompt", "a"], ["--special_tokens", "parse", "--prompt", "a<|im_end|>"]):
        assert "spells" not in said(capsys, *quiet)[1]


def test_drawn_special_tokens_are_shown_where_it_is_asked_for(imported, capsys) -> None:
    model = load_model(imported)
    ids, _ = prompt_ids(model.tokenizer, "the")
    contents = torch.load(imported, weights_only=True)
    with torch.no_grad():
        hidden = model.decoder(torch.tensor([ids]))[0, -1]
    name = next(n for n in ("decoder.head.weight", "decoder.embedding.weight")
                if n in contents["state_dict"])  # fmt: skip
    contents["state_dict"][name][281] = 1000 * hidden
    torch.save(contents, imported)
    greedy = ["--prompt", "the", "--temperature", "0"]
    assert said(capsys, *greedy)[0] == "the\n"
    assert said(capsys, *greedy, "--show_special_tokens", "true")[0] == "the<|im_end|>\n"


def test_the_folders_sampling_is_taken_when_asked_for(imported, capsys) -> None:
    model = load_model(imported)
    sampling, unknown = sampling_of_folder(model.folder, imported)
    assert sampling == SamplingConfig(
        temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.05
    )
    assert unknown == ["no_repeat_ngram_size 3"]
    flags = ("--temperature=0.6", "--top_k=20", "--top_p=0.95", "--repetition_penalty=1.05")
    own, _ = said(capsys, *flags)
    theirs, err = said(capsys, "--sampling", "folder")
    assert own == theirs
    assert "top_p 0.95, repetition_penalty 1.05; without no_repeat_ngram_size 3" in err
    assert (
        said(capsys, "--prompt", "a")[0] != said(capsys, "--prompt", "a", "--sampling", "folder")[0]
    )


@pytest.mark.parametrize(
    ("values", "sampling"),
    [
        ({"temperature": 0.6}, SamplingConfig(temperature=0)),
        ({"do_sample": False, "top_k": 5}, SamplingConfig(temperature=0)),
        ({"do_sample": True}, SamplingConfig(temperature=1.0, top_k=50)),
        ({"do_sample": True, "top_k": 0}, SamplingConfig(temperature=1.0)),
        ({"repetition_penalty": 1.2}, SamplingConfig(temperature=0, repetition_penalty=1.2)),
        (
            {"do_sample": True, "min_p": 0.1, "repetition_penalty": 1.0},
            SamplingConfig(temperature=1.0, top_k=50, min_p=0.1),
        ),
    ],
)
def test_what_a_generation_config_leaves_out_is_what_transformers_takes(values, sampling) -> None:
    import json

    folder = {"files": {"generation_config.json": json.dumps(values)}}
    assert sampling_of_folder(folder, Path("a.ckpt"))[0] == sampling


@pytest.mark.parametrize(
    ("files", "flags", "words"),
    [
        ({}, ["--sampling", "folder"], "came with no sampling defaults"),
        ({"generation_config": IDS}, ["--sampling", "folder"], "came with no sampling defaults"),
        (
            {"generation_config": GENERATION | {"temperature": "hot"}},
            ["--sampling", "folder"],
            "generation_config.json of a.ckpt: temperature hot: must be a number",
        ),
        (
            {"generation_config": GENERATION},
            ["--sampling", "folder", "--top_k", "3"],
            "--top_k 3 would do nothing: --sampling folder",
        ),
        ({}, ["--chat", "true", "--prompt", "a"], "came with no chat template; set --chat false"),
        ({"chat_template": "a"}, ["--chat", "true"], "needs a user's turn: give it with --prompt"),
        ({"chat_template": "{% if"}, ["--chat", "true", "--prompt", "a"], "is broken (line 1"),
        (
            {"chat_template": "{{ raise_exception('never') }}"},
            ["--chat", "true", "--prompt", "a"],
            "refuses this conversation (never)",
        ),
        (
            {"chat_template": "{{ messages.append(1) }}"},
            ["--chat", "true", "--prompt", "a"],
            "refuses this conversation",
        ),
        (
            {"chat_template": "{{ ''.__class__.__mro__ }}"},
            ["--chat", "true", "--prompt", "a"],
            "refuses this conversation",
        ),
    ],
)
def test_what_the_folder_lacks_or_has_broken_is_refused(
    make_folder, monkeypatch, refused, files, flags, words
) -> None:
    folder = make_folder(IDS, **{"tokenizer_config": NAMED, **files})
    monkeypatch.chdir(folder.parent)
    run("import", folder, "--output", "a.ckpt")
    assert words in refused(*GENERATE, *flags)


def test_parsing_is_refused_where_no_token_can_be_spelt(
    write_trained, monkeypatch, tmp_path, refused
) -> None:
    write_trained().rename(tmp_path / "a.ckpt")
    monkeypatch.chdir(tmp_path)
    line = refused(*GENERATE, "--special_tokens", "parse", "--prompt", "the")
    assert "--special_tokens parse would do nothing: the tokenizer char has no special" in line
