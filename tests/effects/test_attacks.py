import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from sordino.effects import L2, LInfinity, pgd, robust_accuracy
from sordino.errors import UsageError
from sordino.models.features import Pixels, ScatteringFeatures

ATTACKS = [LInfinity(0.1, step=0.02, steps=20), L2(0.8, step=0.15, steps=20)]


@pytest.fixture
def rows(digits):
    return digits[1]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)
def test_it_agrees_with_foolbox_within_a_point(network, rows, attack):
    foolbox = pytest.importorskip("foolbox", reason="foolbox is not installed, a dependency of tests")
    kind = foolbox.attacks.LinfPGD if isinstance(attack, LInfinity) else foolbox.attacks.L2PGD
    theirs = kind(abs_stepsize=attack.step, steps=attack.steps, random_start=True)
    torch.manual_seed(0)
    _, _, fooled = theirs(foolbox.PyTorchModel(network, bounds=(0, 1)), *rows, epsilons=attack.radius)
    ours = robust_accuracy(network, *rows, attack, seed=0)
    assert 0.05 < ours < 0.9  # an attack that is neither nothing nor everything
    assert ours == pytest.approx(1 - float(fooled.double().mean()), abs=0.01)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)
def test_neighbours_stay_in_the_ball_and_in_the_range(network, rows, attack):
    found = pgd(network, *rows, attack, seed=0)
    offset = (found - rows[0]).flatten(1)
    lengths = offset.abs().amax(dim=1) if isinstance(attack, LInfinity) else offset.norm(dim=1)
    assert lengths.max() <= attack.radius * (1 + 1e-5)
    assert lengths.median() > attack.radius / 2
    assert found.min() >= 0 and found.max() <= 1


@pytest.mark.parametrize("kind", [LInfinity, L2])
def test_more_steps_and_more_restarts_never_raise_robust_accuracy(network, rows, kind):
    radius = {LInfinity: 0.08, L2: 0.6}[kind]

    def accuracy(steps, restarts=1):
        return robust_accuracy(network, *rows, kind(radius, radius / 8, steps, restarts), seed=0)

    by_steps = [accuracy(steps) for steps in (0, 1, 2, 5, 10, 30)]
    assert by_steps == sorted(by_steps, reverse=True) and by_steps[-1] < by_steps[0]
    by_restarts = [accuracy(3, restarts) for restarts in (1, 2, 4)]
    assert by_restarts == sorted(by_restarts, reverse=True)


@pytest.mark.parametrize("kind", [LInfinity, L2])
def test_an_unbounded_radius_leaves_nothing_right(network, rows, kind):
    assert robust_accuracy(network, *rows, kind(100.0, step=0.5, steps=60, restarts=2), seed=0) == 0


@pytest.mark.parametrize("kind", [LInfinity, L2])
def test_a_radius_of_zero_changes_nothing(network, rows, kind):
    found = pgd(network, *rows, kind(0.0, step=0.1, steps=3), seed=0)
    assert torch.equal(found, rows[0])


def test_the_same_seed_gives_the_same_neighbours_whatever_else_was_drawn(network, rows):
    attack = LInfinity(0.05, step=0.02, steps=2)
    first = pgd(network, *rows, attack, seed=1)
    torch.manual_seed(99)
    assert torch.equal(first, pgd(network, *rows, attack, seed=1))
    assert not torch.equal(first, pgd(network, *rows, attack, seed=2))


def test_a_sure_answer_still_has_a_gradient(network, rows):
    """Logits thirty times as large are as easy to attack. With cross-entropy they would look twice as robust."""
    sure = nn.Sequential(*network[:-1], _Scaled(network[-1], 30.0))
    attack = LInfinity(0.1, step=0.02, steps=20)
    plain, scaled = (robust_accuracy(model, *rows, attack, seed=0) for model in (network, sure))
    assert scaled == pytest.approx(plain, abs=0.05)


def test_a_preparation_with_a_gradient_is_passed(network, rows):
    """With pixels from 0 to 255 and a preparation, the model is as weak as with pixels from 0 to 1."""
    attack = LInfinity(0.1 * 255, step=0.02 * 255, steps=20, high=255.0)
    pixels = 255 * rows[0]
    plain = robust_accuracy(network, *rows, ATTACKS[0], seed=0)
    assert robust_accuracy(network, pixels, rows[1], attack, seed=0, prepare=Pixels((0.0, 255.0))) == plain


def test_a_preparation_without_a_gradient_is_refused(rows):
    features = ScatteringFeatures((1, 8, 8), (0.0, 1.0))
    model = nn.Sequential(_Float(), nn.Flatten(), nn.LazyLinear(10))
    model(features(rows[0][:1]))
    with pytest.raises(UsageError, match="ScatteringFeatures has no gradient"):
        pgd(model, *rows, ATTACKS[0], seed=0, prepare=features)


def test_training_modes_and_weights_are_as_before(network, rows):
    model = nn.Sequential(copy.deepcopy(network), nn.Dropout(0.5)).train()
    model.zero_grad()
    pgd(model, rows[0][:4], rows[1][:4], ATTACKS[0], seed=0)
    assert model.training and model[1].training
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x.to(torch.uint8), y), "inputs must be floating point, got torch.uint8."),
        (lambda x, y: (x, y[:-1]), "there must be a label for each input, got 360 inputs and 359 labels."),
        (lambda x, y: (x[:0], y[:0]), "there must be a label for each input, got 0 inputs and 0 labels."),
        (lambda x, y: (x - 1, y), "inputs must lie between low = 0.0 and high = 1.0 of the attack."),
    ],
)
def test_what_cannot_be_attacked_is_refused(network, rows, change, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        pgd(network, *change(*rows), ATTACKS[0], seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"radius": -1.0}, "radius must be in"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"restarts": 0}, "restarts must be a whole number from 1"),
        ({"low": 1.0, "high": 0.0}, "low must be below high, got 1.0 and 0.0."),
    ],
)
def test_an_attack_that_makes_no_sense_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        LInfinity(**({"radius": 0.1, "step": 0.1, "steps": 3} | settings))


class _Scaled(nn.Module):
    def __init__(self, inner, factor):
        super().__init__()
        self.inner, self.factor = inner, factor

    def forward(self, inputs):
        return self.factor * self.inner(inputs)


class _Float(nn.Module):
    def forward(self, inputs):
        return inputs.float()


def test_the_example_on_the_page_about_effects_runs():
    text = (Path(__file__).parents[2] / "docs" / "effects.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names = {}
    exec(compile(example, "docs/effects.md", "exec"), names)
    assert 0 <= names["left"] <= 1 and names["neighbors"].shape == names["inputs"].shape
