"""Rows of texts: every format gives the same cells, and a line that cannot be read is a row without cells."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest

from sordino.data.text_rows import TextRows
from sordino.errors import DataError, SordinoError, UsageError

ROWS = [{"text": 'one, "two"\nthree', "label": "a"}, {"text": "é ☃", "label": "b"}, {"text": "x", "label": "a"}]


def as_csv(path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["text", "label"])
        writer.writeheader()
        writer.writerows(ROWS)


def as_packed_csv(path: Path) -> None:
    as_csv(path.with_suffix(""))
    path.write_bytes(gzip.compress(path.with_suffix("").read_bytes()))


WRITERS: dict[str, Any] = {
    "rows.jsonl": lambda path: path.write_text("".join(json.dumps(row) + "\n" for row in ROWS)),
    "rows.csv": as_csv,
    "rows.csv.gz": as_packed_csv,
    "rows.parquet": lambda path: pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path),
    "rows.feather": lambda path: pyarrow.feather.write_feather(pyarrow.Table.from_pylist(ROWS), str(path)),
    "saved": lambda path: datasets.Dataset.from_list(ROWS).save_to_disk(str(path), num_shards=2),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_cells(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name)
    rows = TextRows.open(tmp_path / name)
    assert rows.columns == ("text", "label")
    assert rows.read(["label", "text"]) == {key: [row[key] for row in ROWS] for key in ("label", "text")}


def test_lists_of_words_and_tokens_stay_lists(tmp_path: Path) -> None:
    table = [{"tokens": ["a", "b"], "ids": [1, 2, 3]}, {"tokens": [], "ids": None}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    expected = {"tokens": [["a", "b"], []], "ids": [[1, 2, 3], None]}
    for name in ("rows.parquet", "rows.jsonl"):
        assert TextRows.open(tmp_path / name).read(["tokens", "ids"]) == expected


@pytest.mark.parametrize(
    "line",
    [b"{", b"", b"[1]", b"7", b"\xff\xfe", b'{"text": "\\ud800"}', b'{"text": 1, "text": 2}', b'{"text": NaN}',
     b"[" * 10_000, b'{"text": ' + b"9" * 10_000 + b"}"],
)  # fmt: skip
def test_a_line_that_cannot_be_read_is_a_row_without_cells_wherever_it_is(line: bytes, tmp_path: Path) -> None:
    good = [b'{"text": "a", "label": 1}'] * 9
    for place in (0, 4, 8):
        lines = [*good[:place], line, *good[place + 1 :]]
        (tmp_path / "rows.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        rows = TextRows.open(tmp_path / "rows.jsonl")
        assert rows.columns == ("text", "label")
        expected = [None if at == place else "a" for at in range(9)]
        assert rows.read(["text"])["text"] == (expected[:-1] if place == 8 and not line else expected)


def test_no_single_line_decides_on_a_column(tmp_path: Path) -> None:
    usual, other = json.dumps({"text": "a"}), json.dumps({"text": "a", "secret": 1})
    path = tmp_path / "rows.jsonl"
    for place in range(3):
        lines = [usual] * 3
        lines[place] = other
        path.write_text("\n".join(lines))
        assert TextRows.open(path).columns == ("text",)
    path.write_text("\n".join([other, other, usual]))
    assert TextRows.open(path).columns == ("text", "secret")


def test_several_splits_missing_files_and_other_formats_are_refused(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(tmp_path / "splits"))
    (tmp_path / "rows.txt").write_text("a\n")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "nothing").mkdir()
    refusals: list[tuple[str, type[SordinoError], str]] = [
        ("splits", UsageError, "holds several splits: name the folder of one"),
        ("rows.txt", DataError, "unknown format for texts"),
        ("empty.jsonl", DataError, "has no rows"),
        ("none.jsonl", DataError, "no such file"),
        ("nothing", DataError, "has no rows of texts"),
    ]
    for name, error, said in refusals:
        with pytest.raises(error, match=said):
            TextRows.open(tmp_path / name)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
def test_a_damaged_file_is_refused_without_its_contents(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"a private sentence" * 100)
    with pytest.raises(DataError, match="cannot be read as") as caught:
        TextRows.open(path)
    assert "sentence" not in str(caught.value)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a private sentence"] * 5000}), tmp_path / "whole.parquet")
    whole = bytearray((tmp_path / "whole.parquet").read_bytes())
    whole[4:40] = b"\0" * 36
    (tmp_path / "broken.parquet").write_bytes(whole)
    with pytest.raises(DataError, match="cannot be read as") as caught:
        TextRows.open(tmp_path / "broken.parquet").read(["text"])
    assert "sentence" not in str(caught.value)


def test_files_of_a_folder_must_have_the_same_columns(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pyarrow.parquet.write_table(pyarrow.table({name: [1]}), tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match="different columns"):
        TextRows.open(tmp_path)


def test_a_text_of_parquet_that_is_not_utf_8_is_an_empty_cell(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    _, offsets, values = pyarrow.array([b"well", b"\xff\xfe", b"ill"]).buffers()
    texts = pyarrow.StringArray.from_buffers(3, offsets, values)
    parquet.write_table(pyarrow.table({"text": texts, "label": [0, 1, 0]}), tmp_path / "notes.parquet")
    found = TextRows.open(tmp_path / "notes.parquet").read(["text", "label"])
    assert found == {"text": ["well", None, "ill"], "label": [0, 1, 0]}
