"""Samplers draw the units that join each step, and compose their event."""

import numpy as np
import pytest
from contracts import SamplerContract, stream

from sordino import Adjacency, BallsInBins, Cyclic, FixedSize, Gaussian, Poisson, Shuffled, TruncatedPoisson
from sordino.accounting import privacy_of
from sordino.errors import DataError, UnsupportedEvent, UsageError


class TestPoisson(SamplerContract):
    sampler = Poisson(rate=0.1, steps=40)


class TestPoissonOfEverybody(SamplerContract):
    sampler = Poisson(rate=1.0, steps=15)


class TestRarePoisson(SamplerContract):
    sampler = Poisson(rate=0.004, steps=40)


class TestTruncatedPoisson(SamplerContract):
    sampler = TruncatedPoisson(rate=0.1, steps=40, examples=60, largest_batch=15)


class TestBallsInBins(SamplerContract):
    sampler = BallsInBins(bins=6, epochs=7)


class TestShuffled(SamplerContract):
    sampler = Shuffled(batches_per_epoch=6, epochs=7)


class TestCyclic(SamplerContract):
    sampler = Cyclic(batches_per_epoch=6, epochs=7)


class TestFixedSize(SamplerContract):
    sampler = FixedSize(batch_size=6, examples=60, steps=40)


def epsilon(sampler, multiplier=2.0, delta=1e-5):
    return privacy_of(sampler.compose(Gaussian(multiplier).event, sampler.steps), sampler.adjacency).epsilon(delta)


def test_shuffled_batches_cost_more_than_poisson_batches_of_the_same_size():
    assert epsilon(Shuffled(50, 10)) > 1.5 * epsilon(Poisson(1 / 50, 500))


def test_a_cut_at_one_and_a_half_batches_costs_next_to_nothing():
    cut = epsilon(TruncatedPoisson(rate=0.01, steps=500, examples=20_000, largest_batch=300))
    assert cut == pytest.approx(epsilon(Poisson(0.01, 500)), rel=1e-3)


def test_balls_in_bins_cost_about_what_poisson_costs_and_much_less_than_shuffling():
    allocated = epsilon(BallsInBins(50, 10))
    assert allocated < 1.6 * epsilon(Poisson(1 / 50, 500))
    assert allocated < 0.8 * epsilon(Shuffled(50, 10))


def test_a_truncated_batch_is_a_uniform_subset_of_the_poisson_batch():
    cut = TruncatedPoisson(rate=0.5, steps=2000, examples=20, largest_batch=6)
    whole = Poisson(rate=0.5, steps=2000)
    counts = np.zeros(20)
    for small, large in zip(cut.batches(20, stream()), whole.batches(20, stream()), strict=True):
        assert set(small) <= set(large)
        assert len(small) == min(len(large), 6)
        counts[small] += 1
    # 20 counts of mean about 600 and standard deviation below 21: five of them either way.
    assert np.all(np.abs(counts - counts.mean()) < 5 * 21)


def test_every_unit_takes_part_once_per_epoch_when_shuffled_and_in_the_same_batch_when_cyclic():
    shuffled = list(Shuffled(7, 2).batches(50, stream()))
    assert sorted(np.concatenate(shuffled[:7])) == list(range(50))
    assert not all(np.array_equal(a, b) for a, b in zip(shuffled[:7], shuffled[7:], strict=True))
    cyclic = list(Cyclic(7, 2).batches(50, stream()))
    assert sorted(np.concatenate(cyclic[:7])) == list(range(50))
    assert all(np.array_equal(a, b) for a, b in zip(cyclic[:7], cyclic[7:], strict=True))


def test_under_replace_one_the_same_batches_cost_more():
    assert epsilon(Poisson(0.02, 500, Adjacency.REPLACE_ONE)) > epsilon(Poisson(0.02, 500))
    assert epsilon(Shuffled(50, 10, Adjacency.REPLACE_ONE)) > 1.9 * epsilon(Shuffled(50, 10))


@pytest.mark.parametrize("sampler", [Shuffled, Cyclic])
def test_partitions_have_no_add_or_remove_guarantee(sampler):
    with pytest.raises(UsageError, match="no add-or-remove guarantee"):
        sampler(10, 2, Adjacency.ADD_OR_REMOVE)


def test_a_fixed_size_is_for_replace_one_only():
    with pytest.raises(UsageError, match="replace-one only, got add-or-remove"):
        FixedSize(10, 100, 5, Adjacency.ADD_OR_REMOVE)


def test_under_add_or_remove_the_divisor_does_not_follow_the_data():
    for sampler in (Poisson(0.1, 5, Adjacency.ADD_OR_REMOVE, 1000), BallsInBins(10, 5, Adjacency.ADD_OR_REMOVE, 1000)):
        assert sampler.expected_batch_size(1000) == sampler.expected_batch_size(999) == 100


def test_under_add_or_remove_a_public_size_must_be_said():
    with pytest.raises(UsageError, match="pass a public expected_examples"):
        Poisson(0.1, 5, Adjacency.ADD_OR_REMOVE)


def test_a_sampler_whose_event_names_the_size_refuses_another_size():
    with pytest.raises(DataError, match="made for 100 examples, got a dataset of 99"):
        FixedSize(10, 100, 5).check(99)
    with pytest.raises(DataError, match="made for 100 examples, got a dataset of 99"):
        TruncatedPoisson(0.1, 5, 100, 20).check(99)


def test_a_release_without_a_known_bound_is_refused():
    from dp_accounting import LaplaceDpEvent

    with pytest.raises(UnsupportedEvent, match="Gaussian noise only"):
        BallsInBins(10, 5).compose(LaplaceDpEvent(1.0), 50)


@pytest.mark.parametrize("rate", [0, -0.1, 1.0001, float("nan"), float("inf"), "0.1", True])
def test_a_rate_that_is_no_probability_is_refused(rate):
    with pytest.raises(UsageError, match="rate must be in"):
        Poisson(rate, 10)


@pytest.mark.parametrize("steps", [0, -1, 1.5, 10**18, True, None])
def test_steps_that_are_no_number_of_steps_are_refused(steps):
    with pytest.raises(UsageError, match="steps must be a whole number"):
        Poisson(0.1, steps)


@pytest.mark.parametrize("multiplier", [0.001, 0.005, 0.02, 0.1, 1e6])
@pytest.mark.parametrize(
    "sampler",
    [
        Poisson(0.1, 10),
        Poisson(0.05, 200),
        Poisson(0.1, 10, Adjacency.REPLACE_ONE),
        TruncatedPoisson(1.0, 10, 100, 50),
        BallsInBins(10, 2),
        Shuffled(10, 2),
        FixedSize(10, 100, 10),
    ],
    ids=lambda sampler: f"{sampler.name} {sampler.adjacency}",
)
def test_every_sampler_has_an_answer_for_next_to_no_noise_and_for_next_to_nothing_else(sampler, multiplier):
    curve = privacy_of(sampler.compose(Gaussian(multiplier).event, sampler.steps), sampler.adjacency)
    assert 0 <= curve.epsilon(1e-5) < float("inf")
    assert 0 <= curve.delta(1.0) <= 1
