"""Canaries in gradient space, in production runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sordino as so
from sordino.attacks.audit.canaries import Disjoint, GradientCanaries, coins, followed_by
from sordino.attacks.audit.scores import simulated_scores
from sordino.attacks.audit.white_box import white_box_scores
from sordino.encodings import RandomSparsify
from sordino.errors import DataError, UsageError
from sordino.kernel.clipping import SCALED_TO
from sordino.kernel.randomness import Key
from sordino.kernel.records import as_records, by_user
from sordino.kernel.states import Dense, Layout

LAYOUT = Layout(("weight", "bias"), ((4, 5), (4,)))


def rows(examples=60):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(examples, 20, generator=generator), torch.arange(examples) % 4


def white_box(plan, canaries, seed=0, data=None):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(20, 100), nn.Tanh(), nn.Linear(100, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"divisor": 30, "canaries": canaries, "key": Key.from_seed(seed)}
    return white_box_scores(plan, model, data or rows(), optimizer, **settings)


def plan_of(sampler, encoding=None, noise=1.0):
    gradient, clip = so.LossGradient(F.cross_entropy), so.ClipByNorm(0.5)
    plan = so.Plan(sampler, gradient, clip, so.Gaussian(noise))
    return plan if encoding is None else replace(plan, encoding=encoding)


def test_disjoint_contributions_are_what_the_dense_matrix_is():
    generator = torch.Generator().manual_seed(3)
    owner = torch.randint(-1, 5, (LAYOUT.size,), generator=generator)
    values = torch.randn(LAYOUT.size, generator=generator, dtype=torch.float64)
    each = Disjoint(values, owner, 5, LAYOUT)
    dense = Dense(torch.cat(list(each.rows(2))), LAYOUT)
    keep = torch.rand(LAYOUT.size, generator=generator) < 0.5
    weights = torch.rand(5, 2, generator=generator)
    for one, other in ((each, dense), (each.masked(keep), dense.masked(keep))):
        assert torch.allclose(one.squared_norms(), other.squared_norms())
        assert torch.allclose(one.weighted_sum(weights), other.weighted_sum(weights))
        assert torch.allclose(so.ClipByNorm(0.7)(one).value, so.ClipByNorm(0.7)(other).value)
        assert torch.allclose(so.ClipPerLayer((0.7, 0.1))(one).value, so.ClipPerLayer((0.7, 0.1))(other).value)


def test_nobody_adds_nothing():
    canaries = GradientCanaries.drawn(LAYOUT, 4, 2.0, Key.from_seed(0).stream("canaries"))
    assert not so.ClipByNorm(1.0)(canaries.of(torch.zeros(0, dtype=torch.int64))).value.any()


def test_canaries_that_joined_add_their_own_clipped_vectors():
    canaries = GradientCanaries.drawn(LAYOUT, 4, 100.0, Key.from_seed(0).stream("canaries"))
    joined, clip = torch.tensor([3, 1]), so.ClipByNorm(1.0)
    alone = [clip(canaries.of(one[None])).value for one in joined]
    assert torch.allclose(clip(canaries.of(joined)).value, alone[0] + alone[1])
    assert alone[0] @ alone[1] == 0
    assert [float(one.norm()) for one in alone] == pytest.approx([SCALED_TO, SCALED_TO], abs=1e-5)


def test_more_canaries_than_coordinates_are_refused():
    with pytest.raises(UsageError, match="canaries must be a whole number from 1 to 24, got 25"):
        GradientCanaries.drawn(LAYOUT, 25, 1.0, Key.from_seed(0).stream("canaries"))


def test_places_come_after_the_rows_and_leave_them_alone():
    users = by_user(rows(6), torch.tensor([0, 0, 1, 2, 2, 2]), rows_per_user=2)
    more = (torch.ones(2, 20), torch.tensor([1, 2]))
    longer = followed_by(users, more)
    assert longer.num_units == 5
    batch = longer.gather(torch.tensor([1, 3, 2, 4]))
    assert batch.units.tolist() == [0, 1, 2, 2, 3]
    assert batch.target.tolist() == [2, 1, 3, 0, 2]
    assert torch.equal(batch.inputs[0][[1, 4]], more[0])


def test_canaries_of_another_shape_are_refused():
    with pytest.raises(DataError, match="canaries must have the shapes of the rows"):
        followed_by(as_records(rows(6)), (torch.ones(2, 3), torch.tensor([1, 2])))


def test_the_production_path_sees_what_the_simulation_sees():
    """Means and standard deviations agree, for included canaries and for others: 4 runs of 500 canaries."""
    sampler = so.Poisson(rate=0.3, steps=20)
    real = [white_box(plan_of(sampler), 500, seed) for seed in range(4)]
    ideal = simulated_scores(40_000, np.random.default_rng(0), noise_multiplier=1.0, rate=0.3, steps=20)
    for inside in (True, False):
        found = np.concatenate([run.values[run.included == inside] for run in real])
        expected = ideal.values[ideal.included == inside]
        assert abs(found.mean() - expected.mean()) < 5 * expected.std() / len(found) ** 0.5
        assert found.std() == pytest.approx(expected.std(), rel=0.1)


@pytest.mark.parametrize(
    "sampler",
    [
        so.BallsInBins(bins=4, epochs=5),
        so.Shuffled(batches_per_epoch=4, epochs=5),
        so.Cyclic(batches_per_epoch=4, epochs=5),
        so.FixedSize(batch_size=80, examples=260, steps=20),
    ],
    ids=lambda sampler: sampler.name,
)
def test_canaries_are_found_whatever_draws_them(sampler):
    scores = white_box(plan_of(sampler), 200)
    inside, outside = scores.values[scores.included], scores.values[~scores.included]
    assert inside.mean() > outside.mean() + 0.5 * outside.std()


def test_canaries_are_found_behind_a_mask():
    sampler = so.Poisson(rate=0.5, steps=12)
    encoding = RandomSparsify(0.7, epochs=3, steps_per_epoch=4)
    scores = white_box(plan_of(sampler, encoding), 100)
    ideal = simulated_scores(40_000, np.random.default_rng(0), noise_multiplier=1.0, rate=0.5, steps=12)
    found, expected = scores.values[scores.included].mean(), ideal.values[ideal.included]
    assert abs(found - expected.mean()) < 4 * expected.std() / 50**0.5


def test_coins_are_fair_and_not_those_of_the_run():
    thrown = np.stack([coins(4000, Key.from_seed(seed)) for seed in range(4)])
    joined = np.stack([Key.from_seed(seed).stream("sampling").uniforms(4000, step=0) < 0.5 for seed in range(4)])
    assert abs(thrown.mean() - 0.5) < 5 * 0.5 / thrown.size**0.5
    assert abs((thrown == joined).mean() - 0.5) < 5 * 0.5 / thrown.size**0.5


def test_rows_that_weigh_as_much_as_they_may_do_not_disturb_the_scores():
    """The attacker knows the sum of the other records, so they only change the weights at which gradients are taken."""
    sampler = so.Poisson(rate=1.0, steps=3)
    few, many = (white_box(plan_of(sampler), 100, data=rows(count)) for count in (4, 400))
    assert np.allclose(few.values, many.values, atol=1e-3)
