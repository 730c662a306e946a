"""What a folder brings besides its weights: special ids, names, a template, sampling defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from llama_lab.checkpoints import read_record
from llama_lab.data.tokenizers.kinds import tokenizer_from_state
from llama_lab.generation.generate import load_model, sample_text
from llama_lab.generation.sampling import SamplingConfig
from tests.interop.conftest import load_theirs, run

TEMPLATE = (
    "{% for m in messages %}\n  {{- '<|im_start|>' + m.role + '\\n' + m.content + eos_token }}\n"
    "{% endfor %}\r\n{{ bos_token }}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GENERATION = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
IDS = {"bos_token_id": 282, "eos_token_id": [281, 0], "pad_token_id": 283}
NAMED = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<pad>"}


def there_and_back(folder: Path) -> tuple[Path, Path]:
    """The checkpoint and the folder that comes out of it."""
    place = folder.parent
    run("import", folder, "--output", place / "a.ckpt")
    run("export", place / "a.ckpt", "--output", place / "out")
    return place / "a.ckpt", place / "out"


def said_of_ends(folder: Path) -> list[Any]:
    names = ("config.json", "generation_config.json")
    return [json.loads((folder / name).read_text())["eos_token_id"] for name in names]


@pytest.mark.parametrize(
    ("config", "files", "ends", "said"),
    [
        ({"eos_token_id": [281, 0]}, {}, (281, 0), [[281, 0], [281, 0]]),
        ({"eos_token_id": 281}, {}, (281,), [281, 281]),
        (
            {"eos_token_id": 281},
            {"generation_config": {"eos_token_id": [0, 281]}},
            (0, 281),
            [281, [0, 281]],
        ),
        ({}, {"generation_config": {"eos_token_id": [0, 281]}}, (0, 281), [[0, 281], [0, 281]]),
        ({}, {"tokenizer_config": {"eos_token": "<|im_end|>"}}, (281,), [281, 281]),
        (
            {"eos_token_id": 0},
            {"tokenizer_config": {"eos_token": {"content": "<|im_end|>"}}},
            (0, 281),
            [0, [0, 281]],
        ),
        ({}, {"tokenizer_config": {}, "special_tokens_map": {"eos_token": "<s>"}}, (282,),
         [282, 282]),
        ({"eos_token_id": [281, 50256]}, {}, (281,), [[281], [281]]),
    ],
)  # fmt: skip
def test_every_end_of_text_is_kept_and_comes_out_again(
    transformers, make_folder, config, files, ends, said
) -> None:
    files = {"tokenizer_config": {}, **files}
    path, out = there_and_back(make_folder(config, **files))
    assert load_model(path).tokenizer.ends == ends
    assert said_of_ends(out) == said
    theirs = load_theirs(transformers, out).generation_config.eos_token_id
    assert set(theirs if isinstance(theirs, list) else [theirs]) == set(ends)
    run("import", out, "--output", out.parent / "b.ckpt")
    assert load_model(out.parent / "b.ckpt").tokenizer.ends == ends


def test_generation_stops_at_any_of_them(make_folder) -> None:
    folder = make_folder({"eos_token_id": [282, 281]}, tokenizer_config={})
    run("import", folder, "--output", folder.parent / "a.ckpt")
    model = load_model(folder.parent / "a.ckpt")
    prompt = torch.tensor([model.tokenizer.encode("the").tolist()])
    asked = {"prompt": "the", "max_new_tokens": 4, "sampling": SamplingConfig(temperature=0)}
    for end in (282, 281):
        assert sample_text(model.decoder, model.tokenizer, **asked, seed=0) != "the"
        with torch.no_grad():  # the next id's logit is far above all others
            kept = model.decoder.head_weight[end].clone()
            model.decoder.head_weight[end] = 1000 * model.decoder(prompt)[0, -1]
            assert sample_text(model.decoder, model.tokenizer, **asked, seed=0) == "the"
            model.decoder.head_weight[end] = kept


def test_a_pad_that_ends_a_text_may_be_drawn(make_folder) -> None:
    folder = make_folder({"eos_token_id": [281, 283]}, tokenizer_config={})
    run("import", folder, "--output", folder.parent / "a.ckpt")
    assert 283 not in load_model(folder.parent / "a.ckpt").tokenizer.never_sampled


@pytest.mark.parametrize("value", [["a"], True, -1, [1.0], {}])
@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id", "pad_token_id"])
def test_a_special_id_that_is_no_id_is_refused(make_folder, refused, key, value) -> None:
    folder = make_folder({key: value})
    line = refused("import", folder, "--output", folder.parent / "a.ckpt")
    assert f"config.json: {key} " in line
    assert "must be ids" in line
    assert not (folder.parent / "a.ckpt").exists()


def test_files_and_ids_come_out_as_they_came(transformers, make_folder) -> None:
    files = {
        "tokenizer_config": {**NAMED, "tokenizer_class": "PreTrainedTokenizerFast", "odd": 1},
        "generation_config": {**IDS, **GENERATION, "repetition_penalty": 1.05},
        "special_tokens_map": NAMED,
        "chat_template": TEMPLATE,
    }
    folder = make_folder(IDS, **files)
    _, out = there_and_back(folder)
    for name in (*(f"{n}.json" for n in list(files)[:3]), "chat_template.jinja"):
        assert (out / name).read_bytes() == (folder / name).read_bytes(), name
    config = json.loads((out / "config.json").read_text())
    assert {key: config[key] for key in IDS} == IDS
    theirs = transformers.AutoTokenizer.from_pretrained(out)
    assert (theirs.bos_token, theirs.eos_token, theirs.pad_token) == tuple(NAMED.values())
    assert theirs.chat_template.replace("\r\n", "\n") == TEMPLATE.replace("\r\n", "\n")


def test_a_run_from_an_imported_model_keeps_what_came_with_it(
    make_folder, monkeypatch, tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"tokenizer_config": {**NAMED, "chat_template": TEMPLATE}}
    folder = make_folder(IDS, **files, generation_config={**IDS, **GENERATION})
    run("import", folder, "--output", "a.ckpt")
    Path("text.txt").write_text("the cat sat on the mat\n" * 200, encoding="utf-8")
    short = ["--trainer.accelerator", "cpu", "--trainer.max_steps", "1", "--name", "on"]
    run("fit", "--data.corpus", "text.txt", *short, "--model.init_from", "a.ckpt")
    last = "logs/on/run_0/checkpoints/last.ckpt"
    assert read_record(last).folder == read_record("a.ckpt").folder
    run("fit", "--ckpt_path", "last", "--name", "on", "--trainer.max_steps", "2")
    assert read_record(last).folder == read_record("a.ckpt").folder
    assert tokenizer_from_state(read_record(last).tokenizer).ends == (281, 0)
    run("export", last, "--output", "out")
    for name in ("tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_what_is_not_kept_is_said(make_folder, capsys) -> None:
    code = {"auto_map": {"AutoTokenizer": ["mine.Tokenizer", None]}, "eos_token": "<|im_end|>"}
    folder = make_folder({"eos_token_id": 50256}, tokenizer_config=code, processor={})
    _, out = there_and_back(folder)
    err = capsys.readouterr().err
    assert "tokenizer_config.json: auto_map names code, which is not kept" in err
    assert "eos_token_id 50256: beyond the 290 ids of the model, not kept" in err
    assert "not kept: processor.json" in err
    assert json.loads((out / "tokenizer_config.json").read_text()) == {"eos_token": "<|im_end|>"}
