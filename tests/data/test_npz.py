"""Arrays from .npz files: nothing is unpickled, no fact is read off the data, and lengths are what they claim."""

import io
import struct
import zipfile

import numpy as np
import pytest
import torch

from sordino.data import load
from sordino.data.npz import ArrayFacts, parse_npy
from sordino.errors import DataError, SordinoError, StateError, UsageError
from sordino.kernel.records import as_records

FACTS = """
confirmed_public = true
[inputs]
shape = [3]
range = [0, 10]
[target]
classes = ["no", "yes"]
"""


@pytest.fixture
def saved(tmp_path):
    """Saves arrays beside their facts and gives the path of the arrays."""

    def save(facts=FACTS, **arrays):
        np.savez(tmp_path / "set.npz", **arrays)
        if facts is not None:
            (tmp_path / "set.toml").write_text(facts)
        return tmp_path / "set.npz"

    return save


def rows(number, dtype=np.float64):
    return np.arange(3 * number).reshape(number, 3).astype(dtype)


def test_arrays_become_a_data_set_with_the_facts_beside_them(saved):
    data = load(saved(inputs=rows(2), target=np.array([1, 0]), test_inputs=rows(4), test_target=np.zeros(4, np.uint8)))
    assert (data.facts.name, data.facts.num_classes, data.facts.class_names) == ("set", 2, ("no", "yes"))
    assert data.facts.input_range == (0.0, 10.0)
    assert data.train.inputs.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (data.train.inputs.dtype, data.train.target.dtype) == (torch.float32, torch.int64)
    assert data.test.inputs.shape == (4, 3)


def test_pictures_stay_bytes_and_arrays_by_column_keep_their_entries(saved):
    columns_first = np.asfortranarray(rows(2, np.uint8))
    data = load(saved(inputs=columns_first, target=np.array([1, 0], dtype=">i2")))
    assert data.train.inputs.dtype == torch.uint8
    assert data.train.inputs.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert data.train.target.tolist() == [1, 0]


def test_owners_come_with_a_declared_number_of_rows_each(saved):
    arrays = {"inputs": rows(3), "target": np.zeros(3, int), "owners": np.array([5, 5, 8])}
    data = load(saved("rows_per_user = 2\nunits = 2\n" + FACTS, **arrays))
    assert (data.rows_per_user, data.train.owners.tolist()) == (2, [5, 5, 8])
    with pytest.raises(DataError, match="need each other"):
        load(saved(**arrays))
    del arrays["owners"]
    with pytest.raises(DataError, match="need each other"):
        load(saved("rows_per_user = 2\n" + FACTS, **arrays))


def test_a_number_as_target_is_clamped_and_scaled_by_its_bounds(saved):
    facts = FACTS.replace('classes = ["no", "yes"]', "bounds = [0, 100]")
    data = load(saved(facts, inputs=rows(5), target=np.array([0, 25, 100, 1e9, np.nan])))
    assert data.facts.num_classes is None
    assert data.facts.target_range == (0.0, 100.0)
    assert data.train.target[:4].tolist() == [-1, -0.5, 1, 1]
    assert data.train.target[4].isnan()  # such a row counts as absent, without a message


def test_facts_are_asked_for_and_never_read_off_the_data(saved):
    path = saved(facts=None, inputs=rows(2), target=np.array([1, 0]))
    with pytest.raises(UsageError, match="needs a file of public facts"):
        load(path)
    with pytest.raises(UsageError, match="either classes or bounds: they are not computed from the data"):
        load(saved(FACTS.replace('classes = ["no", "yes"]', ""), inputs=rows(2), target=np.array([1, 0])))


def test_a_class_that_was_not_declared_is_no_error_because_a_message_would_be_one_about_a_record(saved):
    assert load(saved(inputs=rows(2), target=np.array([1, 700]))).train.target.tolist() == [1, 700]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("true", "false", "confirmed_public must be true"),
        ("confirmed_public = true", "", "confirmed_public must be true"),
        ("confirmed_public = true", 'confirmed_public = "yes"', "true or false"),
        ("range", "ragne", "did you mean 'range'"),
        ("[0, 10]", "[10, 0]", "low < high"),
        ("[0, 10]", "[0, inf]", "inf"),
        ("[3]", "[0]", "shape must be a whole number from 1"),
        ("[3]", "[]", "axes"),
        ("[3]", "[1.5]", "shape"),
        ("[3]", "3", "a list of numbers"),
        ("[0, 10]", "[0, 10]\nmean = [0.5, 0.5, 0.5]", "std is missing"),
        ("[0, 10]", "[0, 10]\nmean = [0.5]\nstd = [1]", "3 numbers, one per channel, got 1 and 1"),
        ("[0, 10]", "[0, 10]\nmean = [0, 0, 0]\nstd = [1, 0, 1]", "std must be a finite number above 0"),
        ("range = [0, 10]", "mean = [0, 0, 0]\nstd = [1, 1, 1]", "need range"),
        ('["no", "yes"]', '["no", "no"]', "two distinct names"),
        ('["no", "yes"]', "1", "from 2"),
        ('["no", "yes"]', "2\nbounds = [0, 1]", "either classes or bounds"),
    ],
)
def test_wrong_facts_are_refused_before_the_arrays_are_read(saved, old, new, message):
    path = saved(FACTS.replace(old, new), inputs=rows(2), target=np.array([1, 0]))
    path.write_bytes(b"not even a zip file")
    with pytest.raises(UsageError, match=message):
        load(path)


def test_normalisation_by_public_constants_reaches_the_facts():
    text = FACTS.replace("[0, 10]", "[0, 10]\nmean = [0.1, 0.2, 0.3]\nstd = [1, 2, 3]")
    facts = ArrayFacts.parse(text, shown="'a'", name="a").facts
    assert (facts.mean, facts.std) == ((0.1, 0.2, 0.3), (1, 2, 3))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": rows(2)}, "must contain arrays named inputs and target"),
        ({"inputs": rows(2), "target": np.zeros(2, int), "x": rows(1)}, "must contain arrays named"),
        ({"inputs": rows(2), "target": np.zeros(2, int), "test_inputs": rows(1)}, "both test_inputs and test_target"),
        ({"inputs": rows(2), "target": np.zeros(3, int)}, "target must have 2 entries"),
        ({"inputs": rows(2), "target": np.zeros((2, 1), int)}, "target must have 2 entries"),
        ({"inputs": rows(2)[:, :2], "target": np.zeros(2, int)}, r"rows of shape \(3,\), as declared"),
        ({"inputs": rows(2), "target": np.zeros(2)}, "integer class labels"),
        ({"inputs": rows(2), "target": np.zeros(2, bool)}, "integer class labels"),
        ({"inputs": rows(2).astype(str), "target": np.zeros(2, int)}, "must hold numbers"),
        ({"inputs": rows(2).astype(complex), "target": np.zeros(2, int)}, "must hold numbers"),
        ({"inputs": rows(0), "target": np.zeros(0, int)}, "is empty"),
        ({"inputs": np.float64(3), "target": np.zeros(1, int)}, "rows of shape"),
        ({"inputs": rows(1), "target": np.int64(3)}, "one per row"),
    ],
)
def test_another_structure_is_refused(saved, arrays, message):
    with pytest.raises(DataError, match=message):
        load(saved(**arrays))


def test_another_number_of_units_than_declared_is_refused(saved):
    with pytest.raises(DataError, match="has 2 units, 3 were declared"):
        load(saved("units = 3\n" + FACTS, inputs=rows(2), target=np.zeros(2, int)))


def test_a_single_row_has_nobody_to_hide_among(saved):
    train = load(saved(inputs=rows(1), target=np.zeros(1, int))).train
    with pytest.raises(DataError, match="has a single example"):
        as_records((train.inputs, train.target))


class Payload:
    """An object that writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_objects_are_refused_and_never_unpickled(saved, tmp_path):
    path = saved(inputs=np.array([Payload(tmp_path / "executed")]), target=np.zeros(1, int))
    with pytest.raises(StateError, match="holds pickled objects"):
        load(path)
    assert not (tmp_path / "executed").exists()
    fields = np.zeros(1, dtype=[("a", object)])
    with pytest.raises(StateError, match="holds pickled objects"):
        load(saved(inputs=fields, target=np.zeros(1, int)))


def npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        npy(rows(2))[:-1],
        npy(rows(2)) + b"x",
        npy(rows(2))[:20],
        b"",
        npy(rows(2)).replace(b"(2, 3)", b"(9**9)"),
        npy(rows(2)).replace(b"(2, 3)", b"(-2,-3)"),
        npy(rows(2)).replace(b"(2, 3), }", b"(99999999999999999999,), }"),
        npy(rows(2)).replace(b"'<f8'", b"'boo'"),
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{",
        b"\x93NUMPY\x09\x00" + bytes(100),
    ],
)
def test_an_array_that_is_not_as_long_as_its_header_says_is_refused(content):
    with pytest.raises(DataError):
        parse_npy(content, "'a.npy'")


def test_a_bomb_of_zeros_is_refused(saved, tmp_path):
    path = saved(inputs=rows(2), target=np.zeros(2, int))
    np.savez_compressed(path, inputs=np.zeros((2_000_000, 3)), target=np.zeros(2_000_000, int))
    with pytest.raises(DataError, match="unpacks to more than"):
        load(path)


def test_what_is_not_a_zip_file_is_refused(saved):
    path = saved(inputs=rows(2), target=np.zeros(2, int))
    for content in (b"", b"\x80\x04K\x01.", npy(rows(2)), path.read_bytes()[:-30]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="not a valid zip file"):
            load(path)


def test_the_name_of_a_member_cannot_lead_anywhere(saved):
    path = saved(inputs=rows(2), target=np.zeros(2, int))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../evil.npy", npy(rows(1)))
    with pytest.raises(SordinoError, match="a path outside its folder"):
        load(path)
