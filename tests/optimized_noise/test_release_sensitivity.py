"""Weights released before training: their values, their cost, and that they are charged before data is read."""

from __future__ import annotations

from math import sqrt

import pytest
import torch
import torch.nn.functional as F
from dp_accounting.dp_event import ComposedDpEvent, GaussianDpEvent
from torch import nn

import sordino as so
from sordino.errors import BudgetError, UsageError
from sordino.kernel.randomness import Key
from sordino.optimized_noise import isotropic, weighted_laplace
from sordino.optimized_noise.noise import OptimizedNoise
from sordino.optimized_noise.sources import Flat
from sordino.releases.gradient_sizes import _sum_of_sizes, release_sensitivity
from sordino_papers.harness.ablations import AblationSettings, unpaid_weights_sgd

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(400, 5, generator=GENERATOR) * torch.tensor([4.0, 2.0, 1.0, 0.5, 0.0])
LABELS = torch.randint(0, 2, (400,), generator=GENERATOR)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 2)


def sizes(clip_norm: float) -> torch.Tensor:
    rows = []
    for x, y in zip(INPUTS, LABELS, strict=True):
        model = make_model()
        F.cross_entropy(model(x[None]), y[None]).backward()
        row = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()
        rows.append(row.abs() * min(1.0, clip_norm / float(row.norm())))
    return torch.stack(rows).sum(dim=0)


def test_they_are_the_sizes_of_clipped_gradients_and_noise_raises_those_that_it_hides() -> None:
    found = release_sensitivity(
        so.Budget((INPUTS, LABELS)), make_model(), noise=so.Gaussian(0.5), clip_norm=2.0, seed=0
    )
    expected = sizes(2.0).clamp(min=1.0)
    assert float((found.weights - expected).abs().max()) < 5.5 * 1.0  # twelve normals: one false alarm in a million
    assert found.weights[4] < 7 < found.weights[0]
    torch.testing.assert_close(found.squares, found.weights.square())


def test_noise_has_the_standard_deviation_that_is_charged() -> None:
    """30 releases of the coordinates that are far above their noise. The false alarm rate is one in a million."""
    budget, model = so.Budget((INPUTS, LABELS)), make_model()
    large = sizes(2.0) > 20
    found = [
        release_sensitivity(budget, model, noise=so.Gaussian(0.5), clip_norm=2.0, seed=0).weights[large]
        for _ in range(30)
    ]
    noise = torch.stack(found) - sizes(2.0)[large]
    assert float(noise.square().mean().sqrt()) == pytest.approx(1.0, rel=5 / sqrt(2 * noise.numel()))


def test_it_is_charged_and_composes_with_the_training_that_follows() -> None:
    budget = so.Budget((INPUTS, LABELS))
    weights = release_sensitivity(budget, make_model(), noise=so.Gaussian(3.0), seed=0)
    assert budget.event == ComposedDpEvent([GaussianDpEvent(3.0)])
    fitted = so.fit(
        make_model(), budget, epsilon=6.0, delta=1e-4, batch_size=100, steps=5, seed=0, progress=False,
        noise=OptimizedNoise(1.0, weights),
    )  # fmt: skip
    assert budget.releases == ("sizes of gradients", "training run")
    assert fitted.guarantee.epsilon <= 6.0 < budget.guarantee(delta=1e-4).epsilon


def test_it_can_be_pure_as_the_training_that_follows() -> None:
    budget = so.Budget((INPUTS, LABELS))
    weights = release_sensitivity(budget, make_model(), noise=OptimizedNoise(2.0, Flat()), seed=0)
    plan = so.Plan(
        so.Shuffled(2, 1), so.LossGradient(F.cross_entropy), so.ClipByNorm(1.0), OptimizedNoise(4.0, weights)
    )
    run = so.PrivateRun(plan, make_model(), budget, seed=0)
    assert len(list(run)) == 2
    assert budget.guarantee(delta=0.0).epsilon == 0.75


def test_what_the_budget_refuses_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = so.Budget((INPUTS, LABELS), epsilon=0.1, delta=1e-5)
    monkeypatch.setattr("sordino.releases.gradient_sizes._sum_of_sizes", lambda *_: pytest.fail("a row was read"))
    with pytest.raises(BudgetError, match="the sizes of gradients would bring epsilon to"):
        release_sensitivity(budget, make_model(), noise=so.Gaussian(1.0))


def test_no_hostile_row_moves_the_sum_by_more_than_the_clip_norm() -> None:
    def total(inputs, labels):
        gradient, clip = so.LossGradient(F.cross_entropy), so.ClipByNorm(2.0)
        return _sum_of_sizes(so.Budget((inputs, labels)), make_model(), gradient, clip).value

    others = total(INPUTS[1:20], LABELS[1:20])
    for scale in (1.0, 1e4, 1e30, float("nan"), float("inf")):
        inputs = INPUTS[:20].clone()
        inputs[0] = scale
        assert float((total(inputs, LABELS[:20]) - others).norm()) <= 2.0


@pytest.mark.parametrize("changes", [{"noise": 2.0}, {"noise": so.Gaussian(1.0), "clip_norm": -1.0}])
def test_settings_that_mean_nothing_are_refused_before_a_charge(changes) -> None:
    budget = so.Budget((INPUTS, LABELS))
    with pytest.raises(UsageError):
        release_sensitivity(budget, make_model(), **changes)
    with pytest.raises(UsageError, match="budget must be a Budget"):
        release_sensitivity((INPUTS, LABELS), make_model(), noise=so.Gaussian(1.0))
    assert budget.releases == ()


def unpaid(model: nn.Module, noise: OptimizedNoise, data=(INPUTS, LABELS), learning_rate: float = 1.0):
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    comparison = AblationSettings(so.Poisson(rate=1.0, steps=1), divisor=1.0)
    return unpaid_weights_sgd(model, data, optimizer, comparison, clip=so.ClipByNorm(1.0), noise=noise)


def test_weights_that_nobody_paid_for_come_without_a_guarantee() -> None:
    result = unpaid(make_model(), OptimizedNoise(1.0, Flat()))
    assert str(result) == "optimised noise with weights that nobody paid for: not private, for comparison only"
    assert not hasattr(result, "guarantee") and "epsilon" not in repr(result)
    with pytest.raises(UsageError, match="data must be rows, got a Budget"):
        unpaid(make_model(), OptimizedNoise(1.0), so.Budget((INPUTS, LABELS)))


def test_unpaid_weights_are_those_of_all_private_rows() -> None:
    """Two families draw different noise from equal weights; everything else in their steps is equal."""

    def moved(noise: OptimizedNoise) -> torch.Tensor:
        model = make_model()
        before = nn.utils.parameters_to_vector(model.parameters()).detach()
        unpaid(model, noise)
        return (before - nn.utils.parameters_to_vector(model.parameters())).detach().double()

    model = make_model()
    F.cross_entropy(model(INPUTS), LABELS, reduction="sum").backward()
    weights = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).abs()
    stream = Key.from_seed(0).of_release(0).stream("noise")
    noises = [fit(weights, 1.0).sample(stream, step=0) for fit in (weighted_laplace, isotropic)]
    difference = moved(OptimizedNoise(1.0, fit=weighted_laplace)) - moved(OptimizedNoise(1.0, fit=isotropic))
    torch.testing.assert_close(difference, noises[0] - noises[1], rtol=1e-3, atol=1e-3)
