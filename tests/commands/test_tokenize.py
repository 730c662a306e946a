"""``tokenize`` writes the store that ``fit`` finds, and says what is in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llama_lab.cli import main
from tests.runs.conftest import flags

TEXTS = [f"document {i} says {i * i}\n" for i in range(40)]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with ``docs.jsonl``."""
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"text": text}) for text in TEXTS]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


@pytest.fixture
def told(here: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs the command; its JSON."""

    def told(*argv: str) -> Any:
        assert main(["tokenize", *argv, "--format", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    return told


def test_it_counts_documents_characters_and_tokens(told: Callable[..., Any]) -> None:
    char = told("--corpus", "docs.jsonl")
    whole = "".join(TEXTS)
    assert (char["documents"], char["characters"], char["bytes"]) == (40, len(whole), len(whole))
    assert char["tokens"] == len(whole)  # no id stands between documents
    begins = [len("".join(TEXTS[:i])) for i in range(40)]
    held_out = sum(begin >= len(whole) * 9 // 10 for begin in begins)
    assert char["parts"]["validation"]["documents"] == held_out > 1
    assert char["split"] == f"the last {held_out} of 40 documents for validation"
    assert char["longest_documents"][0]["characters"] == max(map(len, TEXTS))
    bpe = told("--corpus", "docs.jsonl", "--tokenizer", "bpe", "--vocab_size", "257")
    assert bpe["tokens"] == len(whole) + 40  # bytes, and an end of text after every document


def test_the_same_text_is_told_of_by_the_files_that_it_now_comes_from(
    told: Callable[..., Any], here: Path
) -> None:
    lines = (here / "docs.jsonl").read_text().splitlines()
    (here / "bad.jsonl").write_text("\n".join(["{", *lines]))
    (here / "other.jsonl").write_text("\n".join(lines))
    first = told("--corpus", "bad.jsonl", "--on_bad_record", "skip")
    second, third = (told("--corpus", name) for name in ("docs.jsonl", "other.jsonl"))
    assert len(first["left_out"]) == 1
    assert second["left_out"] == []
    assert [about["corpus"] for about in (second, third)] == ["docs.jsonl", "other.jsonl"]
    assert first["digest"] == second["digest"]
    assert second["store"] == third["store"]


def test_how_quotation_marks_are_read_makes_another_store(
    told: Callable[..., Any], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [*TEXTS, '"' + "\n".join(TEXTS[:12]) + '"']
    (here / "docs.tsv").write_text("id\ttext\n" + "".join(f"1\t{t.strip()}\n" for t in texts[:40]))
    (here / "docs.csv").write_text("id,text\n" + "".join(f"1,{t.strip()}\n" for t in texts))
    stray = told("--corpus", "docs.tsv")
    assert stray["documents"] == 40
    assert told("--corpus", "docs.tsv", "--quoting", "csv")["noted"] == []
    (note,) = told("--corpus", "docs.csv")["noted"]
    assert "from docs.csv, line 42; " in note
    assert main(["tokenize", "--corpus", "docs.csv"]) == 0
    assert "set --quoting none" in capsys.readouterr().out
    (here / "marks.tsv").write_text('id\ttext\n1\t"both"\n2\tno\n')
    stores = [
        told("--corpus", "marks.tsv", "--quoting", quoting, "--val_fraction", "0.5")
        for quoting in ("auto", "none", "csv")
    ]
    assert [about["characters"] for about in stores] == [8, 8, 6]
    assert len({about["digest"] for about in stores}) == 2
    argv = ("--corpus", "docs.csv", "--quoting", "none", "--on_bad_record", "skip")
    assert told(*argv)["left_out"] != []


def test_fit_finds_the_store_that_it_wrote(
    told: Callable[..., Any], here: Path, corpus_reads: list[str]
) -> None:
    store = told("--corpus", "docs.jsonl")["store"]
    assert corpus_reads == ["docs.jsonl"]
    assert main(["fit", *flags(data__corpus="docs.jsonl", trainer__max_steps=1)]) == 0
    assert corpus_reads == ["docs.jsonl"]
    assert {p.name for p in (here / "data" / "cache").iterdir()} == {"sources", Path(store).name}


def test_unseen_characters_bad_records_and_shared_text_are_reported(
    told: Callable[..., Any], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [json.dumps({"text": "the same words again and again " * 3})] * 20
    lines += ["{", json.dumps({"text": "the same words again and again " * 3 + "é中é"})]
    (here / "mixed.jsonl").write_text("\n".join(lines))
    argv = ("--corpus", "mixed.jsonl", "--on_bad_record", "skip", "--val_fraction", "0.04")
    found = told(*argv)
    assert found["unseen_in_training"]["examples"] == {"é": 2, "中": 1}
    bad = found["sources"]["corpus"]["bad_records"]
    assert bad == {"not valid JSON": {"count": 1, "first": "mixed.jsonl, line 21"}}
    assert found["overlap"]["share"] > 0.9
    assert main(["tokenize", *argv]) == 0
    table = capsys.readouterr().out
    for words in ("mixed.jsonl, line 21", "é 2, 中 1", "passages of 50 characters", "data/cache"):
        assert words in table


def test_a_tokenizer_that_loses_text_is_reported(
    told: Callable[..., Any], test_data: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = test_data / "tokenizers" / "torchtitan-test"
    (here / "text.txt").write_text("Hello  world! 中文 " * 200)
    found = told("--corpus", "text.txt", "--tokenizer", str(folder))
    assert found["lost"]["examples"] == {" ": 800, "中": 200, "文": 200}
    argv = flags(data__tokenizer=folder, trainer__max_steps=1, trainer__val_check_interval=1)
    assert main(["fit", *argv]) == 0
    assert "LOST: the tokenizer does not bring back 1,200 characters" in capsys.readouterr().out


def test_gpt2s_two_files_give_the_published_numbers_of_tokens(
    told: Callable[..., Any], test_data: Path
) -> None:
    found = told(
        *("--corpus", str(test_data / "tinyshakespeare.txt")),
        *("--tokenizer", str(test_data / "tokenizers" / "gpt2")),
    )
    assert found["parts"]["train"]["tokens"] == 301_966
    assert found["parts"]["validation"]["tokens"] == 36_059


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--corpus", "nowhere"), "--corpus nowhere: neither a file"),
        (("--corpus", "docs.jsonl", "--tokenizer", "word"), "--tokenizer word is neither char nor"),
        (("--corpus", "docs.jsonl", "--vocab_size", "9"), "--vocab_size 9 would do nothing"),
        (("--corpus", "docs.jsonl", "--text_field", "body"), "no field 'body' (there is: text"),
        (("--corpus", "docs.jsonl", "--quoting", "none"), "--quoting none would do nothing"),
        (("--corpus", "docs.jsonl", "--val_fraction", "2"), "--val_fraction 2.0 is not above 0"),
    ],
)
def test_what_cannot_be_done_is_refused_under_its_own_flags(
    here: Path, refused: Callable[..., str], argv: tuple[str, ...], words: str
) -> None:
    line = refused("tokenize", *argv)
    assert words in line
    assert "--data." not in line
    assert not (here / "data").exists()


REFUSED = {
    *("cp1252_smart_quotes.txt", "dir_corpus", "empty.txt", "empty_rows.parquet"),
    *("field_named_content.jsonl", "gbk_chinese.txt", "int_text_column.parquet"),
    *("latin1_invalid_utf8.txt", "mixed_bad.jsonl", "no_header.csv", "no_text_column.parquet"),
    *("nulls_largestring.parquet", "only_bom.txt", "ragged.csv", "unterminated_quote.csv"),
    *("utf16le_bom.txt", "utf8_mostly_ok_one_bad_byte.txt", "utf8_truncated_tail.txt"),
}
TOO_SHORT = {
    *("only_newline.txt", "only_whitespace.txt", "one_char.txt", "semicolon_bom.csv", "tabs.tsv"),
    *("ten_chars.txt", "trailing_spaces_no_final_newline.txt"),
}
"""For sequences of 16 tokens."""


def test_every_published_awkward_file_is_read_or_refused_in_one_line(
    here: Path, test_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = {}
    for path in sorted((test_data / "awkward").iterdir()):
        codes[path.name] = main(["tokenize", "--corpus", str(path)])
        out, err = capsys.readouterr()
        assert (err.count("\n"), bool(out)) == ((0, True) if codes[path.name] == 0 else (1, False))
    assert {name for name, code in codes.items() if code} == REFUSED
    assert set(codes.values()) == {0, 2}


@pytest.mark.parametrize(
    "name",
    ["empty.txt", "dir_corpus", "mixed_bad.jsonl", "one_char.txt", "ten_chars.txt", "tabs.tsv"],
)
def test_fit_refuses_the_same_and_leaves_nothing_behind(
    tmp_path: Path,
    test_data: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., str],
    name: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused("fit", *flags(data__corpus=str(test_data / "awkward" / name)))
    assert list(tmp_path.iterdir()) == []
    if name in TOO_SHORT:
        assert re.search(r"part has \d+ tokens, but one sequence needs 17", line)


@pytest.mark.slow
def test_fit_trains_on_all_others_and_refuses_these(
    tmp_path: Path, test_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in sorted((test_data / "awkward").iterdir()):
        settings = flags(data__corpus=str(path), trainer__max_steps=1)
        code = main(["fit", *settings, "--trainer.val_check_interval=1"])
        assert code == (2 if path.name in REFUSED | TOO_SHORT else 0)
