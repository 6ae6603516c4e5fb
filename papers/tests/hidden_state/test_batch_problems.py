"""Batches of our samplers have the sizes and the gaps that their laws say."""

import math

import pytest

from sordino.errors import UsageError
from sordino_papers.hidden_state.batch_problems import batch_problems, expected_never_seen


@pytest.fixture(scope="module")
def measured():
    return {batches.sampler: batches for batches in batch_problems(epochs=5, row_size=4)}


def test_cyclic_batches_are_equal_and_miss_nobody(measured):
    cyclic = measured["cyclic"]
    assert (cyclic.smallest, cyclic.largest, cyclic.size_deviation, cyclic.peak_memory) == (1000, 1000, 0.0, 1.0)
    assert cyclic.never_seen == tuple((epoch, 0.0) for epoch in range(1, 6))


def test_poisson_batches_vary_as_a_binomial_does(measured):
    """300 sizes: their deviation is within 5 of its own standard deviations, a false alarm in two million."""
    poisson, law = measured["poisson"], math.sqrt(60_000 / 60 * (1 - 1 / 60))
    assert abs(poisson.size_deviation / law - 1) < 5 / math.sqrt(2 * 300)
    assert poisson.smallest < 1000 - 2 * law and poisson.largest > 1000 + 2 * law
    assert poisson.peak_memory == poisson.largest / 1000


def test_poisson_sampling_misses_a_third_of_the_examples_in_an_epoch(measured):
    for epoch, share in measured["poisson"].never_seen:
        law = expected_never_seen(1 / 60, 60 * epoch)
        assert abs(share - law) < 5 * math.sqrt(law * (1 - law) / 60_000)
    assert measured["poisson"].never_seen[0][1] == pytest.approx(1 / math.e, abs=0.015)


def test_random_allocation_misses_nobody_and_its_batches_vary(measured):
    allocation = measured["balls-in-bins"]
    assert [share for _, share in allocation.never_seen] == [0.0] * 5
    assert allocation.size_deviation > 20


def test_only_rows_side_by_side_can_be_sliced(measured):
    assert measured["cyclic"].slice_seconds > 0
    assert measured["poisson"].slice_seconds is None and measured["balls-in-bins"].slice_seconds is None


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(UsageError, match="batch_size must be a whole number from 1 to 10, got 11"):
        batch_problems(examples=10, batch_size=11)
