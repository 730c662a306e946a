"""Quotation marks of tables: where they hold a field together, and what a stray one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.corpus.test_sources import documents, reading, refusal

ROWS = [f"line {n}" for n in range(3, 60)]


def table(path: Path, texts: list[str], delimiter: str) -> Path:
    rows = ["id" + delimiter + "text", *(f"{n}{delimiter}{text}" for n, text in enumerate(texts))]
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("name", ["x.tsv", "x.csv"])
def test_a_stray_mark_between_tabs_is_text(tmp_path: Path, name: str) -> None:
    texts = ["one", '"stray', *ROWS, 'and" another', '"both"']
    path = table(tmp_path / name, texts, "\t")
    assert documents(path) == texts
    assert documents(path, quoting="none") == texts
    source = reading(path)
    assert list(source)
    assert source.tally.notes() == [
        "1 field(s) begin and end with quotation marks, which were kept as text, the first at "
        f"{path}, line {len(texts) + 1}; to take them off, set --data.quoting csv"
    ]
    assert documents(path, quoting="csv", on_bad_record="skip") == ["one", "both"]


def test_marks_between_commas_are_text_only_when_asked(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv", ['"quoted"', '"stray'], ",")
    assert documents(path, quoting="none") == ['"quoted"', '"stray']
    assert documents(path, quoting="auto", on_bad_record="skip") == ["quoted"]


def test_a_field_over_many_lines_is_told_with_its_line(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv", ["one", '"' + "\n".join(ROWS) + '"', '"two\nlines"'], ",")
    source = reading(path)
    assert len(list(source)) == 3
    (note,) = source.tally.notes()
    assert note.startswith("1 row(s) run over many lines within quotation marks, the longest over")
    assert f"over {len(ROWS)} lines from {path}, line 3; " in note


def test_a_mark_that_is_never_closed_is_named_by_the_line_where_it_opened(tmp_path: Path) -> None:
    texts = ["one", '"two\nlines ""so"" ","opened', *ROWS]
    path = table(tmp_path / "x.csv", texts, ",")
    line = refusal(path)
    assert line.startswith(f"--data.corpus {path}, line 4: a quotation mark is never closed")
    assert f"to the end of the file, line {4 + len(ROWS)}; " in line
    assert "set --data.quoting none" in line


def test_every_line_of_a_skipped_record_is_counted(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv", ["one", '"stray', *ROWS, 'ends", here', "two", '"open'], ",")
    source = reading(path, on_bad_record="skip")
    assert [piece.text for piece in source] == ["one", "two"]
    wide, opened = source.tally.bad.values()
    assert (wide.count, wide.n_lines, wide.first) == (1, len(ROWS) + 2, f"{path}, line 3")
    assert (opened.count, opened.n_lines) == (1, 1)
    assert f"1 bad record(s) skipped, {len(ROWS) + 2} lines in all: " in source.tally.lines()[0]
    assert source.tally.as_dict()["bad_records"]["a row of another width"]["lines"] == wide.n_lines


def test_a_broken_row_names_the_line_whose_mark_led_there(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv", ["one", '"stray', "middle", 'a "word" more'], ",")
    assert "where the quotation mark of line 3 led to line 5" in refusal(path)


def test_a_header_whose_mark_is_never_closed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('text,"id\n1,2\n')
    assert "line 1: its header has a quotation mark that is never closed" in refusal(
        path, delimiter=","
    )


def test_how_marks_are_read_belongs_to_the_identity(tmp_path: Path) -> None:
    path = table(tmp_path / "x.csv", ["one"], ",")
    assert len({reading(path, quoting=q).identity for q in ("auto", "none", "csv")}) == 3
