"""The convex program has the optimum of the trained network, with proof, and random gates come near the gated one."""

from itertools import pairwise

import numpy as np
import pytest

from sordino.errors import UsageError
from sordino_papers.hidden_state.arrangements import arrangements, into_cone, number_of_cells, random_arrangements
from sordino_papers.hidden_state.cone_program import Problem, train_networks


def problem(number, size, seed):
    """Noisy values of a curve; in three dimensions the last input is 1, for a bias."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(number, size))
    if size == 3:
        rows[:, 2] = 1.0
    return Problem(rows, np.sin(2 * rows[:, 0]) + 0.3 * rng.normal(size=number), beta=0.1)


PROBLEMS = [(10, 2, 3), (12, 2, 0), (15, 3, 1), (20, 3, 2)]


@pytest.mark.parametrize("number, size, seed", PROBLEMS)
def test_all_arrangements_are_found_and_no_others(number, size, seed):
    rows = problem(number, size, seed).rows
    found = {pattern.tobytes() for pattern in arrangements(rows)}
    assert len(found) == number_of_cells(number, size)
    drawn = {pattern.tobytes() for pattern in random_arrangements(rows, 20_000, np.random.default_rng(0))}
    assert drawn <= found


def test_the_nearest_vector_of_a_cone_is_in_it_and_nothing_nearer_is():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(8, 3))
    for pattern in arrangements(rows)[:20]:
        vector = rng.normal(size=3)
        nearest = into_cone(rows, pattern, vector)
        walls = np.where(pattern, 1.0, -1.0)[:, None] * rows
        assert (walls @ nearest).min() >= -1e-9
        inside = [u for u in rng.normal(size=(20_000, 3)) if (walls @ u).min() >= 0]
        assert all(np.linalg.norm(u - vector) >= np.linalg.norm(nearest - vector) for u in inside)


@pytest.mark.parametrize("number, size, seed", PROBLEMS)
def test_the_program_and_the_trained_network_have_the_same_optimum(number, size, seed):
    small = problem(number, size, seed)
    optimum = small.with_cones()
    assert optimum.value - optimum.lower_bound <= 1e-5 * optimum.value
    trained = train_networks(small, width=30, restarts=8, steps=3000, seed=0)
    assert trained.min() == pytest.approx(optimum.value, rel=1e-3)
    assert trained.min() >= optimum.lower_bound


def test_the_outputs_explain_the_objective():
    optimum = (small := problem(12, 2, 0)).with_cones()
    error = float(np.square(optimum.outputs - small.target).sum() / 2)
    assert 0 < error < optimum.value < float(np.square(small.target).sum() / 2)


def test_without_cones_the_optimum_is_no_higher():
    small = problem(15, 3, 1)
    assert small.without_cones(arrangements(small.rows)).value < small.with_cones().lower_bound


def test_more_gates_never_raise_the_optimum_of_the_gated_network():
    small = problem(15, 3, 1)
    gates = random_arrangements(small.rows, 64, np.random.default_rng(0))
    optima = [small.without_cones(gates[:number]) for number in (1, 2, 4, 8, 16, 32, 64)]
    assert all(more.lower_bound <= fewer.value for fewer, more in pairwise(optima))


def test_the_gap_of_random_gates_falls_with_their_number():
    small = problem(15, 3, 1)
    floor = small.without_cones(arrangements(small.rows)).lower_bound
    gaps = [
        np.mean([small.without_cones(random_arrangements(small.rows, number, rng)).value - floor for _ in range(5)])
        for number in (2, 8, 32, 128)
        for rng in [np.random.default_rng(0)]
    ]
    assert all(more < fewer / 2 for fewer, more in pairwise(gaps))


def test_what_nothing_can_explain_costs_half_its_square():
    small = Problem(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0.1, 0.1]), beta=5.0)
    assert small.with_cones().value == small.with_cones().lower_bound == pytest.approx(0.01)


@pytest.mark.parametrize(
    "make, said",
    [
        (lambda: Problem(np.ones((3, 2)), np.ones(4), 0.1), r"got \(3, 2\) and \(4,\)"),
        (lambda: Problem(np.ones((3, 2)), np.ones(3), 0.0), "beta must be a finite number above 0"),
        (lambda: arrangements(np.ones((60, 5))), "at most 10000 arrangements to enumerate, got 978812"),
    ],
)
def test_problems_that_cannot_be_solved_here_are_refused(make, said):
    with pytest.raises(UsageError, match=said):
        make()
