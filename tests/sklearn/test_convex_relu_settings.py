"""Settings that nobody has to say: they follow from the number of units and from the target."""

from dataclasses import replace

import pytest

from sordino import Adjacency
from sordino.convex import GatedReLU, NoisyCGD
from sordino.convex.losses import Curvature
from sordino.kernel.sampling import Cyclic
from sordino.sklearn.convex_relu_training import FitTarget, settings_for

TARGET = FitTarget(epsilon=1.0, delta=1e-5, adjacency=Adjacency.ZERO_OUT)
ONE = Curvature(smoothness=1.0)


def steps(settings):
    return settings.batches_per_epoch * settings.epochs


def test_more_units_and_more_epsilon_are_used_for_longer_training():
    few, many = (settings_for(TARGET, units=units, curvature=ONE, clip=0.5) for units in (1_000, 30_000))
    weak = settings_for(replace(TARGET, epsilon=3.0), units=30_000, curvature=ONE, clip=0.5)
    assert steps(few) < steps(many) < steps(weak)


def test_replacing_one_halves_the_way():
    one, other = (
        settings_for(replace(TARGET, adjacency=each), units=30_000, curvature=ONE, clip=0.5)
        for each in (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)
    )
    assert steps(other) == pytest.approx(steps(one) / 2, rel=0.05)


def test_what_is_said_is_kept_and_the_rest_makes_up_for_it():
    free = settings_for(TARGET, units=30_000, curvature=ONE, clip=0.5)
    by_batch = settings_for(TARGET, units=30_000, curvature=ONE, clip=0.5, batch_size=1000)
    by_epochs = settings_for(TARGET, units=30_000, curvature=ONE, clip=0.5, epochs=10)
    both = settings_for(TARGET, units=30_000, curvature=ONE, clip=0.5, batch_size=1000, epochs=10)
    assert (by_batch.batches_per_epoch, by_epochs.epochs) == (30, 10)
    assert (both.batches_per_epoch, both.epochs) == (30, 10)
    assert steps(by_batch) == pytest.approx(steps(free), rel=0.05) == steps(by_epochs)


def test_a_smoother_loss_takes_as_many_steps_and_longer_ones():
    one, smoother = (settings_for(TARGET, 30_000, curvature=each, clip=0.5) for each in (ONE, Curvature(0.25)))
    assert steps(one) == steps(smoother) and (one.learning_rate, smoother.learning_rate) == (1.0, 4.0)


@pytest.mark.parametrize("units", [2, 3, 50, 10**7])
def test_any_number_of_units_gives_batches_that_exist(units):
    settings = settings_for(TARGET, units=units, curvature=ONE, clip=0.5)
    assert 1 <= settings.batches_per_epoch <= min(units, 100) and 1 <= settings.epochs <= 100


def test_half_an_epoch_without_data_makes_cyclic_batches_as_good_as_all_rows_at_once():
    """The law that the settings lean on: the noise of the last iterate is C eta T / (n mu), whatever the batches."""
    settings = settings_for(TARGET, units=30_000, curvature=ONE, clip=0.5)
    batches, taken = settings.batches_per_epoch, steps(settings)
    plan = NoisyCGD(
        Cyclic(batches, settings.epochs), GatedReLU(4), clip=0.5, noise_multiplier=1.0, learning_rate=1.0,
        trailing_steps=batches // 2,
    ).calibrated(epsilon=1.0, delta=1e-5)  # fmt: skip
    in_all = batches / 30_000 * plan.noise_multiplier * 0.5 * (taken + batches // 2) ** 0.5
    assert in_all == pytest.approx(0.5 * taken / (30_000 * TARGET.mu), rel=0.05)
