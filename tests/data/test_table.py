"""Tables: the structure is public and checked, what cells hold is private and never refused."""

import re
import sys
import tempfile
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import sordino as so
from sordino.data import table_readers
from sordino.data.schema import Schema
from sordino.data.table import load_features, load_table
from sordino.errors import DataError, UsageError
from sordino.kernel.randomness import Key
from sordino.kernel.records import as_records, by_user

SCHEMA = """
confirmed_public = true
groups = ["sex"]
missing = "?"
target = {column = "ill", classes = ["no", "yes"]}
[columns]
age = {kind = "number", bounds = [0, 100]}
sex = {kind = "category", categories = ["female", "male"]}
"""
BY_USER = 'user = "patient"\nrows_per_user = 2\n' + SCHEMA
TABLE = "age,sex,ill,patient\n25,male,no,anna\n75,female,yes,bert\n100,male,no,anna\n"


@pytest.fixture
def files(tmp_path):
    def write(table=TABLE, schema=SCHEMA):
        (tmp_path / "people.toml").write_text(schema)
        path = tmp_path / "people.csv"
        path.write_bytes(table if isinstance(table, bytes) else table.encode())
        return path, tmp_path / "people.toml"

    return write


def test_a_table_becomes_inputs_targets_and_groups(files):
    data = load_table(*files())
    assert data.train.inputs.tolist() == [[-0.5, 0, 1], [0.5, 1, 0], [1, 0, 1]]
    assert data.train.target.tolist() == [0, 1, 0] and data.train.target.dtype == torch.int64
    assert data.train.groups["sex"].tolist() == [1, 0, 1]
    assert data.train.owners is None and data.test is None and data.rows_per_user is None


def test_with_a_user_column_rows_have_owners_and_a_cap(files):
    data = load_table(*files(schema=BY_USER))
    assert data.train.owners.tolist() == [0, 1, 0] and data.rows_per_user == 2
    users = by_user((data.train.inputs, data.train.target), data.train.owners, rows_per_user=data.rows_per_user)
    assert users.num_units == 2


def test_the_order_of_columns_and_further_columns_do_not_matter(files):
    swapped = "note,ill,sex,age\n" + "".join(f"x{i},no,male,{i}\n" for i in range(9))
    plain = "age,sex,ill\n" + "".join(f"{i},male,no\n" for i in range(9))
    assert torch.equal(load_table(*files(swapped)).train.inputs, load_table(*files(plain)).train.inputs)


def test_pieces_change_nothing(files, monkeypatch):
    whole = load_table(*files(TABLE + "5,male,no,carl\n7,?,yes,bert\n", BY_USER)).train
    monkeypatch.setattr(table_readers, "CSV_ROWS_AT_A_TIME", 2)
    pieces = load_table(*files(TABLE + "5,male,no,carl\n7,?,yes,bert\n", BY_USER)).train
    assert torch.equal(whole.inputs, pieces.inputs) and torch.equal(whole.owners, pieces.owners)
    assert torch.equal(whole.target, pieces.target) and torch.equal(whole.groups["sex"], pieces.groups["sex"])


def test_public_rows_for_testing_come_from_a_second_file(files, tmp_path):
    (tmp_path / "test.csv").write_text("age,sex,ill\n0,male,yes\n")
    named = load_table(*files(schema='test = "test.csv"\nunits = 2\n' + BY_USER))
    given = load_table(*files(schema=BY_USER), test_path=tmp_path / "test.csv")
    assert named.test.inputs.tolist() == given.test.inputs.tolist() == [[-1, 0, 1]]
    assert named.test.owners is None


def test_new_rows_need_neither_target_nor_user(files, tmp_path):
    _, schema = files(schema=BY_USER)
    (tmp_path / "new.csv").write_text("sex,age\nfemale,50\n")
    assert load_features(tmp_path / "new.csv", Schema.read(schema)).tolist() == [[0, 1, 0]]


# What cells hold.


@pytest.mark.parametrize("row", ["abc,male,no,dora", "nan,male,no,dora", "1e999,male,no,dora", "25,male,maybe,dora"])
def test_a_record_that_cannot_be_read_contributes_exactly_nothing(row, files):
    data = load_table(*files(TABLE + row + "\n"))
    records = as_records((data.train.inputs, data.train.target), input_range=data.facts.input_range)
    model = nn.Linear(3, 2)
    batch = records.gather(torch.tensor([3, 0]))
    gradients = so.LossGradient(F.cross_entropy).of(model, batch, torch.arange(2))
    assert gradients.squared_norms().sum(dim=1).bool().tolist() == [False, True]


def test_a_missing_value_leaves_the_rest_of_its_row(files):
    data = load_table(*files(TABLE + "?,male,no,x\n,martian,no,y\n"))
    assert data.train.inputs[3:].tolist() == [[0, 0, 1], [0, 0, 0]]
    assert data.train.groups["sex"].tolist() == [1, 0, 1, 1, -1]


def test_a_row_without_an_owner_counts_as_absent(files):
    data = load_table(*files(TABLE + "25,male,no,\n25,male,no,?\n25,male,no,carl\n", BY_USER))
    assert data.train.inputs.isnan().any(dim=1).tolist() == [False, False, False, True, True, False]
    assert data.train.owners.tolist() == [0, 1, 0, 2, 2, 3]


# What files are like.


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("age,sex,ill\n1,male,no\n2,male\n", "line 3: the row has 2 cells, the header 3"),
        ("age,sex,ill\n1,male,no\n2,male,no,SECRET\n", "line 3: the row has 4 cells, the header 3"),
        ('age,sex,ill\n"1\n2",male,no\n2,SECRET\n', "line 4: the row has 2 cells"),
        ("age,sex,ill\n1,male,no\n\n2,male,SECRET\n", "line 3: the row has 0 cells"),
        (b"age,sex,ill\n1,male,no\n\xef\xbb\xbf2,male,SECRET\n", "line 3: a byte-order mark"),
        (b"age,sex,ill\n1,male,no\n2,SECRET\0,no\n", "line 3: a NUL byte"),
        ("age,sex,ill\n".encode("utf-16-le"), "line 1: a NUL byte"),
        (b"age,sex,ill\n1,male,no\n2,SECRET\xff,no\n", "line 3: not UTF-8"),
        (b"age,sex,ill\n1," + b"x" * 10**7 + b",no\n", "line 2: the line is longer than 1048576 bytes"),
        (b"age,sex,ill\n1,male,no\n1," + b"x" * 10**7, "line 3: the line is longer than"),
        ('age,sex,ill\n1,"SECRET"x,no\n', "line 2: not CSV"),
        ('age,sex,ill\n1,"SECRET,no\n2,male,no\n', "line 3: not CSV"),
        ("age,sex,ill\r1,SECRET,no\r", "line 1: not CSV"),
        ("age,sex,ill,age\n1,male,no,2\n", "line 1: two columns have the same name"),
        ("1,1,SECRET\n", "line 1: two columns have the same name, or the names are missing"),
        ("age,ill\n1,no\n", "has no column 'sex'"),
        ("25,male,SECRET\n30,male,no\n", "has no column 'age'"),
        ("", "must begin with a line of column names"),
        ("\nage,sex,ill\n", "must begin with a line of column names"),
        ("age,sex,ill\n", "has no rows"),
        ("age,sex,ill\n\n\n", "has no rows"),
    ],
    ids=range(21),
)
def test_a_damaged_file_is_refused_with_its_line_and_without_its_content(table, said, files):
    with pytest.raises(DataError, match=said) as refused:
        load_table(*files(table))
    assert "SECRET" not in str(refused.value) and "people.csv" in str(refused.value)


def test_blank_lines_may_end_a_file_and_quotes_may_span_lines(files, monkeypatch):
    table = 'age,sex,ill,note\r\n 25, male, no,"two\nlines, ""quoted"""\r\n75,female,yes,\r\n\r\n\n\n'
    for rows_at_a_time in (1, 2, 100):
        monkeypatch.setattr(table_readers, "CSV_ROWS_AT_A_TIME", rows_at_a_time)
        assert load_table(*files(table)).train.inputs.tolist() == [[-0.5, 0, 1], [0.5, 1, 0]]


@pytest.mark.parametrize("rows_at_a_time", [1, 2, 3, 100])
def test_the_line_of_a_mistake_does_not_depend_on_the_pieces(rows_at_a_time, files, monkeypatch):
    monkeypatch.setattr(table_readers, "CSV_ROWS_AT_A_TIME", rows_at_a_time)
    with pytest.raises(DataError, match="line 6: the row has 0 cells"):
        load_table(*files('age,sex,ill\n1,male,no\n"\n2",male,no\n3,male,no\n\n\n\n4,male,no\n'))


def test_lines_are_numbered_across_blocks(files, monkeypatch):
    monkeypatch.setattr(table_readers, "LONGEST_LINE", 16)
    with pytest.raises(DataError, match="line 5: not UTF-8"):
        load_table(*files(b"age,sex,ill\n1,male,no\n1,male,no\n1,male,no\n1,\xe9,no\n1,male,no\n"))
    assert len(load_table(*files("age,sex,ill\n" + "1,m\u00e4le,no\n" * 9)).train.inputs) == 9


@given(
    st.lists(st.sampled_from([b"1", b",", b"\n", b"\r", b'"', b" ", b"\0", b"\xff", b"\xef\xbb\xbf", b"male", b"no"]))
)
def test_whatever_follows_the_header_is_read_or_refused_but_never_crashes(tokens):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "people.toml").write_text(SCHEMA)
        (Path(folder) / "people.csv").write_bytes(b"age,sex,ill\n" + b"".join(tokens))
        try:
            split = load_table(Path(folder) / "people.csv", Path(folder) / "people.toml").train
        except DataError:
            return
    assert len(split.inputs) == len(split.target) > 0


def test_an_empty_data_set_is_refused(files):
    with pytest.raises(DataError, match="has no rows"):
        load_table(*files("age,sex,ill\n"))


def test_a_data_set_of_one_has_nobody_to_hide_among(files):
    data = load_table(*files("age,sex,ill\n1,male,no\n"))
    with pytest.raises(DataError, match="the dataset has a single example"):
        so.Budget((data.train.inputs, data.train.target))


@pytest.mark.parametrize(("schema", "said"), [(SCHEMA, "3 rows"), (BY_USER, "2 users")])
def test_another_number_of_units_than_stated_is_refused(schema, said, files):
    with pytest.raises(DataError, match=f"has {said}, the schema says 5"):
        load_table(*files(schema="units = 5\n" + schema))


def test_a_schema_is_judged_before_the_table_is_opened(files, tmp_path):
    _, schema = files(schema=SCHEMA.replace("confirmed_public = true", ""))
    with pytest.raises(UsageError, match="confirmed_public"):
        load_table(tmp_path / "absent.csv", schema)


@pytest.mark.parametrize("path", ["/dev/zero", "."])
def test_what_is_no_table_is_refused(path, files, tmp_path):
    (tmp_path / "link.csv").symlink_to(path)
    with pytest.raises(DataError, match=r"not a regular file|cannot be read"):
        load_table(tmp_path / "link.csv", files()[1])
    with pytest.raises(UsageError, match=r"must be a file of \.csv, \.tsv"):
        load_table(tmp_path / "people.xlsx", files()[1])


# Parquet.


def test_parquet_means_the_same_as_csv(files, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, schema = files("age,sex,ill,patient\n25.5,male,no,7\n,female,yes,8\nnan,?,no,7\n", BY_USER)
    columns = {
        "age": arrow.array([25.5, None, float("nan")]),
        "sex": arrow.array(["male", "female", None]).dictionary_encode(),
        "ill": ["no", "yes", "no"],
        "patient": [7, 8, 7],
        "unread": [[1], [2], [3]],
    }
    parquet.write_table(arrow.table(columns), tmp_path / "people.parquet")
    ours, csv = load_table(tmp_path / "people.parquet", schema).train, load_table(path, schema).train
    torch.testing.assert_close(ours.inputs, csv.inputs, equal_nan=True, rtol=0, atol=0)
    assert torch.equal(ours.target, csv.target) and torch.equal(ours.owners, csv.owners)


def test_damaged_parquet_is_refused_without_its_content(files, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, (_, schema) = tmp_path / "people.parquet", files()
    columns = {"age": [1] * 100, "sex": ["SECRET"] * 100, "ill": [[1]] * 100}
    parquet.write_table(arrow.table(columns), path)
    with pytest.raises(DataError, match="column 'ill' must hold numbers or strings"):
        load_table(path, schema)
    whole = path.read_bytes()
    parquet.write_table(arrow.table({name: column[:0] for name, column in columns.items()}), path)
    with pytest.raises(DataError, match="has no rows"):
        load_table(path, schema)
    for damaged in (b"", b"PAR1", whole[:-9], whole[: len(whole) // 2], b"x" * 1000):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="is damaged, or not a Parquet file") as refused:
            load_table(path, schema)
        assert "SECRET" not in str(refused.value)


def test_without_pyarrow_the_extra_is_named(files, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "people.parquet").write_bytes(b"")
    with pytest.raises(UsageError, match=r"install sordino\[parquet\]"):
        load_table(tmp_path / "people.parquet", files()[1])


# From a table to a model.


def test_the_page_on_tables_runs_and_keeps_its_promise(monkeypatch):
    monkeypatch.setattr(Key, "fresh", lambda: Key.from_seed(0))  # so that it learns as well in every run
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(compile(block, "docs/tables.md", "exec"), names)
    assert names["predicted"].tolist() == [0, 1]
    assert names["fitted"].guarantee.epsilon <= 3.0 and names["fitted"].guarantee.unit == "user"
    assert names["budget"].guarantee(delta=1e-4).epsilon <= 3.0 and abs(names["moments"].mean[0]) < 0.5


def test_the_schema_on_the_page_loads(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()
    (tmp_path / "page.toml").write_text(re.search(r"```toml\n(.*?)```", page, flags=re.DOTALL)[1])
    schema = Schema.read(tmp_path / "page.toml")
    assert schema.units == 5000 and schema.user.most_rows == 10 and schema.test == tmp_path / "public.csv"
