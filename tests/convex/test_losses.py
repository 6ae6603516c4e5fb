"""A clipped loss is certified only where its steps never move two iterates apart."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sordino.convex.losses import CrossEntropy, Curvature, Logistic, Squared
from sordino.errors import UsageError


def residual(loss, z, label):
    """The gradient of the loss with respect to the outputs."""
    z = z.clone().requires_grad_()
    loss(z[None], torch.tensor([label])).backward()
    return z.grad


def clipped(loss, z, label, tau):
    r = residual(loss, z, label)
    return r * min(1.0, tau / float(r.norm()))


def draw(seed, outputs):
    generator = torch.Generator().manual_seed(seed)
    one, other = 4 * torch.randn(2, outputs, generator=generator, dtype=torch.float64)
    return one, other, int(torch.randint(outputs, (), generator=generator))


@pytest.mark.parametrize(
    ("loss", "outputs", "smoothness"), [(Squared(), 10, 1.0), (Squared(), 3, 1.0), (Logistic(), 1, 0.25)]
)
@given(st.integers(0, 10**6), st.floats(0.01, 5.0))
def test_a_certified_loss_stays_monotone_and_smooth_when_clipped(loss, outputs, smoothness, seed, tau):
    one, other, label = draw(seed, outputs)
    moved = clipped(loss, one, label, tau) - clipped(loss, other, label, tau)
    apart = one - other
    # Co-coercivity holds for the gradient of a convex function of this smoothness (Baillon and Haddad 1977).
    assert float(moved @ apart) >= float(moved @ moved) / smoothness - 1e-12
    assert loss.curvature(feature_bound=1.0, clip=tau).smoothness == smoothness


@given(st.integers(0, 10**6), st.floats(0.01, 5.0), st.floats(0.01, 2.0))
def test_a_clipped_squared_step_never_moves_two_iterates_apart(seed, clip, eta):
    """Tests the whole step on V, with a feature vector of norm at most 1."""
    generator = np.random.default_rng(seed)
    phi = generator.normal(size=4)
    phi /= max(1.0, np.linalg.norm(phi))
    one, other = generator.normal(size=(2, 4, 3)) * 3
    y = np.eye(3)[generator.integers(3)]

    def step(v):
        gradient = np.outer(phi, phi @ v - y)
        return v - eta * gradient * min(1.0, clip / np.linalg.norm(gradient))

    assert np.linalg.norm(step(one) - step(other)) <= np.linalg.norm(one - other) * (1 + 1e-12)


def test_clipped_cross_entropy_of_ten_classes_moves_iterates_apart():
    """A counterexample to the published certificate: two outputs between which the clipped field is not monotone."""
    loss, tau, worst = CrossEntropy(), 0.3, 0.0
    generator = torch.Generator().manual_seed(0)
    for _ in range(4000):
        z = torch.zeros(10, dtype=torch.float64)
        z[1:] = 3 * torch.rand((), generator=generator).item() + torch.randn(9, generator=generator) * 1.5
        d = torch.randn(10, generator=generator, dtype=torch.float64)
        other = z + 1e-3 * d / d.norm()
        moved = clipped(loss, other, 0, tau) - clipped(loss, z, 0, tau)
        worst = min(worst, float(moved @ (other - z)) / float((other - z).square().sum()))
    assert worst < -1e-4


def test_cross_entropy_is_certified_only_if_nobody_is_clipped():
    assert CrossEntropy().curvature(feature_bound=1.0, clip=math.sqrt(2)) == Curvature(0.5)
    with pytest.raises(UsageError, match="not the gradient of a convex loss"):
        CrossEntropy().curvature(feature_bound=1.0, clip=1.41)


@given(st.integers(0, 10**6))
def test_the_residual_of_cross_entropy_is_never_longer_than_the_root_of_two(seed):
    z, _, label = draw(seed, 7)
    assert float(residual(CrossEntropy(), z, label).norm()) <= math.sqrt(2) + 1e-12


@pytest.mark.parametrize("loss", [Squared(), Logistic(), CrossEntropy()])
@pytest.mark.parametrize("label", [-1, 17, -100])
def test_a_label_that_does_not_exist_makes_its_example_constant(loss, label):
    outputs = torch.randn(1, 1 if isinstance(loss, Logistic) else 3, requires_grad=True)
    loss(outputs, torch.tensor([label])).backward()
    assert not outputs.grad.any()


def test_numbers_are_learnt_by_their_squared_distance():
    assert float(Squared()(torch.tensor([[3.0]]), torch.tensor([1.0]))) == 2.0


@pytest.mark.parametrize(
    ("eta", "strength", "contraction"), [(1.0, 0.0, 1.0), (2.0, 0.0, 1.0), (1.0, 0.1, 0.9), (1.8, 0.1, 0.98)]
)
def test_contraction_is_that_of_the_flattest_or_the_steepest_direction(eta, strength, contraction):
    assert Curvature(1.0).contraction(eta, strength) == pytest.approx(contraction)


@pytest.mark.parametrize(("eta", "strength"), [(2.1, 0.0), (2.0, 0.1), (1e9, 0.0)])
def test_steps_that_are_too_long_are_refused(eta, strength):
    with pytest.raises(UsageError, match=r"learning_rate must be below 2 / \(smoothness \+ strength\)"):
        Curvature(1.0).contraction(eta, strength)
