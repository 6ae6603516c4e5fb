"""SSP and AdaSSP: they meet their target epsilon, predict well, and avoid the flaws of published code."""

from math import log, sqrt

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import sordino as so
from sordino.accounting import Adjacency
from sordino.convex.least_squares import Releases, fit_adassp, fit_ssp, solve, typical_noise
from sordino.convex.random_features import FeatureMap, RandomFourier, RandomReLU
from sordino.convex.sufficient_statistics import Statistics, Summation, release_statistics
from sordino.errors import BudgetError, UsageError
from sordino.kernel.records import as_records

CENTRES = torch.randn(4, 10, generator=torch.Generator().manual_seed(1))
FEATURES = RandomReLU(width=60, bias=0.3)
TARGET = {"num_classes": 4, "epsilon": 1.0, "delta": 1e-5}


def clusters(number, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (number,), generator=generator)
    return CENTRES[labels] + 0.7 * torch.randn(number, 10, generator=generator), labels


def accuracy(model, seed=99):
    inputs, labels = clusters(2000, seed)
    return float((model(inputs).argmax(dim=1) == labels).double().mean())


@pytest.mark.parametrize("fit", [fit_ssp, fit_adassp])
@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_a_fit_spends_its_target_and_learns(fit, adjacency):
    fitted = fit(clusters(20_000), FEATURES, adjacency=adjacency, seed=0, **TARGET)
    assert 0.999 < fitted.guarantee.epsilon <= 1.0
    assert fitted.guarantee.adjacency is adjacency
    assert accuracy(fitted.model) > 0.85


@pytest.mark.parametrize("fit", [fit_ssp, fit_adassp])
def test_the_target_and_the_guarantee_are_those_of_the_fit_whatever_its_budget_holds(fit):
    budget = so.Budget(clusters(3000))
    alone = fit(budget, FEATURES, **TARGET)
    assert "counted alone" not in str(alone.guarantee.assumptions)
    beside = fit(budget, FEATURES, **TARGET)
    assert beside.noise_multiplier == alone.noise_multiplier
    assert 0.999 < beside.guarantee.epsilon == alone.guarantee.epsilon <= 1.0 < budget.guarantee(delta=1e-5).epsilon
    assert "counted alone" in str(beside.guarantee.assumptions)


@pytest.mark.parametrize("fit", [fit_ssp, fit_adassp])
def test_a_fit_that_does_not_fit_into_its_budget_is_refused_with_what_would(fit):
    budget = so.Budget(clusters(300), epsilon=1.2, delta=1e-5)
    release_statistics(budget, RandomReLU(width=8), num_classes=4, noise_multiplier=4.0)
    with pytest.raises(BudgetError, match=r"epsilon 1 for this least-squares fit .* at most 0\.\d+") as refused:
        fit(budget, RandomReLU(width=8), **TARGET)
    assert len(budget.releases) == 1
    largest = float(str(refused.value).rstrip(".").split()[-1])
    assert fit(budget, RandomReLU(width=8), **(TARGET | {"epsilon": largest})).guarantee.epsilon <= largest


def test_a_replacement_costs_less_than_two_removals():
    data = clusters(3000)
    removal, replacement = (fit_ssp(data, RandomReLU(width=20), adjacency=adjacency, **TARGET) for adjacency in
                            (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE))  # fmt: skip
    assert replacement.noise_multiplier / removal.noise_multiplier == pytest.approx(1.5, rel=1e-3)


def test_the_system_is_positive_definite_whatever_was_drawn():
    noise = torch.randn(30, 30, dtype=torch.float64)
    statistics = Statistics(noise + noise.T, torch.ones(30, 2, dtype=torch.float64), sqrt(2))
    weights = solve(statistics, ridge=0.5)
    assert float(weights.norm()) <= float(statistics.moment.norm()) / 0.5 * (1 + 1e-12)


def test_with_a_positive_matrix_the_weights_are_those_of_ridge_regression():
    rows, labels = torch.randn(50, 6, dtype=torch.float64), torch.randn(50, 2, dtype=torch.float64)
    weights = solve(Statistics(rows.T @ rows, rows.T @ labels, 1.0), ridge=0.3)
    expected = torch.linalg.solve(rows.T @ rows + 0.3 * torch.eye(6), rows.T @ labels)
    torch.testing.assert_close(weights, expected)


def test_the_ridge_is_that_of_the_noise():
    budget = so.Budget((torch.zeros(2, 4), torch.full((2,), -1)))  # no label is in range, so the release is noise only
    statistics = release_statistics(budget, RandomReLU(width=200), num_classes=2, noise_multiplier=1.0, seed=0)
    eigenvalues = torch.linalg.eigvalsh(statistics.gram)
    assert float(eigenvalues.square().mean().sqrt()) == pytest.approx(typical_noise(statistics), rel=0.05)
    assert float(eigenvalues.max()) == pytest.approx(2 * typical_noise(statistics), rel=0.1)


@pytest.mark.parametrize("replacement", [None, torch.full((10,), 3.0), torch.zeros(10)])
def test_no_unit_moves_the_smallest_eigenvalue_by_more_than_its_bound(replacement):
    inputs, labels = clusters(40)
    features = RandomFourier(width=6, gamma=0.5)
    records = as_records((inputs, labels))
    releases = Releases(Summation.of(records, features, 4), Adjacency.REPLACE_ONE)

    def eigenvalue(inputs, labels):
        return float(releases.smallest_eigenvalue(releases.summation.total(as_records((inputs, labels)))).value)

    for unit in range(10):
        changed, changed_labels = inputs.clone(), labels.clone()
        changed_labels[unit] = -1 if replacement is None else 2
        changed[unit] = changed[unit] if replacement is None else replacement
        moved = abs(eigenvalue(changed, changed_labels) - eigenvalue(inputs, labels))
        assert moved <= releases.eigenvalue_bound == 1.0


def published_adassp(rows, labels, epsilon, delta, rng, rho=0.05):
    """Algorithm 2 of Wang (2018) with bounds of 1: a third of epsilon and delta for each release."""
    size, part, log_term = rows.shape[1], epsilon / 3, log(6 / delta)
    scale = sqrt(log_term) / part
    gram = rows.T @ rows
    smallest = max(0.0, np.linalg.eigvalsh(gram)[0] + scale * rng.normal() - log_term / part)
    ridge = max(0.0, sqrt(size * log_term * log(2 * size**2 / rho)) / part - smallest)
    noise = np.triu(rng.normal(size=(size, size)))
    noisy = gram + scale * (noise + np.triu(noise, 1).T)
    return np.linalg.solve(
        noisy + ridge * np.eye(size), rows.T @ labels + scale * rng.normal(size=(size, labels.shape[1]))
    )


def test_composed_as_gaussians_the_method_errs_less_than_with_thirds_of_epsilon():
    inputs, labels = clusters(4000)
    features = RandomFourier(width=20, gamma=0.5)
    rows, onehot = FeatureMap(features, (10,))(inputs).double().numpy(), F.one_hot(labels).double().numpy()
    test_inputs, test_labels = clusters(2000, seed=5)
    test_rows = FeatureMap(features, (10,))(test_inputs).double()

    def error(weights):
        return float((test_rows @ torch.as_tensor(weights).double() - F.one_hot(test_labels)).square().sum(1).mean())

    rng = np.random.default_rng(0)
    published = [error(published_adassp(rows, onehot, 1.0, 1e-5, rng)) for _ in range(5)]
    ours = [error(fit_adassp((inputs, labels), features, seed=s, **TARGET).model.linear.weight.T) for s in range(5)]
    assert np.mean(ours) < np.mean(published)


def test_data_that_is_far_from_singular_gets_less_of_a_ridge():
    features = RandomFourier(width=4, gamma=1.0)
    many, few = (fit_adassp(clusters(n), features, seed=1, **TARGET) for n in (20_000, 200))
    assert many.ridge < 0.7 * few.ridge


@pytest.mark.parametrize("fit", [fit_ssp, fit_adassp])
@pytest.mark.parametrize(
    "changed, message",
    [
        ({"epsilon": -1.0}, "epsilon must be"),
        ({"epsilon": 50.0}, "epsilon must be at most 20"),
        ({"delta": 0.1}, "delta must be below 1 / examples"),
        ({"adjacency": Adjacency.ADD_OR_REMOVE}, "must be zero-out or replace-one"),
        ({"adjacency": "zero-out"}, "adjacency must be an Adjacency"),
        ({"num_classes": 1}, "num_classes must be a whole number from 2"),
    ],
)
def test_targets_that_cannot_be_promised_are_refused(fit, changed, message):
    with pytest.raises(UsageError, match=message):
        fit(clusters(200), FEATURES, **(TARGET | changed))


def test_scaling_all_rows_up_changes_nothing_because_no_bound_comes_from_the_data():
    inputs, labels = clusters(300)
    inputs = 10 * inputs / inputs.norm(dim=1, keepdim=True)
    weights = [
        fit_ssp((scale * inputs, labels), RandomFourier(12, 1.0), seed=0, **TARGET).model.linear.weight
        for scale in (1.0, 4.0)
    ]
    assert torch.equal(*weights)


def test_the_noise_on_the_moment_does_not_grow_with_the_number_of_classes():
    data = clusters(300)
    few, many = (
        release_statistics(so.Budget(data), FEATURES, num_classes=k, noise_multiplier=1.0).noise_std for k in (4, 100)
    )
    assert few == many
