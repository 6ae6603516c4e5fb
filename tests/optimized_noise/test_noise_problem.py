"""The linear program reproduces known optima, and gives lower bounds elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sinh

import numpy as np
import pytest
import torch
from families import COSTS, draws

from sordino.errors import UsageError
from sordino.optimized_noise import (
    NoiseProblem,
    PerDistance,
    SignedCost,
    SquaredCost,
    WithinSensitivity,
    gaps,
    weighted_laplace,
)

TWO = NoiseProblem((1.0, 0.3), epsilon=1.0, sensitivity=1.0)


def staircase(x, epsilon, sensitivity):
    """The best density in one dimension for the absolute cost (Geng and Viswanath 2014)."""
    width = 1 / (1 + exp(epsilon / 2))
    top = (1 - exp(-epsilon)) / (2 * sensitivity * (width + exp(-epsilon) * (1 - width)))
    return top * np.exp(-epsilon * np.floor(np.abs(x) / sensitivity + 1 - width))


@pytest.mark.parametrize(("epsilon", "sensitivity"), [(0.5, 1.0), (1.0, 3.0), (3.0, 1.0)])
def test_in_one_dimension_it_finds_the_cost_of_the_staircase(epsilon, sensitivity):
    solved = NoiseProblem((1.0,), epsilon, sensitivity).solve(spacing=sensitivity / 20, lengths=12)
    best = sensitivity / (2 * sinh(epsilon / 2))
    assert 0.99 * best < solved.cost <= best


def test_in_one_dimension_it_finds_the_shape_of_the_staircase():
    solved = NoiseProblem((1.0,), epsilon=1.0, sensitivity=1.0).solve(spacing=0.05, lengths=12)
    (x,) = solved.axes
    into_a_step = (x - 1 / (1 + exp(0.5))) % 1
    inside = (x < 5) & (into_a_step > 0.05) & (into_a_step < 0.95)
    assert inside.sum() > 80
    np.testing.assert_allclose(solved.density[inside], staircase(x[inside], 1.0, 1.0), rtol=0.05)


@pytest.mark.parametrize("cost", COSTS, ids=repr)
def test_the_closed_form_is_all_but_best_when_epsilon_is_small(cost):
    """In one dimension the families are equal. At small epsilon, grid steps as large as the sensitivity are fine."""
    far, near = (NoiseProblem((1.0,), epsilon, 1.0, cost) for epsilon in (2.0, 0.2))
    far_gap, near_gap = (gaps(p, p.solve(spacing=0.1, lengths=15))[0].share for p in (far, near))
    assert 0 < near_gap < 0.01 < 0.1 < far_gap


# Costs at epsilon = sensitivity = 1: isotropic noise, weighted Laplace noise, and linear programs on finer grids.
IN_TWO_DIMENSIONS = {
    (1.0, 1.0): (2.546, 2.828, 2.528, 2.281),
    (1.0, 0.3): (1.655, 1.743, 1.600, 1.456),
    (1.0, 0.1): (1.401, 1.340, 1.275, 1.177),
}


@pytest.mark.parametrize(("weights", "known"), IN_TWO_DIMENSIONS.items(), ids=str)
def test_on_a_coarse_grid_in_two_dimensions_it_is_below_what_finer_grids_find(weights, known):
    round_, laplace, per_distance, within = known
    problem = NoiseProblem(weights, 1.0, 1.0)
    smooth = problem.solve(spacing=0.5, lengths=6, constraint=PerDistance())
    free = problem.solve(spacing=0.5, lengths=6)
    assert 0.94 * per_distance < smooth.cost < per_distance
    assert 0.8 * within < free.cost < within
    found = {gap.family: gap for gap in gaps(problem, smooth)}
    assert found["isotropic"].cost == pytest.approx(round_, abs=5e-4)
    assert found["weighted Laplace"].cost == pytest.approx(laplace, abs=5e-4)
    assert found["best blocks"].cost == pytest.approx(min(round_, laplace), abs=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "known"), IN_TWO_DIMENSIONS.items(), ids=str)
def test_on_a_fine_grid_in_two_dimensions_it_finds_what_is_known_to_a_hundredth(weights, known):
    problem = NoiseProblem(weights, 1.0, 1.0)
    assert problem.solve(spacing=0.2, lengths=8, constraint=PerDistance(4)).cost == pytest.approx(known[2], rel=0.01)
    assert problem.solve(spacing=0.25, lengths=8).cost == pytest.approx(known[3], rel=0.012)


@dataclass(frozen=True)
class WholePlane(SignedCost):
    """The absolute cost without symmetry, so that the problem is solved on the whole plane."""

    def pointwise(self, z):
        return np.abs(z)


@pytest.mark.parametrize("constraint", [WithinSensitivity(), PerDistance(2)], ids=repr)
def test_a_quarter_of_the_plane_has_the_cost_of_the_whole(constraint):
    quarter = TWO.solve(spacing=0.5, lengths=4, constraint=constraint)
    whole = NoiseProblem(TWO.weights, 1.0, 1.0, WholePlane()).solve(spacing=0.5, lengths=4, constraint=constraint)
    assert quarter.cost == pytest.approx(whole.cost, rel=1e-6)


def test_the_density_obeys_the_constraint_and_has_mass_one():
    solved = TWO.solve(spacing=0.5, lengths=6)
    axes, density = solved.mirrored()
    assert density.shape == tuple(map(len, axes)) and (density == density[::-1, ::-1]).all()
    assert density.sum() * 0.5**2 == pytest.approx(1.0)
    costs = np.abs(axes[0])[:, None] + 0.3 * np.abs(axes[1])
    assert (costs * density).sum() * 0.5**2 == pytest.approx(solved.cost)
    for across, along in ((2, 0), (0, 2), (1, 1), (1, -1)):
        moved = np.roll(density, (across, along), (0, 1))[2:-2, 2:-2]
        here = density[2:-2, 2:-2]
        seen = here > 1e-5 * density.max()
        assert (here[seen] <= exp(1) * moved[seen] * (1 + 1e-3)).all()


def test_a_larger_grid_and_a_finer_one_raise_the_bound():
    """Each value is a lower bound, so the largest is the tightest."""
    small = TWO.solve(spacing=0.5, lengths=4).cost
    larger, finer = TWO.solve(spacing=0.5, lengths=7).cost, TWO.solve(spacing=0.25, lengths=4).cost
    assert small < larger and small < finer


def test_no_noise_is_best_for_the_signed_cost():
    """The optimal value decreases by as much as the grid grows."""
    problem = NoiseProblem((1.0,), 1.0, 1.0, SignedCost())
    values = [problem.solve(spacing=0.25, lengths=lengths).cost for lengths in (5.0, 10.0, 20.0)]
    assert values[0] - values[1] == pytest.approx(5.0, abs=0.1)
    assert values[1] - values[2] == pytest.approx(10.0, abs=0.1)


def test_moving_noise_costs_no_privacy_and_lowers_the_signed_cost_without_limit():
    weights = torch.tensor([1.0, 0.3], dtype=torch.float64)
    noise = weighted_laplace(weights, 1.0)
    drawn = draws(noise, 10_000)
    moves = torch.nn.functional.normalize(drawn.flip(0), dim=1)
    for away in (0.0, -10.0, -1e6):
        z = drawn + away
        ratios = noise.log_density(z - away) - noise.log_density(z + moves - away)
        assert ratios.abs().max() <= 1 + 1e-9
        assert abs(float((z @ weights).mean()) - 1.3 * away) < 0.2


def test_a_squared_cost_is_bounded_from_below_in_spite_of_the_grid():
    problem = NoiseProblem((1.0, 0.3), 0.5, 1.0, SquaredCost())
    solved = problem.solve(spacing=1.0, lengths=6, constraint=PerDistance())
    assert all(gap.share > 0 for gap in gaps(problem, solved))


WRONG = {
    "no sensitivity": (lambda: NoiseProblem((1.0,), 1.0, 0.0), "sensitivity must be a finite number above 0"),
    "no epsilon": (lambda: NoiseProblem((1.0,), 0.0, 1.0), "epsilon must be a finite number above 0"),
    "three weights": (lambda: NoiseProblem((1.0,) * 3, 1.0, 1.0), "one or two entries for a grid, got 3"),
    "no weights": (lambda: NoiseProblem((0.0, 0.0), 1.0, 1.0), "must not all be 0"),
    "a weight of zero": (lambda: NoiseProblem((1.0, 0.0), 1.0, 1.0), "weights must be above 0 for a grid"),
    "a small grid": (lambda: TWO.solve(spacing=0.5, lengths=1.0), "lengths must reach a cost of 1.66"),
    "a fine grid": (lambda: TWO.solve(spacing=0.01), "at most 20000 points"),
    "no spacing": (lambda: TWO.solve(spacing=0.0), "spacing must be a finite number above 0"),
    "a coarse grid": (lambda: TWO.solve(spacing=1.5), "spacing must be at most the sensitivity"),
    "a far reach": (lambda: PerDistance(17), "reach must be a whole number from 1 to 16"),
    "a gap to nothing": (
        lambda: gaps(NoiseProblem((1.0,), 1.0, 1.0, SignedCost()), TWO.solve(spacing=1.0)),
        "the cost must have an optimum for a gap",
    ),
}


@pytest.mark.parametrize(("ask", "message"), WRONG.values(), ids=WRONG)
def test_a_problem_that_makes_no_sense_is_refused(ask, message):
    with pytest.raises(UsageError, match=message):
        ask()
