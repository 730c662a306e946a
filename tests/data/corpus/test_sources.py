"""Every kind of source comes back document for document, or is refused in one line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest

from llama_lab.data.corpus.finding import natural
from llama_lab.data.corpus.readers.records import Piece, SourceRequest
from llama_lab.data.corpus.readers.streams import zstd_window
from llama_lab.data.corpus.sources import Reading, separated
from llama_lab.errors import UserError

DOCUMENTS = [
    "a\r\nb\u2028c\x85d",
    "\x00 nul",
    'with "quotes", commas\nand lines',
    "é中😀\u200d",
    " ",
]


def reading(*corpus: object, **settings: Any) -> Reading:
    return Reading(SourceRequest(corpus=list(map(str, corpus)), **settings))


def documents(*corpus: object, **settings: Any) -> list[str]:
    whole, found = "", []
    for piece in reading(*corpus, **settings):
        whole += piece.text
        if piece.ends_document:
            found.append(whole)
            whole = ""
    assert whole == ""
    return found


def refusal(*corpus: object, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        documents(*corpus, **settings)
    message = str(caught.value)
    assert "\n" not in message
    return message


def as_jsonl(texts: list[str], end: str = "\n", **dump: Any) -> bytes:
    return end.join(json.dumps({"id": 1, "text": text}, **dump) for text in texts).encode()


def as_csv(texts: list[str], delimiter: str = ",") -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL, lineterminator="\n")
    writer.writerows([["id", "text"], *([k, text] for k, text in enumerate(texts))])
    return out.getvalue().encode()


def write_parquet(path: Path, **columns: Any) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    return path


def zstd() -> Any:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return pytest.importorskip(name)


def packed(data: bytes, ending: str) -> bytes:
    if ending == ".gz":
        return gzip.compress(data)
    if ending == ".zst":
        return bytes(zstd().compress(data))
    return data


def packed_in_a_window(data: bytes, log: int) -> bytes:
    """As ``zstd --long=LOG`` packs a stream whose length it does not know."""
    names = zstd().CompressionParameter
    packer = zstd().ZstdCompressor(options={names.window_log: log, names.content_size_flag: 0})
    return bytes(packer.compress(data) + packer.flush())


# ---- records ------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", ["", ".gz", ".zst"])
@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.jsonl", as_jsonl(DOCUMENTS)),
        ("x.jsonl", b"\xef\xbb\xbf" + as_jsonl(DOCUMENTS, "\r\n\r\n", ensure_ascii=False)),
        ("x.json", as_jsonl(DOCUMENTS) + b"\n"),
        ("x.json", json.dumps([{"text": t} for t in DOCUMENTS], indent=1).encode()),
        ("x.json", json.dumps({"v": 1.5, "data": [{"text": t} for t in DOCUMENTS]}).encode()),
        ("x.json", json.dumps({"a": [{"text": t} for t in DOCUMENTS], "b": []}, indent=1).encode()),
        ("x.json", "\n".join(json.dumps({"text": t}, indent=1) for t in DOCUMENTS).encode()),
        ("x.json", b"\n [" + as_jsonl(DOCUMENTS, ",", ensure_ascii=False) + b"] "),
        ("x.csv", as_csv(DOCUMENTS)),
        ("x.csv", b"\xef\xbb\xbf" + as_csv(DOCUMENTS, ";")),
    ],
)
def test_records_come_back_character_for_character(
    tmp_path: Path, name: str, data: bytes, packing: str
) -> None:
    path = tmp_path / (name + packing)
    path.write_bytes(packed(data, packing))
    assert documents(path) == DOCUMENTS
    assert reading(path).documents_are_records


@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_between_tabs_quotation_marks_are_taken_off_only_when_asked(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / name
    path.write_bytes(as_csv(DOCUMENTS, "\t"))
    assert documents(path, quoting="csv") == DOCUMENTS
    line = refusal(path)
    assert 'there is: "id", "text";' in line
    assert line.endswith("set --data.quoting csv")


def test_parquet_comes_back_character_for_character(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", id=[1, 2, 3, 4, 5], text=DOCUMENTS)
    assert documents(path) == DOCUMENTS


def test_an_array_is_read_record_by_record_whatever_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_lab.data.corpus.readers.json_records.CHUNK_BYTES", 3)
    path = tmp_path / "x.json"
    path.write_bytes(json.dumps([{"n": 12, "text": t} for t in DOCUMENTS]).encode())
    assert documents(path) == DOCUMENTS


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("held", [1, 1 << 20])
def test_an_object_around_a_list_is_read_whatever_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, held: int
) -> None:
    monkeypatch.setattr("llama_lab.data.corpus.readers.json_records.CHUNK_BYTES", 3)
    monkeypatch.setattr("llama_lab.data.corpus.readers.json_records.HELD_CHARACTERS", held)
    path = tmp_path / "x.json"
    about = {"version": 12, "names": ["a"], "rows": [{"text": t} for t in DOCUMENTS], "z": None}
    path.write_text(json.dumps(about, indent=indent))
    assert documents(path) == DOCUMENTS
    path.write_text(json.dumps({"spans": [{"text": "no"}], "text": "whole"}, indent=indent))
    if held > 1:
        assert documents(path) == ["whole"]
    path.write_text(json.dumps({"n": 1, "text": "whole"}, indent=indent) + '\n{"text": "more"}')
    assert documents(path) == ["whole", "more"]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"train": [{"text": "a"}], "test": [{"text": "b"}]}, "whose keys train and test both"),
        ({"meta": {"n": 1}, "names": ["a"]}, "'text' (there is: meta, names; name the text's"),
        ({"data": [{"body": "a"}]}, "x.json, data, record 1: no field 'text' (there is: body;"),
        ({"text": ["a", "b"]}, "the text is a list"),
    ],
)
def test_an_object_whose_records_are_not_clear_is_refused_with_its_keys(
    tmp_path: Path, about: dict[str, Any], words: str, indent: int | None
) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(about, indent=indent))
    assert words in refusal(path)


def test_an_object_that_breaks_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    whole = json.dumps({"v": 1, "data": [{"text": "a"}, {"text": "b"}]}, indent=1)
    for end in range(1, len(whole)):
        path.write_text(whole[:end])
        assert "not valid JSON" in refusal(path)
    path.write_text(whole + "]")
    assert "text follows the object" in refusal(path)


def test_a_folder_of_objects_counts_those_without_a_text(tmp_path: Path) -> None:
    for number, about in enumerate([{"text": "a"}, {"other": 1}, {"data": [{"text": "b"}]}]):
        (tmp_path / f"{number}.json").write_text(json.dumps(about, indent=1))
    assert documents(tmp_path, on_bad_record="skip") == ["a", "b"]


def test_a_dataset_of_hugging_faces_library_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_dict({"body": DOCUMENTS, "n": [1, 2, 3, 4, 5]})
    made.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"test": made}).save_to_disk(tmp_path / "splits")
    assert documents(f"hf://{tmp_path / 'saved'}", text_field="body") == DOCUMENTS
    assert documents(f"hf://{tmp_path / 'splits'}@test", text_field="body") == DOCUMENTS
    assert "there is: body, n" in refusal(f"hf://{tmp_path / 'saved'}")
    assert "'n' is not text (int64)" in refusal(f"hf://{tmp_path / 'saved'}", text_field="n")
    assert "cannot be loaded" in refusal(f"hf://{tmp_path / 'splits'}@other", text_field="body")


BAD = [
    ('{"other": 1}', "no field 'text'"),
    ('{"text": null}', "the text is null"),
    ('{"text": 3}', "the text is a number"),
    ('{"text": ["a"]}', "the text is a list"),
    ('["text"]', "the record is no JSON object"),
    ('{"text": "cut', "not valid JSON"),
    ("[" * 100_000, "not valid JSON"),
    ('{"text": ' + "1" * 5000 + "}", "not valid JSON"),
    (r'{"text": "\ud800"}', "half of a surrogate pair"),
    (b'{"text": "caf\xe9"}', "not valid UTF-8"),
]


@pytest.mark.parametrize(("line", "reason"), BAD)
def test_a_bad_record_stops_at_its_line_or_is_counted(
    tmp_path: Path, line: str | bytes, reason: str
) -> None:
    path = tmp_path / "x.jsonl"
    bad = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(b'{"text": "good"}\n\n' + bad + b'\n{"text": ""}\n{"text": "also"}')
    message = refusal(path)
    assert message.startswith(f"--data.corpus {path}, line 3: ")
    assert "--data.encoding" in message if b"\xe9" in bad else reason in message
    source = reading(path, on_bad_record="skip")
    assert [piece.text for piece in source] == ["good", "also"]
    assert source.tally.bad_records == source.tally.empty_documents == 1
    ((kind, first),) = ((kind, bad.first) for kind, bad in source.tally.bad.items())
    assert reason in kind
    assert first == f"{path}, line 3"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("id,text\n1,ok\n2\n3,fine\n", 3),
        ("id,text\n1,ok\n2,a,b\n3,fine\n", 3),
        ('id,text\n1,"two\nlines"\n2,"x"y\n3,fine\n', 4),
    ],
)
def test_a_bad_row_is_named_by_the_line_it_begins_at(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    assert refusal(path).startswith(f"--data.corpus {path}, line {line}: ")
    assert documents(path, on_bad_record="skip")[-1] == "fine"
    assert len(documents(path, on_bad_record="skip")) == 2


def test_a_quote_that_is_never_closed_is_a_bad_record(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('id,text\n1,ok\n2,"open\n3,lost\n')
    assert f"{path}, line 3" in refusal(path)
    assert documents(path, on_bad_record="skip") == ["ok"]


def test_the_field_and_the_delimiter_may_be_named(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id|body\n1|a,b;c\n")
    assert "there is: id|body" in refusal(path, text_field="body")
    assert documents(path, text_field="body", delimiter="|") == ["a,b;c"]


def test_records_may_be_in_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(as_jsonl(DOCUMENTS, ensure_ascii=False).decode().encode("utf-16"))
    assert documents(path, encoding="utf-16") == DOCUMENTS
    array = tmp_path / "x.json"
    array.write_text(json.dumps([{"text": t} for t in DOCUMENTS], indent=1), encoding="utf-16")
    assert documents(array, encoding="utf-16") == DOCUMENTS
    assert "set --data.encoding utf-16" in refusal(path)


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_packed_file_that_is_cut_off_is_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"x.txt{ending}"
    path.write_bytes(packed(bytes(range(97, 123)) * 4000, ending)[:-9])
    assert "cut off or broken" in refusal(path)
    path.write_bytes(b"no such thing")
    assert "cut off or broken" in refusal(path)


@pytest.mark.parametrize("log", [27, 28, 31])
def test_zstd_is_unpacked_whatever_its_window(tmp_path: Path, log: int) -> None:
    path = tmp_path / "x.txt.zst"
    path.write_bytes(packed_in_a_window(b"text", log))
    assert zstd_window(path) == 2**log
    assert documents(path) == ["text"]


def test_a_window_that_is_too_large_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "x.txt.zst"
    frame = bytearray(packed_in_a_window(b"text", 31))
    frame[5] += 1 << 3  # the exponent
    path.write_bytes(frame)
    line = refusal(path)
    assert "needs a window of 4,294,967,296 bytes of memory" in line
    assert "`zstd -d --long=31`" in line
    assert "cut off" not in line


def test_a_broken_parquet_file_is_refused(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", text=DOCUMENTS)
    path.write_bytes(path.read_bytes()[:-20])
    assert "cannot be read as Parquet" in refusal(path)


# ---- folders, globs, lists ----------------------------------------------------------------------


def test_a_folder_is_read_in_the_natural_order_of_its_paths(tmp_path: Path) -> None:
    for name in ("10.txt", "9.txt", "b/2.md", "b/10.md", "a/1", ".hidden", ".git/x.txt", "pic.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "data.unknown").write_bytes(b"\x00\x01")
    source = reading(tmp_path)
    assert [p.text for p in source] == ["9.txt", "10.txt", "a/1", "b/2.md", "b/10.md"]
    assert source.tally.empty_documents == 1
    assert source.tally.skipped == {"an image (.png)": 1, "binary data (.unknown)": 1}
    assert source.documents_are_records
    assert documents(tmp_path / "**" / "*.md") == ["b/2.md", "b/10.md"]
    assert documents(tmp_path / "10.txt", tmp_path / "b") == ["10.txt", "b/2.md", "b/10.md"]
    assert "is named twice" in refusal(tmp_path / "10.txt", tmp_path / "b" / ".." / "10.txt")


def test_the_natural_order_compares_runs_of_digits_as_numbers() -> None:
    names = ["a9.txt", "a10.txt", "a10/b", "b1", "Z"]
    assert sorted(map(Path, names), key=natural) == [
        Path(n) for n in ["Z", "a9.txt", "a10/b", "a10.txt", "b1"]
    ]


def test_windows_paths_have_the_same_order() -> None:
    names = [r"b\2.md", r"b\10.md", r"a\01.txt", "10.txt", "9.txt", "B.txt"]
    there = sorted(map(PureWindowsPath, names), key=natural)
    here = sorted((PurePosixPath(name.replace("\\", "/")) for name in names), key=natural)
    assert [path.as_posix() for path in there] == [str(path) for path in here]


def test_standard_input_is_text_or_with_a_field_json_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def feed(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    feed("é\r\n".encode())
    assert documents("-") == ["é\r\n"]
    feed(as_jsonl(DOCUMENTS))
    assert documents("-", text_field="text") == DOCUMENTS


def test_line_ends_may_be_made_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # CR and LF fall apart.
    monkeypatch.setattr("llama_lab.data.corpus.readers.streams.CHUNK_BYTES", 2)
    path = tmp_path / "x.txt"
    path.write_bytes(b"a\r\nb\rc\n\r")
    assert documents(path) == ["a\r\nb\rc\n\r"]
    assert documents(path, normalize_newlines=True) == ["a\nb\nc\n\n"]


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"text_field": "x"}, "--data.text_field"),
        ({"delimiter": ","}, "--data.delimiter"),
        ({"quoting": "none"}, "--data.quoting"),
        ({"quoting": "csv"}, "--data.quoting"),
    ],
)
def test_a_setting_that_would_do_nothing_is_refused(
    tmp_path: Path, settings: dict[str, Any], flag: str
) -> None:
    path = tmp_path / "x.txt"
    path.write_text("text")
    assert refusal(path, **settings).startswith(f"{flag} ")


def test_an_identity_follows_what_is_read_and_how(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("text")
    first = reading(path).identity
    assert first is not None
    assert reading(path).identity == first
    assert reading(path, normalize_newlines=True).identity != first
    path.write_text("texts")
    assert reading(path).identity != first
    assert reading("-").identity is None


# ---- the published awkward files ----------------------------------------------------------------

READ = {
    "clean.jsonl": 200,
    "clean.parquet": 600,
    "dictionary_text.parquet": 50,
    "clean_crlf_bom_no_final_newline.jsonl": 50,
    "big_field.csv": 1,
    "semicolon_bom.csv": 2,
    "tabs.tsv": 2,
    "json_array_not_lines.json": 30,
}
REFUSED = {
    "field_named_content.jsonl": "there is: content",
    "no_text_column.parquet": "there is: content",
    "no_header.csv": "there is: 1, alpha text",
    "int_text_column.parquet": "is not text (int64)",
    "mixed_bad.jsonl": "line 6: ",
    "ragged.csv": "line 3: ",
    "unterminated_quote.csv": "line 3: ",
    "nulls_largestring.parquet": "row 4: the text is null",
    "empty_rows.parquet": "holds no text",
    "dir_corpus": "bad_latin1.txt: byte 0xE9 at offset 3",
}


@pytest.mark.parametrize(("name", "n"), READ.items())
def test_published_records_are_read(test_data: Path, name: str, n: int) -> None:
    assert len(documents(test_data / "awkward" / name)) == n


@pytest.mark.parametrize(("name", "words"), REFUSED.items())
def test_published_bad_files_are_refused_by_name(test_data: Path, name: str, words: str) -> None:
    assert words in refusal(test_data / "awkward" / name)


def test_published_bad_records_are_counted_by_kind(test_data: Path) -> None:
    source = reading(test_data / "awkward" / "mixed_bad.jsonl", on_bad_record="skip")
    assert len(list(source)) == 29
    firsts = {kind: bad.first.rpartition(" ")[2] for kind, bad in source.tally.bad.items()}
    assert sorted(map(int, firsts.values())) == [6, 7, 9, 10, 11, 16, 22]
    assert source.tally.empty_documents == 1


@pytest.mark.parametrize(
    ("written", "text"), [("\\n", "\n"), ("\n", "\n"), ("--\\t\\\\", "--\t\\")]
)
def test_a_separator_follows_every_document_that_does_not_end_in_it(
    tmp_path: Path, written: str, text: str
) -> None:
    texts = [*DOCUMENTS, f"ends in it{text}", f"{text}begins"]
    whole = [t if t.endswith(text) else t + text for t in texts]
    records = tmp_path / "d.jsonl"
    records.write_bytes(as_jsonl(texts))
    assert documents(records, separator=written) == whole
    for number, each in enumerate(texts):
        (tmp_path / f"{number}.txt").write_bytes(each.encode())
    files = [tmp_path / f"{number}.txt" for number in range(len(texts))]
    assert documents(*files, separator=written) == whole
    assert documents(files[0], separator=written) == texts[:1]  # one running text
    known = {reading(records).identity, reading(records, separator=written).identity}
    assert len(known) == 2


def test_a_separator_that_lies_over_two_pieces_is_seen() -> None:
    pieces = [Piece("ab-", False), Piece("-", True), Piece("c-", True), Piece("-", True)]
    texts = [piece.text for piece in separated(pieces, "--")]
    assert texts == ["ab-", "-", "c---", "---"]
