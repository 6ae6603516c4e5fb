"""However a table is written, equal cells become equal inputs, and no row decides how the others are read."""

import gzip
import sys
import tempfile
from datetime import date
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from sordino.data import table_readers
from sordino.data.columns import DateColumn
from sordino.data.dialect import Dialect
from sordino.data.schema import Schema
from sordino.data.table import load_table
from sordino.data.table_readers import header_of
from sordino.errors import DataError, SordinoError, UsageError

SCHEMA = """
confirmed_public = true
missing = ["?", "NA", "null", "-9"]
target = {column = "ill", classes = ["no", "yes"]}
[columns]
age = {kind = "number", bounds = [0, 100]}
sex = {kind = "category", categories = ["female", "male"]}
"""
TABLE = "age,sex,ill\n25.5,male,no\nNA,female,yes\n-9,null,no\nold,male,no\n"
INPUTS = [[-0.49, 0, 1], [0, 1, 0], [0, 0, 0], [torch.nan, 0, 1]]


@pytest.fixture
def load(tmp_path):
    def load(content, name="people.csv", said="", schema=SCHEMA):
        (tmp_path / "people.toml").write_text(said + schema)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_table(tmp_path / name, tmp_path / "people.toml").train

    return load


def same_inputs(split):
    torch.testing.assert_close(split.inputs, torch.tensor(INPUTS), equal_nan=True)
    return split.target.tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("quote", ["", '"', "'"])
def test_delimiter_and_quotes_are_detected_from_the_column_names(delimiter, quote, load):
    lines = [delimiter.join(f"{quote}{cell}{quote}" for cell in line.split(",")) for line in TABLE.split()]
    assert same_inputs(load("\n".join(lines)))


def test_what_cannot_be_detected_is_said_in_the_schema(load):
    assert same_inputs(load(TABLE.replace(",", "~"), said='delimiter = "~"\n'))
    quoted = TABLE.replace(",male,", ",'male',").replace("old", "'o\\'ld'")
    assert same_inputs(load(quoted, said='quote = "\'"\nescape = "\\\\"\n'))
    assert same_inputs(load(TABLE.replace(",", ";").replace("25.5", "25,5"), said='decimal = ","\n'))


def test_endings_of_names_byte_order_marks_and_packed_files(load):
    tabs = TABLE.replace(",", "\t")
    assert same_inputs(load(tabs, "people.tsv")) and same_inputs(load(gzip.compress(tabs.encode()), "people.tsv.gz"))
    assert same_inputs(load(gzip.compress(b"\xef\xbb\xbf" + TABLE.encode()), "people.csv.gz"))
    assert same_inputs(load(b"\xef\xbb\xbf" + TABLE.replace("\n", "\r\n").encode()))


@pytest.mark.parametrize(
    "content",
    [b"", b"age,sex,ill\n", gzip.compress(TABLE.encode() * 50)[:-20]],
    ids=["empty", "not packed", "cut off"],
)
def test_a_damaged_packed_file_is_refused(content, load):
    with pytest.raises(DataError, match=r"damaged or truncated gzip file|must begin with a line of column names"):
        load(content, "people.csv.gz")


def test_the_columns_of_the_schema_decide_between_delimiters():
    line = "height, cm;weight, kg;a,b,c,d"
    assert Dialect().of_header(line).delimiter == ","
    assert Dialect().of_header(line, ["height, cm", "weight, kg"]).delimiter == ";"


def test_no_row_decides_how_a_file_is_read(tmp_path):
    for row in ("1;2;3;4;5\n", "'a'|'b'|'c'\n", '"', "\t\t\t\t\n"):
        (tmp_path / "people.csv").write_text("age,sex\n" + row)
        assert header_of(tmp_path / "people.csv") == ["age", "sex"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ('delimiter = "||"', "delimiter must be one character"),
        ('quote = ""', "quote must be one character"),
        ('delimiter = ";"\nquote = ";"', "delimiter, quote must be different characters"),
        ('decimal = "x"', "decimal must be '.' or ','"),
        ("missing = 3", "missing must be a string"),
        ("missing = [3]", "missing must be a list of strings"),
        ('missing = ["male"]', "category 'male' is declared as the marker"),
    ],
)
def test_a_dialect_that_cannot_be_is_refused(said, message, load):
    with pytest.raises(UsageError, match=message):
        load(TABLE, said=said + "\n", schema=SCHEMA.replace('missing = ["?", "NA", "null", "-9"]', ""))


# Dates.


def test_dates_are_numbers_between_public_bounds():
    column = DateColumn("2020-01-01", "2020-01-11")
    cells = ["2020-01-06", "2020-01-06T00:00:00+00:00", "2019-01-01", "2021", "", " 2020-01-11 ", "2020-02-31"]
    found = column.encode(cells, frozenset({""}))[:, 0]
    torch.testing.assert_close(
        torch.from_numpy(found), torch.tensor([0.0, 0, -1, torch.nan, 0, 1, torch.nan]), equal_nan=True
    )


def test_dates_in_files_of_each_kind(load, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    schema = SCHEMA + 'on = {kind = "date", bounds = [2020-01-01, "2020-01-11"], format = "%d.%m.%Y"}\n'
    written = load("age;sex;on;ill\n1;male;11.01.2020;no\n", schema=schema)
    columns = {"age": [1], "sex": ["male"], "on": arrow.array([date(2020, 1, 11)]), "ill": ["no"]}
    parquet.write_table(arrow.table(columns), tmp_path / "people.parquet")
    (tmp_path / "people.toml").write_text(schema.replace(', format = "%d.%m.%Y"', ""))
    stored = load_table(tmp_path / "people.parquet", tmp_path / "people.toml").train
    assert written.inputs.tolist() == stored.inputs.tolist() and written.inputs[0, -1] == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ('bounds = ["2020-01-01"]', "got 1 dates"),
        ('bounds = ["2020-01-02", "2020-01-01"]', "must be .earliest, latest"),
        ('bounds = ["soon", "2020-01-01"]', "must be as 2020-12-31, got 'soon'"),
        ("bounds = [0, 1]", "a list of dates"),
        ('bounds = ["2020-01-01", "2021-01-01"]\nformat = "%d %B %Y"', "format may have .* got '%B'"),
    ],
)
def test_bounds_of_dates_are_checked(given, message, load):
    with pytest.raises(UsageError, match=message):
        load(TABLE, schema=SCHEMA + f'\n[columns.on]\nkind = "date"\n{given}\n')


# Arrow and Python read the same.

NUMBERS = [
    "1",
    "25",
    " 3",
    "4 ",
    "1_0",
    "+7",
    "1e2",
    "inf",
    "nan",
    "NAN(x)",
    "0x1",
    "\u0661",
    "?",
    "NA",
    "-9",
    "-9.0",
    "",
]
WORDS = [
    "male",
    "female",
    " male",
    "Male",
    '"male"',
    '" male"',
    '"m,ale"',
    '"a""b"',
    'ma"le',
    '"x',
    "no",
    "yes",
    "\u00e9",
]
CELLS = st.sampled_from(NUMBERS + WORDS)
ENDS = st.sampled_from(["\n", "\n", "\n", "\r\n", "\n\n", "\r", ",\n", ""])


@given(st.lists(st.tuples(CELLS, CELLS, CELLS, ENDS), max_size=6))
@example([("1", "male", "no", "\n"), ("1_0", '"male"', "yes", "\n"), ("NA", "", "no", "\r\n")])
def test_arrow_changes_nothing(rows):
    pytest.importorskip("pyarrow")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        path, schema = Path(folder) / "people.csv", Path(folder) / "people.toml"
        schema.write_text(SCHEMA)
        path.write_bytes(("age,sex,ill\n" + "".join(f"{a},{s},{i}{end}" for a, s, i, end in rows)).encode())
        by_arrow = outcome(path, schema)
        patch.setattr(table_readers, "has_arrow", lambda: False)
        by_python = outcome(path, schema)
    assert by_arrow == by_python


def outcome(path, schema):
    try:
        split = load_table(path, schema).train
    except SordinoError as error:
        return str(error)
    return split.inputs.nan_to_num(77.0).tolist(), split.target.tolist()


def test_a_bad_row_shifts_no_other_row(load, monkeypatch):
    """One block is read by Arrow and the next by Python, because of one bad row; all rows stay in their order."""
    monkeypatch.setattr(table_readers, "LONGEST_LINE", 64)
    rows = [f"{i},male,{'yes' if i % 2 else 'no'}\n" for i in range(100)]
    rows[50] = '50,"ma""le",maybe\n'
    found = load("age,sex,ill\n" + "".join(rows))
    torch.testing.assert_close(found.inputs[:, 0], torch.arange(100) / 50 - 1)
    assert found.target.tolist() == [-1 if i == 50 else i % 2 for i in range(100)]


def test_a_number_that_marks_missing_cells_does_so_in_parquet(load, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"age": [25.5, -9.0, None, float("nan")], "sex": ["male"] * 4, "ill": ["no"] * 4}
    parquet.write_table(arrow.table(columns), tmp_path / "people.parquet")
    (tmp_path / "people.toml").write_text(SCHEMA)
    found = load_table(tmp_path / "people.parquet", tmp_path / "people.toml").train.inputs[:, 0]
    torch.testing.assert_close(found, torch.tensor([-0.49, 0, 0, torch.nan]), equal_nan=True)
    (tmp_path / "people.toml").write_text(SCHEMA.replace('"NA"', '"NaN"'))
    assert load_table(tmp_path / "people.parquet", tmp_path / "people.toml").train.inputs[3, 0] == 0


def test_without_pyarrow_csv_is_read_as_well(load, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    assert same_inputs(load(TABLE))


def test_a_draft_may_be_declared_by_somebody(tmp_path):
    (tmp_path / "people.toml").write_text("read_from_private_rows = true\n" + SCHEMA)
    assert Schema.read(tmp_path / "people.toml").declaration.is_open
    (tmp_path / "people.toml").write_text('read_from_private_rows = true\ndeclared_by = "A. Person"\n' + SCHEMA)
    declaration = Schema.read(tmp_path / "people.toml").declaration
    assert not declaration.is_open and declaration.in_words.endswith("declared public by A. Person.")
