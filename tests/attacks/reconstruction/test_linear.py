"""The input of a linear first layer is read from its gradient, less exactly the more is masked."""

import pytest
import torch

from sordino.attacks.reconstruction import FirstLayer, Likeness, observe
from sordino.attacks.reconstruction.linear_layer import by_best_row, by_least_squares
from sordino.errors import UsageError
from sordino.kernel.randomness import Key

STARTS = Key.from_seed(0).stream("starts")


def error(known, picture, **sent):
    gradient = known.gradient(known.normalised(picture), torch.tensor([3]))
    return Likeness.of(picture, FirstLayer().reconstruct(known, observe(gradient, known.layout, **sent), STARTS)).mse


@pytest.mark.parametrize("network", ["linear", "hidden"])
def test_a_plain_gradient_gives_the_picture_away(network, pictures, request):
    assert error(request.getfixturevalue(network), pictures[:1]) < 1e-10


def test_the_best_row_and_all_rows_agree_without_noise(linear, pictures):
    inputs = linear.normalised(pictures[:1])
    weight, bias = linear.gradients(inputs, torch.tensor([3]))
    assert torch.allclose(by_best_row(weight, bias), inputs.flatten(), atol=1e-5)
    assert torch.allclose(by_least_squares(weight, bias, torch.ones_like(weight).bool()), inputs.flatten(), atol=1e-5)


def test_the_error_rises_with_the_noise_and_with_the_rate(linear, pictures):
    def mean(**sent):
        return sum(error(linear, pictures[:1], seed=seed, **sent) for seed in range(20)) / 20

    by_noise = [mean(noise_std=std) for std in (0.0, 1e-3, 3e-2)]
    by_rate = [mean(noise_std=3e-2, rate=rate) for rate in (0.0, 0.5, 0.9)]
    assert by_noise == sorted(by_noise) and by_rate == sorted(by_rate)
    assert by_noise[2] > 10 * by_noise[1] and by_rate[2] > 2 * by_rate[0]


def test_a_network_that_begins_with_something_else_is_refused(recursive):
    with pytest.raises(UsageError, match="begins with a linear layer with a bias, got Conv2d"):
        FirstLayer().check(recursive)
