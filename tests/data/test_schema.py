"""A schema says what is public about a table, strictly; a draft will not load until a person has confirmed it."""

import tomllib

import pytest
import torch

from sordino.data.columns import Category, NumberColumn
from sordino.data.drafts import draft
from sordino.data.schema import Schema
from sordino.errors import DataError, UsageError

GOOD = """
confirmed_public = true
user = "patient"
rows_per_user = 3
groups = ["sex"]
missing = "?"
[target]
column = "ill"
classes = ["no", "yes"]
[columns.age]
kind = "number"
bounds = [0, 100]
[columns.sex]
kind = "category"
categories = ["female", "male"]
"""


def schema_of(text, tmp_path):
    path = tmp_path / "people.toml"
    path.write_text(text)
    return Schema.read(path)


def test_a_schema_becomes_public_facts(tmp_path):
    schema = schema_of(GOOD, tmp_path)
    facts = schema.facts()
    assert (facts.name, facts.input_shape, facts.num_classes) == ("people", (3,), 2)
    assert (facts.input_range, facts.class_names, facts.target_range) == ((-1.0, 1.0), ("no", "yes"), None)
    assert schema.needed == ("age", "sex", "ill", "patient")


def test_a_target_with_bounds_is_a_number_in_units_of_them(tmp_path):
    schema = schema_of(GOOD.replace('classes = ["no", "yes"]', "bounds = [0, 200]"), tmp_path)
    assert schema.facts().num_classes is None and schema.facts().target_range == (0, 200)
    labels = schema.labels({"ill": ["0", "150", "900", "", "nan"]})
    assert labels[:3].tolist() == [-1.0, 0.5, 1.0] and labels[3:].isnan().all()


def test_numbers_are_clamped_and_scaled_by_public_bounds_only():
    cells = ["0", "25", "1e9", "-inf", "", "?", "abc", "nan", None, " 50 "]
    encoded = NumberColumn(0, 100).encode(cells, frozenset({"", None, "?"}))[:, 0]
    expected = [-1, -0.5, 1, torch.nan, 0, 0, torch.nan, torch.nan, 0, 0]
    torch.testing.assert_close(torch.from_numpy(encoded), torch.tensor(expected), equal_nan=True)


def test_a_marker_of_missing_cells_that_reads_as_a_number_is_still_missing():
    assert NumberColumn(0, 100).encode(["-999", "100"], frozenset({"-999"}))[:, 0].tolist() == [0.0, 1.0]


def test_what_a_cell_becomes_does_not_depend_on_the_cells_around_it():
    cells, missing = ["12", "", "abc", "99", "inf"], frozenset({""})
    together = torch.from_numpy(NumberColumn(0, 100).encode(cells, missing))
    alone = torch.cat([torch.from_numpy(NumberColumn(0, 100).encode([cell], missing)) for cell in cells])
    torch.testing.assert_close(together, alone, equal_nan=True, rtol=0, atol=0)


def test_a_category_outside_the_list_is_a_row_of_zeros():
    encoded = Category(("a", "b")).encode(["b", "c", "", None, "a"], frozenset({"", None}))
    assert encoded.tolist() == [[0, 1], [0, 0], [0, 0], [0, 0], [1, 0]]


@pytest.mark.parametrize("confirmed", ["", "confirmed_public = false"])
def test_facts_that_nobody_confirmed_do_not_load(confirmed, tmp_path):
    with pytest.raises(UsageError, match="confirmed_public must be true: a person has to confirm"):
        schema_of(GOOD.replace("confirmed_public = true", confirmed), tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("groups =", "group =", "unknown key 'group': did you mean 'groups'"),
        ("bounds = [0, 100]", "bound = [0, 100]", "'age'.*unknown key 'bound': did you mean 'bounds'"),
        ("confirmed_public = true", "confirmed_public = 1", "confirmed_public must be true or false, got 1"),
        ("[0, 100]", "[0, nan]", "the number nan"),
        ("[0, 100]", "[-inf, 0]", "the number -inf"),
        ("[0, 100]", "[100, 0]", "'age': bounds must be .* low < high, got .100, 0"),
        ("[0, 100]", "[5, 5]", "low < high"),
        ("[0, 100]", "[0, 1e40]", "upper_bound must be in"),
        ("[0, 100]", "[0]", "bounds must be .low, high., got 1 numbers"),
        ("[0, 100]", '["0", "100"]', "bounds must be a list of numbers"),
        ("[0, 100]", "[false, true]", "bounds must be a list of numbers"),
        ('"female", "male"', '"male", "male"', "'sex': categories must differ, got 'male' twice"),
        ('"female", "male"', "", "'sex': categories must be a whole number from 1"),
        ('"female", "male"', "0, 1", "categories must be a list of strings"),
        ('"female", "male"', '"female", "?"', "'sex': category '[?]' is declared as the marker"),
        ('["no", "yes"]', '["no"]', "classes must be at least 2, got 1"),
        ('["no", "yes"]', '["no", "yes"]\nbounds = [0, 1]', "exactly one of classes and bounds"),
        ('kind = "number"', 'kind = "numeric"', "kind must be 'number', 'date' or 'category', got 'numeric'"),
        ('["sex"]', '["age"]', "groups must be columns of kind 'category', got 'age'"),
        ('column = "ill"', 'column = "age"', "the target column 'age' must not be among"),
        ('user = "patient"', 'user = "age"', "the user column 'age' must not be among"),
        ('user = "patient"', 'user = "ill"', "user and target must be different columns"),
        ("rows_per_user = 3", "", "rows_per_user is missing"),
        ("rows_per_user = 3", "rows_per_user = 0", "rows_per_user must be from 1"),
        ('user = "patient"', "", "user is missing"),
        ('missing = "?"', 'missing = "?"\nmissing = "x"', "not TOML"),
        ('missing = "?"', "missing" + ".a" * 5000 + "=1", "nested deeper"),
        ("[columns.age]", "[colums.age]", "unknown key 'colums'"),
    ],
    ids=range(28),
)
def test_a_mistake_in_a_schema_is_one_line_that_names_it(before, after, said, tmp_path):
    assert before in GOOD
    with pytest.raises(UsageError, match=said) as refused:
        schema_of(GOOD.replace(before, after, 1), tmp_path)
    assert "\n" not in str(refused.value) and "people.toml" in str(refused.value)


def test_a_schema_longer_than_any_person_writes_is_refused(tmp_path):
    with pytest.raises(DataError, match="longer than"):
        schema_of("#" * 10**6, tmp_path)


def test_a_draft_will_not_load_until_it_is_confirmed(tmp_path):
    table = tmp_path / "people.csv"
    table.write_text(
        "age,colour,note,ill\n" + "".join(f"{i},{'red' if i % 2 else 'blue'},n{i}x,{i % 2}\n" for i in range(60))
    )
    text = draft(table)
    assert text.startswith("#") and "READ FROM PRIVATE ROWS" in text and "Left out" in text and "'note'" in text
    with pytest.raises(UsageError, match="confirmed_public must be true"):
        schema_of(text, tmp_path)
    schema = schema_of(text.replace("confirmed_public = false", "confirmed_public = true"), tmp_path)
    assert schema.columns == {"age": NumberColumn(0, 60), "colour": Category(("blue", "red"))}
    assert schema.target.name == "ill" and schema.target.kind == Category(("0", "1"))


def test_a_draft_of_hostile_names_is_still_toml_with_the_same_names(tmp_path):
    table = tmp_path / "people.csv"
    many = "".join(f'{i},text{i},"x ""quoted"" = [",{i}.5\n' for i in range(60))
    table.write_text('"a\nconfirmed_public = true","b\nconfirmed_public = true","c.d ""]",y\n' + many)
    document = tomllib.loads(draft(table))
    assert document["confirmed_public"] is False
    assert list(document["columns"]) == ["a\nconfirmed_public = true", 'c.d "]']
    assert document["target"] == {"column": "y", "bounds": [0.0, 60.0]}


def test_a_column_of_one_number_gets_bounds_that_are_an_interval(tmp_path):
    table = tmp_path / "people.csv"
    table.write_text("a,y\n" + "3,u\n3,v\n?,u\n")
    assert tomllib.loads(draft(table))["columns"]["a"] == {"kind": "number", "bounds": [3.0, 4.0]}
