"""Data is gathered by unit, finite and in the public range; its structure is checked once."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sordino.errors import DataError, UsageError
from sordino.kernel.records import Batch, Records, as_records, by_user


class Pairs(Dataset[tuple[Any, ...]]):
    """A map-style dataset that counts how often it is read."""

    def __init__(self, *columns: Any) -> None:
        self.columns, self.read = columns, 0

    def __len__(self) -> int:
        return len(self.columns[0])

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        self.read += 1
        return tuple(column[index] for column in self.columns)


X = torch.arange(40, dtype=torch.float32).reshape(10, 4)
Y = torch.arange(10)


def same(one: Batch, other: Batch) -> bool:
    first, second = ((*batch.inputs, batch.target, batch.valid, batch.units) for batch in (one, other))
    pairs = zip(first, second, strict=True)
    return one.num_units == other.num_units and all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X, Y],
        (X.numpy(), Y.numpy()),
        (X.double().numpy(), Y.int().numpy()),
        (X.numpy().astype(">f4"), Y.numpy()),
        (X.half(), Y),
        (X.to(torch.uint8), Y.to(torch.uint8)),
        (X.clone().requires_grad_(), Y),
        TensorDataset(X, Y),
        Pairs(X, Y),
        Pairs(X.numpy(), Y.tolist()),
        Pairs(X.numpy(), Y.numpy()),
        DataLoader(TensorDataset(X, Y)),
        DataLoader(Pairs(X, Y), batch_size=None),
        list(zip(X, Y, strict=True)),
        as_records((X, Y)),
    ],
)
def test_every_form_of_data_gives_the_same_batch(data: object) -> None:
    records = as_records(data)
    for indices in (torch.tensor([3, 0, 9]), torch.tensor([], dtype=torch.int64)):
        batch = records.gather(indices)
        expected = Batch(
            (X[indices],), Y[indices], torch.ones(len(indices)) > 0, torch.arange(len(indices)), len(indices)
        )
        assert same(batch, expected)
    assert (records.num_units, records.unit) == (10, "example")


def test_a_read_only_array_is_taken_without_a_warning() -> None:
    x = X.numpy().copy()
    x.flags.writeable = False
    assert torch.equal(as_records((x, Y)).gather(torch.tensor([1])).inputs[0], X[[1]])


def test_several_inputs_arrive_in_order_and_whole_numbers_stay() -> None:
    tokens, mask = torch.randint(100, (10, 3), dtype=torch.int32), torch.ones(10, 3) > 0
    batch = as_records((X, tokens, mask, Y)).gather(torch.tensor([5, 6]))
    assert [x.dtype for x in batch.inputs] == [torch.float32, torch.int32, torch.bool]
    assert torch.equal(batch.inputs[1], tokens[[5, 6]])


def test_double_precision_is_kept_on_request() -> None:
    batch = as_records((X.double() / 3, Y), dtype=torch.float64).gather(torch.tensor([5]))
    assert torch.equal(batch.inputs[0], X[[5]].double() / 3)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e39])
@pytest.mark.parametrize("in_range", [None, (0.0, 50.0)])
def test_a_row_that_is_not_finite_is_invalid_and_zero(value: float, in_range: tuple[float, float] | None) -> None:
    x = X.double().clone()
    x[3, 1] = value
    batch = as_records((x, Y), input_range=in_range).gather(torch.tensor([2, 3, 4]))
    assert batch.valid.tolist() == [True, False, True]
    assert torch.equal(batch.inputs[0], torch.stack([X[2], torch.zeros(4), X[4]]))
    assert batch.target.tolist() == [2, 0, 4]


def test_a_target_that_is_not_finite_makes_its_row_invalid() -> None:
    target = torch.tensor([1.0, float("nan"), 3.0])
    batch = as_records((X[:3], target)).gather(torch.arange(3))
    assert batch.valid.tolist() == [True, False, True]
    assert not batch.inputs[0][1].any()


def test_rows_are_judged_by_their_entries_and_not_by_their_sum() -> None:
    huge, infinite = 3e38, float("inf")
    x = torch.tensor([[huge, huge], [infinite, -infinite], [1.0, 2.0], [-huge, -huge], [infinite, -huge]])
    mask = torch.ones(5, 3) > 0
    batch = as_records((x, mask, Y[:5])).gather(torch.arange(5))
    assert batch.valid.tolist() == [True, False, True, True, False]
    assert torch.equal(batch.inputs[0], torch.where(batch.valid[:, None], x, 0.0))
    assert torch.equal(batch.inputs[1], mask & batch.valid[:, None])


def test_inputs_are_clamped_to_the_public_range_and_targets_are_not() -> None:
    batch = as_records((X, Y.float()), input_range=(5.0, 30.0)).gather(torch.arange(10))
    assert (batch.inputs[0].min(), batch.inputs[0].max(), batch.target.max()) == (5.0, 30.0, 9.0)
    assert batch.valid.all()


def test_gathering_leaves_the_data_as_it_was() -> None:
    x = X.clone()
    x[0, 0] = float("nan")
    before = x.clone()
    as_records((x, Y), input_range=(0.0, 1.0)).gather(torch.arange(10))
    assert torch.equal(x.nan_to_num(-1), before.nan_to_num(-1))


def test_an_empty_batch_of_a_lazy_data_set_reads_nothing() -> None:
    data = Pairs(X, Y)
    records = as_records(data)
    read = data.read
    batch = records.gather(torch.tensor([], dtype=torch.int64))
    assert (batch.inputs[0].shape, batch.target.dtype, batch.num_units, data.read) == ((0, 4), torch.int64, 0, read)


@pytest.mark.parametrize(
    "indices", [torch.tensor([-1]), torch.tensor([10]), torch.tensor([1.0]), torch.ones(10) > 0, torch.tensor(1)]
)
def test_indices_that_name_no_unit_are_refused(indices: Tensor) -> None:
    with pytest.raises(UsageError, match="indices must be"):
        as_records((X, Y)).gather(indices)


def test_no_value_of_the_data_is_shown() -> None:
    users = by_user((torch.full((10, 4), 12345.0), torch.full((10,), 54321)), OWNERS + 777_000, rows_per_user=3)
    shown = repr(users) + repr(users.gather(torch.arange(3)))
    assert not any(value in shown for value in ("12345", "54321", "777"))


def test_a_unit_joins_a_batch_at_most_once() -> None:
    with pytest.raises(UsageError, match="at most once"):
        as_records((X, Y)).gather(torch.tensor([1, 2, 1]))


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ((X[:0], Y[:0]), DataError, "the dataset is empty"),
        (Pairs(X[:0], Y[:0]), DataError, "the dataset is empty"),
        ((X[:1], Y[:1]), DataError, "has a single example"),
        ((X, Y[:9]), DataError, "inputs 10, targets 9"),
        ((X, X, Y[:9]), DataError, r"inputs\[0\] 10, inputs\[1\] 10, targets 9"),
        ((X,), DataError, r"inputs and a target, got 1 part"),
        ((np.array([{}] * 10), Y), DataError, "inputs must hold numbers, got an array of dtype object"),
        ((X, np.array(["a"] * 10)), DataError, "targets must hold numbers, got an array of dtype <U1"),
        ((X, Y > 3), DataError, "targets are boolean: cast"),
        (Pairs(X, Y > 3), DataError, "targets are boolean: cast"),
        ((X.to(torch.complex64), Y), DataError, r"inputs must be a dense real tensor, got torch\.complex64"),
        ((X.to_sparse(), Y), DataError, "inputs must be a dense real tensor"),
        ((X, Y.tolist()), DataError, "targets must be a tensor or an array, got list"),
        ((torch.tensor(1.0), Y), DataError, "one entry per row"),
        (Pairs(X), DataError, "inputs and a target, got 1 part"),
        ("mnist", UsageError, "or a map-style Dataset, got str"),
        (X, UsageError, r"got Tensor without targets: pass \(inputs, targets\)"),
        (pandas.DataFrame({"x": [0.5] * 3}), UsageError, r"got DataFrame: pass .*\.to_numpy\(\)"),
        ((pandas.Series([0.5] * 3), Y[:3]), DataError, r"got Series: pass its \.to_numpy\(\)"),
        (([X, X], Y), DataError, "got list: stack it by"),
        ((X, None), DataError, "got NoneType: each row needs a target"),
        ({"x": {"a": X}, "y": Y}, DataError, "got dict: give each of its values a key of its own"),
        (Pairs([Image.new("L", (2, 2))] * 10, Y), DataError, r"got Image: convert images by numpy\.asarray"),
    ],
)
def test_a_broken_structure_is_refused_by_name(data: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        as_records(data)


def test_data_that_cannot_be_indexed_is_refused() -> None:
    class Stream(IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            return iter(X)

    class Endless(Dataset[Tensor]):
        pass

    class Single(Dataset[Tensor]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Tensor:
            return X[index]

    with pytest.raises(UsageError, match="got an IterableDataset"):
        as_records(Stream())
    with pytest.raises(DataError, match="Endless has no __len__"):
        as_records(Endless())
    with pytest.raises(DataError, match="must be a tuple"):
        as_records(Single())


def test_a_row_of_another_shape_than_most_counts_as_absent() -> None:
    ragged = Pairs([torch.zeros(3), torch.zeros(3), torch.zeros(4)], [0, 1, 2])
    batch = as_records(ragged).gather(torch.tensor([1, 2]))
    assert (batch.inputs[0].shape, batch.valid.tolist()) == ((2, 3), [True, False])


def test_a_single_record_is_allowed_when_asked_for() -> None:
    assert as_records((X[:1], Y[:1]), allow_single=True).num_units == 1


@pytest.mark.parametrize("input_range", [(1.0, 0.0), (0.0, float("nan")), (0.0, float("inf")), (0.0, 0.0)])
def test_a_range_that_is_none_is_refused(input_range: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match="input_range"):
        as_records((X, Y), input_range=input_range)


def test_half_precision_is_refused() -> None:
    with pytest.raises(UsageError, match="dtype must be"):
        as_records((X, Y), dtype=torch.float16)


# --- users ---

OWNERS = torch.tensor(
    [7, 3, 7, 7, 5, 3, 7, 7, 5, 3]
)  # user 0 is 3: rows 1 5 9; 1 is 5: rows 4 8; 2 is 7: rows 0 2 3 6 7


@pytest.mark.parametrize("owners", [OWNERS, OWNERS.numpy(), OWNERS.int()])
@pytest.mark.parametrize("data", [(X, Y), Pairs(X, Y)])
def test_a_user_brings_the_first_rows_up_to_the_bound(owners: Any, data: object) -> None:
    users = by_user(data, owners, rows_per_user=3)
    batch = users.gather(torch.tensor([2, 0]))
    assert batch.target.tolist() == [0, 2, 3, 1, 5, 9]
    assert batch.units.tolist() == [0, 0, 0, 1, 1, 1]
    assert (batch.num_units, users.num_units, users.unit) == (2, 3, "user")
    assert torch.equal(batch.inputs[0], X[batch.target])


def test_all_users_together_bring_every_row_once_under_a_large_bound() -> None:
    batch = by_user((X, Y), OWNERS, rows_per_user=100).gather(torch.arange(3))
    assert sorted(batch.target.tolist()) == list(range(10))


def test_a_user_whose_row_is_invalid_stays_in_the_batch() -> None:
    x = X.clone()
    x[4] = x[8] = float("nan")
    batch = by_user((x, Y), OWNERS, rows_per_user=3).gather(torch.tensor([1, 0]))
    assert batch.valid.tolist() == [False, False, True, True, True]
    assert batch.num_units == 2


def test_no_users_give_an_empty_batch() -> None:
    batch = by_user((X, Y), OWNERS, rows_per_user=3).gather(torch.tensor([], dtype=torch.int64))
    assert (batch.inputs[0].shape, batch.num_units, len(batch.units)) == ((0, 4), 0, 0)


def test_the_bound_on_rows_per_user_has_no_default() -> None:
    assert inspect.signature(by_user).parameters["rows_per_user"].default is inspect.Parameter.empty
    with pytest.raises(UsageError, match="rows_per_user"):
        by_user((X, Y), OWNERS, rows_per_user=0)


@pytest.mark.parametrize("owners", [OWNERS[:9], OWNERS.float(), OWNERS[:, None], OWNERS > 4])
def test_owners_must_be_one_whole_number_per_row(owners: Tensor) -> None:
    with pytest.raises(DataError, match="owners must be one integer for each of the 10 rows"):
        by_user((X, Y), owners, rows_per_user=3)


def test_a_single_user_is_refused_unless_asked_for() -> None:
    with pytest.raises(DataError, match="has a single user"):
        by_user((X, Y), torch.zeros(10, dtype=torch.int64), rows_per_user=3)
    assert by_user((X, Y), torch.zeros(10, dtype=torch.int64), rows_per_user=3, allow_single=True).num_units == 1


# --- templates ---


@pytest.mark.parametrize("input_range", [None, (10.0, 20.0)])
def test_a_template_has_the_structure_of_a_batch_and_nothing_of_the_data(
    input_range: tuple[float, float] | None,
) -> None:
    def template(scale: float) -> tuple[Records, Batch]:
        records = as_records((scale * X, Y, torch.rand(10, 2)), input_range=input_range)
        return records, records.template(6)

    generator = torch.get_rng_state()
    (records, one), (_, other) = template(1.0), template(1000.0)
    torch.set_rng_state(generator)
    real = records.gather(torch.arange(6))
    assert same(one, other)
    assert [(x.shape, x.dtype) for x in one.inputs] == [(x.shape, x.dtype) for x in real.inputs]
    assert (one.target.shape, one.target.dtype) == (real.target.shape, real.target.dtype)
    assert set(one.inputs[1].tolist()) <= {0, 1}
    assert bool(((one.target >= 0) & (one.target < 1)).all())
    if input_range is not None:
        assert bool(((one.inputs[0] >= 10) & (one.inputs[0] <= 20)).all())


def test_a_template_leaves_the_global_generator_alone() -> None:
    records, generator = as_records((X, Y)), torch.get_rng_state()
    records.template(3)
    assert torch.equal(torch.get_rng_state(), generator)


class Named(Dataset[dict[str, Any]]):
    """A map-style dataset of dictionaries, with lists of numbers as tokenizers make them."""

    def __init__(self, **columns: Any) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self.columns.items()}


IDS = torch.arange(30).reshape(10, 3)


@pytest.mark.parametrize(
    "data",
    [
        {"ids": IDS, "x": X, "labels": Y},
        {"ids": IDS.numpy(), "x": X.numpy(), "label": Y.numpy()},
        {"label": Y, "ids": IDS, "x": X},
        Named(ids=IDS.tolist(), x=X, labels=Y.tolist()),
        Named(label=Y, ids=IDS.numpy(), x=X.tolist()),
    ],
)
def test_every_form_of_dictionary_gives_the_same_batch(data: Any) -> None:
    records = as_records(data)
    batch = records.gather(torch.tensor([3, 0]))
    expected = Batch((IDS[[3, 0]], X[[3, 0]]), Y[[3, 0]], torch.ones(2) > 0, torch.arange(2), 2, ("ids", "x"))
    assert same(batch, expected)
    assert (batch.names, records.template(3).names) == (("ids", "x"), ("ids", "x"))
    assert batch.take(slice(0, 1)).to(torch.device("cpu")).synthetic().names == ("ids", "x")


def test_keys_can_be_chosen_and_are_ordered_as_chosen() -> None:
    rows = {"x": X, "text": np.array(["private"] * 10), "ids": IDS, "wanted": Y}
    records = as_records(rows, inputs=("ids", "x"), target="wanted")
    assert (records.names, records.gather(torch.tensor([4])).target.tolist()) == (("ids", "x"), [4])
    assert by_user(rows, Y, rows_per_user=1, inputs=("x",), target="wanted").names == ("x",)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: as_records({"x": X, "z": Y}), r"none of the 2 keys of the data is 'labels', "),
        (lambda: as_records({"x": X, "labels": Y}, inputs=("w",)), r"no key 'w' among its 2 keys"),
        (lambda: as_records({"labels": Y}), r"must have inputs and a target, got only the key 'labels'"),
        (lambda: as_records({0: X, "labels": Y}), r"keys of the data must be strings"),
        (
            lambda: as_records({"x": X[:9], "labels": Y}),
            r"parts of the data differ in length: inputs\[0\] 9, 'labels' 10",
        ),
        (
            lambda: as_records({"x": ["secret"] * 10, "labels": Y}, inputs=("x",)),
            r"'x' must be a tensor or an array, got list",
        ),
        (lambda: as_records((X, Y), target="labels"), r"name keys of dictionaries, got rows that are tuples"),
        (lambda: as_records(Pairs(X, Y), inputs=("x",)), r"name keys of dictionaries, got rows that are tuples"),
        (lambda: as_records(as_records((X, Y)), target="y"), r"say how to read rows, got Records"),
        (lambda: as_records(Named(x=[["secret"]] * 10, labels=Y)), r"inputs\[0\] must hold numbers, got an array"),
    ],
)
def test_dictionaries_that_cannot_be_used_are_refused_in_one_line(make: Any, says: str) -> None:
    with pytest.raises((DataError, UsageError), match=says) as refused:
        make()
    assert "secret" not in str(refused.value) and "\n" not in str(refused.value)


def test_a_dictionary_without_a_key_of_the_others_counts_as_absent() -> None:
    rows: list[dict[str, Any]] = [{"x": X[i], "labels": i} for i in range(10)]
    rows[3] = {"x": X[3]}
    rows[4] = {"x": X[4], "labels": 4, "remark": "more than the others"}

    class Listed(Dataset[dict[str, Any]]):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> dict[str, Any]:
            return rows[index]

    batch = as_records(Listed()).gather(torch.tensor([2, 3, 4]))
    assert (batch.valid.tolist(), batch.target.tolist()) == ([True, False, True], [2, 0, 4])
