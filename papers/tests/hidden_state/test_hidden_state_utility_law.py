"""The utility law: slopes are fitted rightly, points are measured once, and the data model is what the text says."""

import math

import numpy as np
import pytest
import torch

from sordino.convex import GatedReLU
from sordino.errors import UsageError
from sordino_papers.harness.entry import RunScale
from sordino_papers.hidden_state import utility_law
from sordino_papers.hidden_state.random_data import RandomDataset
from sordino_papers.hidden_state.utility_law import RiskPoint, laws, measure, measure_risk

METHODS = ("NoisyCGD, gated", "DP-SGD, linear")


def points(excess, seeds=4):
    rng = np.random.default_rng(0)
    grid = [(n, e, seed) for n in (100, 200, 400) for e in (1.0, 4.0, 16.0) for seed in range(seeds)]
    return [RiskPoint("a", n, e, seed, excess(n, e) * math.exp(0.1 * rng.normal()), 1.0, 0.0) for n, e, seed in grid]


def test_a_planted_slope_is_found_within_its_interval():
    law = laws(points(lambda n, e: 3 * (n * e) ** -0.5))[0]
    assert (law.method, law.risk, law.claimed) == ("a", "excess", -0.5)
    for slope in (law.in_both, law.in_examples, law.in_epsilon):
        assert slope.low < -0.5 < slope.high
        assert slope.low < slope.value < slope.high
    assert law.in_both.high - law.in_both.low < 0.1


def test_slopes_in_examples_and_in_epsilon_are_told_apart():
    law = laws(points(lambda n, e: 1 / e))[0]
    assert law.in_examples.low < 0 < law.in_examples.high
    assert law.in_epsilon.low < -1 < law.in_epsilon.high
    assert law.in_epsilon.high < law.in_both.value < law.in_examples.low


def test_an_interval_covers_its_slope_as_often_as_it_says():
    """400 fits to noise: 95 % coverage is off by more than 5 % about once in 200,000 times."""
    rng, covered = np.random.default_rng(1), 0
    for _ in range(400):
        made = [
            RiskPoint("a", n, e, 0, math.exp(rng.normal()) / n, 1.0, 0.0)
            for n in (100, 200, 400)
            for e in (1.0, 4.0, 16.0)
        ]
        slope = laws(made)[0].in_examples
        covered += slope.low < -1 < slope.high
    assert abs(covered / 400 - 0.95) < 0.05


def test_too_few_points_have_no_slope():
    with pytest.raises(UsageError, match="points_beyond_those_of_a_line"):
        laws(points(lambda n, e: 1 / e)[:2])


def test_each_place_of_the_grid_is_measured_once_and_known_points_are_kept(monkeypatch):
    monkeypatch.setitem(utility_law.SIZES, RunScale.QUICK, (60, 80))
    asked = []

    def counted(method, examples, epsilon, seed):
        asked.append((method, examples, epsilon, seed))
        return RiskPoint(method, examples, epsilon, seed, 1 / examples, 1 / epsilon, 0.0)

    monkeypatch.setattr(utility_law, "measure_risk", counted)
    seen = []
    found = measure(RunScale.QUICK, 2, seen.append)
    assert found == tuple(seen)
    assert {point.question for point in found} == {
        (method, n, e, seed) for method in METHODS for n in (60, 80) for e in (1.0, 4.0, 16.0) for seed in range(2)
    }
    assert measure(RunScale.QUICK, 2, seen.append, known=found[1:]) == found
    assert seen[len(found) :] == [found[0]]


@pytest.mark.parametrize("method", METHODS)
def test_less_noise_means_less_risk_and_a_seed_repeats_its_point(method):
    noisy, clear, again = (measure_risk(method, 100, epsilon, seed=3) for epsilon in (0.5, 16.0, 16.0))
    assert 0 < clear.excess < noisy.excess and 0 < clear.bounded < noisy.bounded
    assert (again.excess, again.bounded) == pytest.approx((clear.excess, clear.bounded), rel=1e-9)


def test_the_gated_model_can_fit_every_label_of_the_data_model():
    drawn = RandomDataset(100, seed=0)
    assert (drawn.dimensions, drawn.gates) == (10, math.ceil(10 * math.log(100)))
    rows = torch.nn.functional.normalize(drawn.rows.double())
    gates = GatedReLU(drawn.gates, drawn.gate_seed).build(drawn.dimensions, 1).gates.double()
    assert not torch.equal(gates[0], drawn.rows[0].double())
    open_gates = (rows @ gates.T >= 0).double()
    products = (rows @ rows.T) * (open_gates @ open_gates.T)
    assert int(torch.linalg.matrix_rank(products)) == 100


def test_the_bounded_risk_turns_straight_where_the_gradient_has_length_one():
    residuals, norms = torch.tensor([0.1, 3.0]), torch.tensor([2.0, 4.0])
    expected = (0.1**2 / 2 + (3.0 / 4 - 1 / 32)) / 2
    assert utility_law._risk_with_bounded_gradients(residuals, norms) == pytest.approx(expected, rel=1e-6)
