"""Gradient inversion: an image whose gradient has the observed direction, in the coordinates that were sent."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sordino.attacks.reconstruction import GradientInversion, KnownNetwork, Likeness, observe, public_pictures
from sordino.attacks.reconstruction.attack import known_network
from sordino.attacks.reconstruction.gallery import Sent, mean_error, reconstruct
from sordino.attacks.reconstruction.inverting import TargetDirection, read_label
from sordino.data import root
from sordino.errors import UsageError
from sordino.kernel.randomness import Key

STARTS = Key.from_seed(0).stream("starts")


def seen(known, picture, label, **sent):
    return observe(known.gradient(known.normalised(picture), torch.tensor([label])), known.layout, **sent)


def test_a_plain_gradient_gives_the_picture_away(hidden, pictures):
    found = GradientInversion(150).reconstruct(hidden, seen(hidden, pictures[:1], 3), STARTS)
    assert Likeness.of(pictures[:1], found).mse < 0.005


def test_the_error_rises_with_the_rate(hidden, pictures):
    errors = []
    for rate in (0.0, 0.5, 0.95):
        sent, labels = Sent(0.03, rate), torch.arange(4)
        found = reconstruct(GradientInversion(60), hidden, pictures, labels, sent, rows=range(4), seed=0)
        errors.append(mean_error(list(found)).value)
    assert errors == sorted(errors) and errors[2] > 2 * errors[0]


@pytest.mark.parametrize("sent", [{}, {"noise_std": 1e-3}, {"noise_std": 1e-3, "rate": 0.9}])
def test_the_label_is_read_off_the_last_layer(hidden, pictures, sent):
    for label in range(10):
        assert read_label(hidden, seen(hidden, pictures[:1], label, **sent)).tolist() == [label]


def test_coordinates_that_were_not_sent_are_not_compared(hidden, pictures):
    observed = seen(hidden, pictures[:1], 3, rate=0.7)
    whole = hidden.gradients(hidden.normalised(pictures[:1]), torch.tensor([3]))
    assert TargetDirection.of(observed).distance(whole)[0] == pytest.approx(0, abs=1e-6)
    other = [g + 100 * ~k for g, k in zip(whole, observed.kept().values(), strict=True)]
    assert TargetDirection.of(observed).distance(other)[0] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("rate", [0.0, 0.7])
def test_the_slope_of_the_cost_is_its_derivative(hidden, pictures, rate):
    hidden.model.double()
    observed = seen(hidden, pictures[:1], 3, rate=rate)
    attack, wanted, label = GradientInversion(1, total_variation=0.1), TargetDirection.of(observed), torch.tensor([3])
    inputs = hidden.normalised(pictures[1:2]).requires_grad_()
    along = torch.randn(inputs.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, slope = attack._cost(hidden, wanted, inputs, label)
    ahead, behind = (attack._cost(hidden, wanted, inputs + h * along, label)[0] for h in (1e-6, -1e-6))
    assert (ahead - behind) / 2e-6 == pytest.approx(float((slope * along).sum()), rel=1e-5)


def test_the_cheapest_of_several_starts_counts(hidden, pictures):
    observed = seen(hidden, pictures[:1], 3)
    once, often = (GradientInversion(5, restarts).reconstruct(hidden, observed, STARTS) for restarts in (1, 4))

    def cost(found):
        inputs = hidden.normalised(found).requires_grad_()
        return GradientInversion(5)._cost(hidden, TargetDirection.of(observed), inputs, torch.tensor([3]))[0]

    assert cost(often) <= cost(once) + 1e-5


def test_one_seed_gives_one_picture_within_the_range(hidden, pictures):
    observed = seen(hidden, pictures[:1], 3, noise_std=1.0)
    first, second = (GradientInversion(5, learning_rate=5.0).reconstruct(hidden, observed, STARTS) for _ in range(2))
    assert torch.equal(first, second) and first.min() >= 0 and first.max() <= 1


def test_every_iteration_reports_progress(hidden, pictures):
    ticks = []
    attack = GradientInversion(3, restarts=2)
    attack.reconstruct(hidden, seen(hidden, pictures[:1], 3), STARTS, lambda: ticks.append(1))
    assert len(ticks) == attack.ticks == 6


def test_a_gradient_of_zeros_and_a_network_without_classes_are_refused(hidden, recursive):
    zeros = observe(torch.zeros(hidden.layout.size), hidden.layout)
    with pytest.raises(UsageError, match="must be finite and not zero"):
        TargetDirection.of(zeros)
    with pytest.raises(UsageError, match="output for each class"):
        GradientInversion(1).check(recursive)


def test_a_network_is_attacked_in_eval_mode_and_keeps_its_own():
    network = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(100, 2)).train()
    known = KnownNetwork(network, F.cross_entropy, (1, 10, 10))
    first, second = (known.gradient(torch.ones(1, 1, 10, 10), torch.tensor([0])) for _ in range(2))
    assert torch.equal(first, second) and network.training


@pytest.mark.parametrize("wrong", [{"iterations": 0}, {"restarts": 0}, {"total_variation": -1}, {"learning_rate": 0}])
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(UsageError, match=f"{next(iter(wrong))} must be"):
        GradientInversion(**wrong)


@pytest.mark.slow
@pytest.mark.skipif(not (root() / "cifar10").exists(), reason="CIFAR-10 is not in the data folder")
def test_resnet_34_gives_the_shapes_of_a_photograph_away():
    pixels, target, facts = public_pictures("cifar10", 1)
    known = known_network("resnet-34-batchnorm", facts, seed=0)
    found = GradientInversion(200).reconstruct(known, seen(known, pixels, int(target[0])), STARTS)
    likeness = Likeness.of(pixels, found)
    assert likeness.mse < min(0.04, 0.9 * likeness.flat_mse)
