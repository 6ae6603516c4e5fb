"""Epsilons known from other sources: exact values, rigorous intervals of prv_accountant, and those of dp_accounting."""

import pytest
from dp_accounting.dp_event import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)

from sordino.accounting import Adjacency, GaussianCurve, all_answers, privacy_of

# rate, multiplier, steps, delta | rigorous interval (prv_accountant, eps_error 0.01) | dp_accounting 0.6: PLD, RDP
POISSON = [
    (256 / 60000, 1.1, 14062, 1e-5, (2.371456, 2.391744), 2.381686002, 2.596555870),
    (0.01, 1.0, 10000, 1e-5, (6.177386, 6.198042), 6.187744976, 6.712756664),
    (0.01, 4.0, 10000, 1e-5, (0.936809, 0.956936), 0.946999307, 1.035490066),
    (0.004, 0.8, 1000, 1e-5, (1.273898, 1.294200), 1.284053568, 1.912359345),
    (0.1, 2.0, 1000, 1e-6, (9.171618, 9.192366), 9.181993954, 9.823878897),
    (1e-3, 0.6, 100000, 1e-6, (6.950483, 6.971206), 6.961156952, 7.756428310),
    (0.02, 1.0, 1000, 1e-10, (6.368990, 6.389382), 6.379264095, 6.832190948),
    (4096 / 50000, 3.0, 2000, 1e-5, (5.763974, 5.784573), 5.774279105, 6.239058991),
    (512 / 60000, 1.0, 2344, 1e-5, (2.342, 2.364), 2.352953, 2.611182),
    (0.5, 1.0, 1, 1e-5, (3.533948, 3.5344), 3.533998, 3.893576),
]

# mu, delta, epsilon: Balle and Wang's formula in 30 digits
GAUSSIAN = [
    (1.0, 1e-5, 4.377178096),
    (1.0, 1e-6, 4.886554117),
    (2.0, 1e-6, 10.997151214),
    (2.0, 1e-5, 9.997256146),
    (4.0, 1e-6, 26.356963925),
    (4.0, 1e-5, 24.381610883),
]


@pytest.mark.parametrize(("rate", "multiplier", "steps", "delta", "interval", "pld", "rdp"), POISSON)
@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.ADD_OR_REMOVE])
def test_poisson_sampling_agrees_with_three_other_accountants(
    rate, multiplier, steps, delta, interval, pld, rdp, adjacency
):
    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), steps)
    said = {answer.accountant: answer.epsilon for answer in all_answers(event, adjacency, delta)}
    assert said["pld"] == pytest.approx(pld, rel=1e-3)
    assert interval[0] <= said["pld"] <= interval[1]
    # More orders than dp_accounting's help a little, and never hurt.
    assert rdp * (1 - 1e-3) <= said["rdp"] <= rdp * (1 + 1e-6)
    assert privacy_of(event, adjacency).answer(delta).accountant == "pld"


@pytest.mark.parametrize(("mu", "delta", "epsilon"), GAUSSIAN)
def test_the_gaussian_is_exact(mu, delta, epsilon):
    assert GaussianCurve(mu).epsilon(delta) == pytest.approx(epsilon, abs=2e-9)


def test_a_hundred_gaussians_are_one():
    answer = privacy_of(SelfComposedDpEvent(GaussianDpEvent(10.0), 100), Adjacency.ZERO_OUT).answer(1e-5)
    assert answer.accountant == "exact-gaussian"
    assert answer.epsilon == pytest.approx(4.377178096, abs=2e-9)


def test_ten_gaussians_under_replace_one_cost_what_a_doubled_sensitivity_costs():
    said = all_answers(SelfComposedDpEvent(GaussianDpEvent(5.0), 10), Adjacency.REPLACE_ONE, 1e-5)
    assert {answer.accountant for answer in said} == {"exact-gaussian", "pld", "rdp"}
    assert min(answer.epsilon for answer in said) >= 5.75


def test_batches_of_a_fixed_size_use_the_doubled_sensitivity():
    batch = SampledWithoutReplacementDpEvent(60000, 256, GaussianDpEvent(1.1))
    event = SelfComposedDpEvent(batch, 14062)
    answer = privacy_of(event, Adjacency.REPLACE_ONE).answer(1e-5)
    assert answer.accountant == "pld"
    assert answer.epsilon == pytest.approx(18.454, rel=1e-3)
    rdp = next(each for each in all_answers(event, Adjacency.REPLACE_ONE, 1e-5) if each.accountant == "rdp")
    assert rdp.epsilon == pytest.approx(24.08, abs=0.01)
