"""NoisyCGD plans: their features, their epsilon, and errors for every broken hypothesis of the theorem."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import sordino as so
from sordino.convex.losses import CrossEntropy, Logistic, Squared
from sordino.convex.model import GatedReLU, Linear, bounded
from sordino.convex.noisy_cgd import NoisyCGD
from sordino.errors import UsageError
from sordino.training.schedules import Cosine, Step


def make(batches=5, epochs=4, **changes):
    settings = {"clip": 1.0, "noise_multiplier": 3.0, "learning_rate": 1.0}
    adjacency = changes.pop("adjacency", so.Adjacency.ZERO_OUT)
    return NoisyCGD(so.Cyclic(batches, epochs, adjacency), GatedReLU(8), **(settings | changes))


def mu(plan):
    return 1 / plan.event.noise_multiplier


# --- the model ---


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
@settings(max_examples=30)
def test_features_are_never_longer_than_their_public_bound(seed, scale):
    """The gradient of an output with respect to V is the feature vector."""
    model, x = GatedReLU(gates=6, seed=seed).build(5, 2), scale * torch.randn(1, 5)
    model(x)[0, 0].backward()
    assert float(model.maps.weight.grad.norm()) <= GatedReLU().feature_bound + 1e-6


def test_the_gated_model_is_the_sum_over_open_gates():
    model = GatedReLU(gates=4, seed=1).build(3, 2)
    nn.init.normal_(model.maps.weight)
    x = torch.randn(6, 3)
    unit, maps = bounded(x), model.maps.weight.reshape(4, 2, 3)
    by_hand = sum((unit @ model.gates[i] >= 0).float()[:, None] * (unit @ maps[i].T) for i in range(4)) / 2
    assert torch.allclose(model(x), by_hand, atol=1e-6)


def test_gates_are_public_and_stay_where_they_are():
    one, same, other = (GatedReLU(8, seed=seed).build(3, 2) for seed in (1, 1, 2))
    assert torch.equal(one.gates, same.gates) and not torch.equal(one.gates, other.gates)
    assert [name for name, _ in one.named_parameters()] == ["maps.weight"]
    assert not one.maps.weight.any()


# --- epsilon ---


def test_the_event_is_the_bound_of_the_worst_placed_unit():
    assert mu(make()) == pytest.approx(math.sqrt(1 + 3 / 5) / 3)
    c, last = 0.9, 0.9 ** (5 * 3)
    closed = math.sqrt(1 + c**8 * (1 - c**2) / (1 - c**5) ** 2 * (1 - last) / (1 + last))
    assert mu(make(strength=0.1)) == pytest.approx(closed / 3)


def test_replace_one_doubles_what_a_unit_moves():
    one, other = (
        make(adjacency=adjacency).guarantee(delta=1e-5)
        for adjacency in (so.Adjacency.ZERO_OUT, so.Adjacency.REPLACE_ONE)
    )
    half = make(noise_multiplier=1.5).guarantee(delta=1e-5)
    assert other.epsilon == pytest.approx(half.epsilon)
    assert other.epsilon > one.epsilon
    assert "replace" in other.statement and "final model only" in other.statement


def test_noise_after_the_last_epoch_hides_the_last_batch():
    assert mu(make(trailing_steps=10)) < mu(make())


def test_an_iterate_that_is_shown_starts_the_bound_anew():
    hidden, shown = make(epochs=4), make(epochs=4, shown_after=(2,))
    parts = shown.event.events
    assert [part.steps for part in parts] == [10, 10]
    total = math.sqrt(sum(1 / part.noise_multiplier**2 for part in parts))
    assert total > mu(hidden)
    assert total == pytest.approx(math.sqrt(2 * (1 + 1 / 5)) / 3)
    every = make(epochs=4, shown_after=(1, 2, 3))
    assert every.guarantee(delta=1e-5).epsilon == pytest.approx(
        so.Plan(so.Cyclic(5, 4), so.LossGradient(nn.functional.mse_loss), so.ClipByNorm(1.0), so.Gaussian(3.0))
        .guarantee(delta=1e-5)
        .epsilon
    )


@given(st.floats(0.05, 1.0), st.integers(1, 8), st.integers(1, 8), st.integers(0, 5))
@settings(max_examples=30)
def test_hiding_never_costs_more_than_showing_everything(eta, batches, epochs, trailing):
    plan = make(
        batches,
        epochs,
        learning_rate=eta,
        schedule=Cosine(final=0.2),
        noise_schedule=Step((0.5,), 2.0),
        trailing_steps=trailing,
    )
    turns = range(batches * epochs)
    seen = max(
        math.sqrt(sum(1 / plan.noise_multiplier_at(k) ** 2 for k in turns if k % batches == place))
        for place in range(batches)
    )
    assert mu(plan) <= seen * (1 + 1e-9)


def test_a_ball_helps_a_long_run_and_needs_the_number_of_examples():
    free = make(epochs=200)
    ball = replace(free, radius=0.01, examples=1000)
    assert mu(ball) < mu(free)
    with pytest.raises(UsageError, match="examples must be a whole number"):
        replace(free, radius=0.01)


@pytest.mark.parametrize("adjacency", [so.Adjacency.ZERO_OUT, so.Adjacency.REPLACE_ONE])
@pytest.mark.parametrize("changes", [{}, {"strength": 0.05}, {"radius": 0.2, "examples": 1000}, {"trailing_steps": 5}])
def test_calibration_meets_the_target_from_below(adjacency, changes):
    found = make(adjacency=adjacency, **changes).calibrated(epsilon=1.0, delta=1e-5).guarantee(delta=1e-5)
    assert 0.999 < found.epsilon <= 1.0


def test_the_noise_of_the_poster():
    plan = NoisyCGD(
        so.Cyclic(60, 400, so.Adjacency.REPLACE_ONE), GatedReLU(8), clip=1.0, noise_multiplier=1.0, learning_rate=1.0
    )
    assert plan.calibrated(epsilon=1.0, delta=1e-5).noise_multiplier == pytest.approx(20.637, rel=1e-3)


# --- errors ---


@dataclass(frozen=True)
class Unbounded:
    """A model without a feature bound."""

    def build(self, inputs, outputs):
        return nn.Linear(inputs, outputs)


@dataclass(frozen=True)
class Endless(Unbounded):
    feature_bound: float = math.inf


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"sampler": so.Poisson(0.1, 10)},
            "sampler must be Cyclic, got Poisson: the hidden-state bound holds for fixed disjoint",
        ),
        ({"sampler": so.Shuffled(5, 4)}, "sampler must be Cyclic, got Shuffled"),
        ({"sampler": so.BallsInBins(5, 4)}, "sampler must be Cyclic, got BallsInBins"),
        ({"model": Unbounded()}, "model must be a ConvexModel"),
        ({"model": Endless()}, "feature_bound must be a finite number"),
        ({"learning_rate": 2.5}, "longer steps do not contract"),
        ({"learning_rate": 1.99, "strength": 0.1}, "longer steps do not contract"),
        ({"loss": CrossEntropy()}, "the clipped gradient of cross-entropy is not the gradient of a convex loss"),
        ({"loss": nn.functional.cross_entropy}, "loss must be a CertifiedLoss"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"clip": -1.0}, "clip"),
        ({"strength": -0.1}, "strength"),
        ({"noise_schedule": Cosine()}, None),
        ({"shown_after": (4,)}, "shown_after must be increasing epochs"),
        ({"shown_after": (2, 1)}, "shown_after must be increasing epochs"),
        ({"trailing_steps": -1}, "trailing_steps"),
    ],
)
def test_a_plan_that_breaks_a_hypothesis_is_refused_with_the_reason(changes, reason):
    if reason is None:  # a cosine schedule that does not reach zero within the run is valid
        assert replace(make(), **changes).event
        return
    with pytest.raises(UsageError, match=reason):
        replace(make(), **changes)


def test_there_is_no_momentum_to_ask_for():
    with pytest.raises(TypeError, match="momentum"):
        make(momentum=0.9)


def test_certified_losses_have_their_own_longest_steps():
    assert make(loss=Logistic(), learning_rate=7.9)
    assert make(loss=CrossEntropy(), clip=1.5, learning_rate=3.9)
    assert make(loss=Squared(), learning_rate=2.0)
    assert NoisyCGD(so.Cyclic(2, 2), Linear(), clip=1.0, noise_multiplier=1.0, learning_rate=1.0)


@pytest.mark.parametrize("shown_after", [(), (2, 5)])
def test_calibration_finds_the_noise_whose_own_event_meets_the_target(shown_after: tuple[int, ...]) -> None:
    found = make(6, 8, shown_after=shown_after, trailing_steps=2).calibrated(epsilon=2.0, delta=1e-5)
    assert 0.9999 * 2.0 < found.guarantee(delta=1e-5).epsilon <= 2.0
