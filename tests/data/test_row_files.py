"""Files and folders that may be larger than memory: rows are read when they are drawn, equal to those in memory."""

from __future__ import annotations

import logging
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import sordino as so
from sordino.data import arrow_rows, load, open_rows
from sordino.errors import DataError, SordinoError, UsageError
from sordino.kernel.records import as_records

ROWS = 50
X = torch.linspace(-1, 1, 2 * ROWS, dtype=torch.float32).reshape(ROWS, 2)
IDS = torch.arange(6 * ROWS).reshape(ROWS, 3, 2)
AGE = torch.arange(ROWS, dtype=torch.float64) / 3
Y = torch.arange(ROWS) % 3
SOME = torch.tensor([41, 3, 20, 19])
USED = {"inputs": ("x", "ids", "age"), "target": "y"}


def table() -> pa.Table:
    return pa.table(
        {
            "name": [f"person {index}" for index in range(ROWS)],
            "x": pa.array(X.tolist(), pa.list_(pa.float32(), 2)),
            "ids": pa.array(IDS.tolist(), pa.list_(pa.large_list(pa.uint16()))),
            "age": AGE.numpy(),
            "y": pa.array(Y.numpy(), pa.int8()).dictionary_encode(),
        }
    )


def arrow_file(path: Path, rows: pa.Table, compression: str | None = None) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=7)
    return path


def stream_file(path: Path) -> Path:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table().schema) as writer:
        writer.write_table(table(), max_chunksize=7)
    return path


def folder_of(folder: Path, suffix: str) -> Path:
    folder.mkdir()
    for number, start in enumerate((0, 20, 40)):
        part = table().slice(start, 20)
        if suffix == ".parquet":
            pa.parquet.write_table(part, folder / f"{number}.parquet", row_group_size=3)
        else:
            arrow_file(folder / f"{number}.arrow", part)
    return folder


def parquet_file(path: Path, rows: pa.Table | None = None) -> Path:
    pa.parquet.write_table(table() if rows is None else rows, path, row_group_size=8)
    return path


FORMS = {
    "arrow": lambda folder: arrow_file(folder / "a.arrow", table()),
    "compressed arrow": lambda folder: arrow_file(folder / "a.feather", table(), "lz4"),
    "arrow stream": lambda folder: stream_file(folder / "a.arrow"),
    "parquet": lambda folder: parquet_file(folder / "a.parquet"),
    "folder of arrow": lambda folder: folder_of(folder / "many", ".arrow"),
    "folder of parquet": lambda folder: folder_of(folder / "many", ".parquet"),
}


@pytest.mark.parametrize("make", FORMS.values(), ids=FORMS)
def test_every_form_of_file_gives_the_rows_that_were_written(make: Any, tmp_path: Path) -> None:
    rows = pickle.loads(pickle.dumps(open_rows(make(tmp_path))))
    records = as_records(rows, **USED)
    batch = records.gather(SOME)
    expected = as_records({"x": X, "ids": IDS, "age": AGE, "y": Y}, **USED).gather(SOME)
    assert records.num_units == ROWS and bool(batch.valid.all())
    for found, like in zip((*batch.inputs, batch.target), (*expected.inputs, expected.target), strict=True):
        assert torch.equal(found, like) and found.dtype == like.dtype


def test_rows_without_a_value_or_of_another_length_are_absent_and_the_others_as_they_were(tmp_path: Path) -> None:
    columns = {"x": X.tolist(), "age": AGE.tolist(), "y": Y.tolist()}
    columns["x"][3], columns["x"][4], columns["age"][5], columns["y"][6] = None, [1.0], None, None
    columns["x"][7] = [None, 1.0]
    types = [("x", pa.list_(pa.float32())), ("age", pa.float64()), ("y", pa.int64())]
    path = arrow_file(tmp_path / "a.arrow", pa.table(columns, schema=pa.schema(types)))
    batch = as_records(open_rows(path), inputs=("x", "age"), target="y").gather(torch.arange(2, 9))
    assert batch.valid.tolist() == [True, *[False] * 5, True]
    assert torch.equal(batch.inputs[0][[0, 6]], X[[2, 8]]) and torch.equal(batch.inputs[1][[0, 6]], AGE[[2, 8]].float())


def test_a_copy_of_parquet_rows_is_private_and_is_made_again_only_if_the_file_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, copy = parquet_file(tmp_path / "a.parquet"), tmp_path / "a.parquet.rows.arrow"
    with caplog.at_level(logging.WARNING, "sordino"):
        open_rows(path)
        assert copy.stat().st_mode & 0o777 == 0o600 and len(caplog.records) == 1 and copy.name in caplog.text
        made = copy.stat().st_mtime_ns
        open_rows(path)
        assert copy.stat().st_mtime_ns == made and len(caplog.records) == 1
        parquet_file(path, table().slice(0, 30))
        assert len(open_rows(path)) == 30
    assert sorted(os.listdir(tmp_path)) == ["a.parquet", "a.parquet.rows.arrow"]


def test_a_copy_may_be_elsewhere(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "a.parquet")
    assert len(open_rows(path, cache=tmp_path / "copy.arrow")) == ROWS and (tmp_path / "copy.arrow").is_file()
    with pytest.raises(UsageError, match=r"cannot be written.*cache=PATH"):
        open_rows(path, cache=tmp_path / "nowhere" / "copy.arrow")


def anonymous_mebibytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) >> 10


@pytest.mark.slow
def test_a_file_is_unpacked_and_read_a_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, schema = tmp_path / "a.parquet", pa.schema([("x", pa.list_(pa.float32(), 1024)), ("y", pa.int64())])
    with pa.parquet.ParquetWriter(path, schema) as writer:
        for _ in range(10):  # 160 MiB, of zeros that take little space when they are packed
            zeros = pa.FixedSizeListArray.from_arrays(np.zeros(1 << 22, dtype=np.float32), 1024)
            writer.write_table(pa.table([zeros, pa.array(np.zeros(4096, dtype=np.int64))], schema=schema))
    pa.default_memory_pool().release_unused()
    monkeypatch.setattr(arrow_rows, "_ROWS_AT_A_TIME", 256)
    before = anonymous_mebibytes()
    records = so.as_records(open_rows(path), target="y")
    records.gather(torch.arange(0, records.num_units, 400))
    assert records.num_units == 40_960 and anonymous_mebibytes() - before < 100


def folder_of_images(folder: Path) -> Path:
    for place in range(12):
        path = folder / "train" / "ab"[place % 2] / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), place, dtype=np.uint8)).save(path)
    return folder


def test_a_folder_of_images_gives_the_rows_that_load_gives(tmp_path: Path) -> None:
    folder = folder_of_images(tmp_path / "pictures")
    damaged = folder / "train" / "a" / "4.png"
    damaged.write_bytes(damaged.read_bytes()[:50])
    lazy, whole = as_records(open_rows(folder)), load(folder).train
    batch, everybody = lazy.gather(torch.arange(12)), torch.arange(12) != 4
    assert sum(batch.valid.tolist()) == 11 and torch.equal(batch.valid, whole.target >= 0)
    assert torch.equal(batch.inputs[0], whole.inputs.float()) and everybody.sum() == 11
    assert torch.equal(batch.target[batch.valid], whole.target[batch.valid])


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda folder: open_rows(folder / "none.parquet"), DataError, "no such file or folder"),
        (lambda folder: open_rows(folder), DataError, "has no rows to open: give a .parquet"),
        (lambda folder: open_rows(3), UsageError, "source must be"),
        (lambda folder: open_rows(folder_of_images(folder), cache="c"), UsageError, "leave it out for images"),
        (lambda folder: as_records(str(folder)), UsageError, r"got str: open a file .* by sordino\.data\.open_rows"),
    ],
)
def test_what_cannot_be_opened_is_refused_in_one_line(
    make: Any, error: type[SordinoError], says: str, tmp_path
) -> None:
    with pytest.raises(error, match=says) as refused:
        make(tmp_path)
    assert "\n" not in str(refused.value)


def test_files_that_are_damaged_or_differ_in_columns_are_refused_by_name(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow"):
        (tmp_path / name).write_bytes(b"PAR1 private words")
        with pytest.raises(DataError, match=f"{name}' cannot be read as") as refused:
            open_rows(tmp_path / name)
        assert "private" not in str(refused.value) and refused.value.__cause__ is None
    folder = folder_of(tmp_path / "many", ".parquet")
    parquet_file(folder / "3.parquet", table().drop_columns(["age"]))
    with pytest.raises(DataError, match=r"3\.parquet' has other columns than .*0\.parquet"):
        open_rows(folder)
