"""Sufficient statistics: their sensitivity, their noise, and that they are charged before a row is read."""

from dataclasses import dataclass
from math import sqrt

import pytest
import torch
from dp_accounting import GaussianDpEvent
from hypothesis import given
from hypothesis import strategies as st

import sordino as so
from sordino.accounting import Adjacency
from sordino.convex.random_features import FeatureMap, Features, GatedFeatures, RandomFourier, RandomReLU
from sordino.convex.sufficient_statistics import Summation, _packed, _unpacked, release_statistics
from sordino.errors import BudgetError, UsageError
from sordino.kernel.randomness import Key
from sordino.kernel.records import as_records, by_user

FEATURES = RandomReLU(width=6, bias=0.5)
GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(300, 4, generator=GENERATOR)
LABELS = torch.randint(3, (300,), generator=GENERATOR)


@dataclass(frozen=True)
class Unmapped(Features):
    """The identity map, which reaches every vector of norm 1."""

    def directions(self, num_inputs):
        return torch.zeros(num_inputs, 0)

    def of(self, rows, projections):
        return rows

    def _mapped_size(self, num_inputs):
        return num_inputs


@dataclass(frozen=True)
class Boastful(Unmapped):
    """Features that exceed their declared bound."""

    def of(self, rows, projections):
        return 100 * rows


def total_of(inputs, labels, features=FEATURES, num_classes=3):
    records = as_records((inputs, labels), allow_single=True)
    return Summation.of(records, features, num_classes).total(records)


def replaced_by(row, label, other, other_label, features):
    """The distance by which a replacement moves the sum."""
    before = total_of(row[None], torch.tensor([label]), features)
    return float((before.value - total_of(other[None], torch.tensor([other_label]), features).value).norm())


def test_without_noise_they_are_the_products_of_features_and_labels():
    statistics = release_statistics(
        so.Budget((INPUTS.repeat(40, 1), LABELS.repeat(40))), FEATURES, num_classes=3, noise_multiplier=0.3, seed=0
    )
    rows = FeatureMap(FEATURES, (4,))(INPUTS).double()
    labels = torch.nn.functional.one_hot(LABELS).double()
    torch.testing.assert_close(statistics.gram / 40, rows.T @ rows, atol=0.1, rtol=0)
    torch.testing.assert_close(statistics.moment / 40, rows.T @ labels, atol=0.1, rtol=0)


def test_the_released_matrix_is_symmetric_with_the_noise_of_one_mechanism():
    budget = so.Budget((torch.zeros(2, 4), torch.full((2,), -1)))  # no label is in range, so the release is noise only
    features = RandomReLU(width=120)
    statistics = release_statistics(budget, features, num_classes=3, noise_multiplier=2.0, seed=0)
    assert torch.equal(statistics.gram, statistics.gram.T)
    assert statistics.noise_std == pytest.approx(2.0 * sqrt(2), rel=1e-15)
    above = statistics.gram[torch.triu_indices(120, 120, 1).unbind()]
    assert float(above.std()) == pytest.approx(2.0, rel=0.05)
    assert float(statistics.gram.diagonal().std()) == pytest.approx(2.0 * sqrt(2), rel=0.2)
    assert float(statistics.moment.std()) == pytest.approx(2.0 * sqrt(2), rel=0.2)


def test_packing_keeps_norms_and_can_be_undone():
    matrix = torch.randn(7, 7, dtype=torch.float64)
    matrix = matrix + matrix.T
    packed = _packed(matrix.numpy())
    assert float(packed.norm()) == pytest.approx(float(matrix.norm()))
    torch.testing.assert_close(_unpacked(packed, 7), matrix)


HOSTILE = torch.tensor([0.0, 1.0, 1e30, -1e30, torch.nan, torch.inf, 0.5])[:, None].expand(-1, 4)


@pytest.mark.parametrize("features", [FEATURES, GatedFeatures(3), RandomFourier(6, 2.0, bias=1.0), Boastful()], ids=str)
def test_no_unit_moves_the_sum_by_more_than_the_bound(features):
    rows, labels = torch.cat([HOSTILE, INPUTS[:20]]), torch.arange(27) % 5 - 1
    whole = total_of(rows, labels, features)
    assert whole.bound == pytest.approx(sqrt(features.bound**4 + features.bound**2))
    others = [torch.arange(27) != row for row in range(27)]
    moved = [float((whole.value - total_of(rows[keep], labels[keep], features).value).norm()) for keep in others]
    assert max(moved) <= whole.bound
    assert max(moved) > 0.5 * whole.bound


def test_rows_that_are_not_finite_and_labels_that_do_not_exist_add_nothing():
    rows = torch.cat([INPUTS[:4], torch.tensor([[torch.nan, 0, 0, 0], [torch.inf, 0, 0, 0]]), INPUTS[4:6]])
    labels = torch.tensor([0, 1, 2, 0, 1, 1, 3, -1])
    assert torch.equal(total_of(rows, labels).value, total_of(INPUTS[:4], labels[:4]).value)


@given(
    angle=st.floats(0, 3.1416), label=st.integers(0, 2), other=st.integers(0, 2), bias=st.sampled_from([0.0, 0.5, 2.0])
)
def test_no_replacement_moves_the_sum_by_more_than_is_accounted(angle, label, other, bias):
    features = Unmapped(bias=bias)
    summation = Summation.of(as_records((INPUTS, LABELS)), features, 3)
    # The accountant assumes that a replacement moves the sum by 2 / multiplier, in units of noise.
    event = summation.event(1.0, Adjacency.REPLACE_ONE)
    accounted = 2 / event.noise_multiplier * summation.bound
    there = torch.tensor([1.0, 0, 0, 0]), torch.tensor([1.0, 0, 0, 0]) * torch.tensor(angle).cos()
    there[1][1] = torch.tensor(angle).sin()
    assert replaced_by(there[0], label, there[1], other, features) <= accounted


def test_one_replacement_moves_the_sum_by_all_that_is_accounted_and_more_than_by_root_two_norms():
    first, second = torch.tensor([1.0, 0.0, 0, 0]), torch.tensor([-0.5, sqrt(3) / 2, 0, 0])
    moved = replaced_by(first, 1, second, 1, Unmapped())
    assert moved == pytest.approx(sqrt(2) * 1.5, rel=1e-4)
    assert moved > 1.05 * sqrt(2) * total_of(first[None], torch.tensor([1]), Unmapped()).bound


def test_a_user_with_many_rows_moves_the_sum_by_no_more_than_the_bound():
    owners = torch.arange(300) // 30
    features = Unmapped()

    def total(keep):
        records = by_user((INPUTS[keep], LABELS[keep]), owners[keep], rows_per_user=30)
        return Summation.of(records, features, 3).total(records)

    whole = total(torch.ones(300, dtype=torch.bool))
    moved = [float((whole.value - total(owners != user).value).norm()) for user in range(10)]
    assert max(moved) <= whole.bound
    assert max(moved) == pytest.approx(whole.bound, rel=1e-3)  # thirty rows exceed it and were scaled down


def test_users_are_accounted_two_norms_apart():
    records = by_user((INPUTS, LABELS), torch.arange(300) // 30, rows_per_user=30)
    assert Summation.of(records, FEATURES, 3).event(2.0, Adjacency.REPLACE_ONE) == GaussianDpEvent(2.0)


def test_chunks_do_not_change_the_sum(monkeypatch):
    whole = total_of(INPUTS, LABELS)
    monkeypatch.setattr("sordino.convex.sufficient_statistics._ROWS_AT_A_TIME", 7)
    torch.testing.assert_close(total_of(INPUTS, LABELS).value, whole.value)


def test_they_are_charged_before_a_row_is_read(monkeypatch):
    monkeypatch.setattr(Summation, "total", lambda *_: pytest.fail("the data was read"))
    budget = so.Budget((INPUTS, LABELS), epsilon=0.1, delta=1e-5)
    with pytest.raises(BudgetError, match="the sufficient statistics would bring epsilon"):
        release_statistics(budget, FEATURES, num_classes=3, noise_multiplier=1.0)


def test_two_releases_with_one_seed_have_their_own_noise():
    budget = so.Budget((INPUTS, LABELS))
    first, second = (
        release_statistics(budget, FEATURES, num_classes=3, noise_multiplier=1.0, seed=0).gram for _ in range(2)
    )
    assert not torch.equal(first, second)
    assert budget.releases == ("sufficient statistics",) * 2


@pytest.mark.parametrize(
    "data, features, message",
    [
        ((torch.zeros(9, 784), LABELS[:9]), GatedFeatures(128), "at most 8000 features, .* got 100352"),
        (
            (INPUTS, INPUTS, LABELS),
            FEATURES,
            "must be one float or uint8 tensor for sufficient statistics, got torch.float32, torch.float32",
        ),
        ((INPUTS, LABELS.float()), FEATURES, "one class index per row, got torch.float32"),
        ((INPUTS, LABELS), torch.nn.Linear(4, 2), "features must be a Features"),
    ],
    ids=["too many", "two inputs", "numbers for labels", "a layer"],
)
def test_what_cannot_be_summed_is_refused_and_not_charged(data, features, message):
    budget = so.Budget(data)
    with pytest.raises(UsageError, match=message):
        release_statistics(budget, features, num_classes=3, noise_multiplier=1.0)
    assert budget.releases == ()


def test_seed_and_key_exclude_each_other():
    with pytest.raises(UsageError, match="seed and key exclude each other"):
        release_statistics(
            so.Budget((INPUTS, LABELS)), FEATURES, num_classes=3, noise_multiplier=1.0, seed=0, key=Key.fresh()
        )
