"""R-GAP: layer by layer back to the image, with the equations that noise and masks leave."""

import math

import pytest
import torch
from torch import nn

from sordino.attacks.reconstruction import Likeness, Recursive, observe, public_pictures
from sordino.attacks.reconstruction.attack import known_network
from sordino.attacks.reconstruction.r_gap import gradient_matrix, margins, output_matrix
from sordino.data import root
from sordino.errors import UsageError
from sordino.kernel.randomness import Key

STARTS = Key.from_seed(0).stream("starts")


def rebuilt(known, picture, label, **sent):
    gradient = known.gradient(known.normalised(picture), torch.tensor([label]))
    return Recursive().reconstruct(known, observe(gradient, known.layout, **sent), STARTS)


@pytest.mark.parametrize("label", [0, 1])
def test_a_plain_gradient_gives_the_picture_away_under_either_label(recursive, pictures, label):
    for place in range(4):
        picture = pictures[place : place + 1]
        assert Likeness.of(picture, rebuilt(recursive, picture, label)).mse < 1e-10


def test_a_mask_without_noise_leaves_enough_equations_at_first(recursive, pictures):
    assert Likeness.of(pictures[:1], rebuilt(recursive, pictures[:1], 1, rate=0.02)).mse < 1e-3


def test_the_error_rises_with_the_noise(recursive, pictures):
    errors = [Likeness.of(pictures[:1], rebuilt(recursive, pictures[:1], 1, noise_std=s)).mse for s in (0, 1e-5, 1e-2)]
    assert errors == sorted(errors) and errors[2] > 100 * errors[0]


@pytest.mark.parametrize("u", [-40.0, -1.0, -1e-6, 1e-6, 0.5, 1.27, 1.3, 4.0, 30.0])
def test_the_margin_is_among_the_roots(u):
    product = -u / (1 + math.exp(u))
    assert min(abs(root - u) for root in margins(product)) < 1e-6 * max(1, abs(u))
    assert len(margins(product)) == (1 if u < 0 else 2)


def test_both_matrices_say_what_the_convolution_does():
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False).double()
    x = torch.randn(1, 2, 5, 6, dtype=torch.float64)
    out = layer(x)
    back = torch.randn_like(out)
    (gradient,) = torch.autograd.grad(out, layer.weight, back)
    assert torch.allclose(output_matrix(layer, (5, 6)) @ x.flatten(), out.flatten())
    by_channel = gradient_matrix(layer, back, (5, 6)) @ x[0].flatten(1).T
    assert torch.allclose(by_channel, gradient.permute(0, 2, 3, 1).reshape(-1, 2))


def test_a_network_with_biases_or_another_loss_is_refused(hidden):
    with pytest.raises(UsageError, match="logistic loss"):
        Recursive().check(hidden)


@pytest.mark.slow
@pytest.mark.skipif(not (root() / "cifar10").exists(), reason="CIFAR-10 is not in the data folder")
def test_cnn6_gives_a_photograph_away():
    pixels, target, facts = public_pictures("cifar10", 1)
    known = known_network("cnn6", facts, seed=0)
    assert Likeness.of(pixels, rebuilt(known, pixels, int(target[0]))).mse < 1e-3
