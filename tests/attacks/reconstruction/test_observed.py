"""Observed gradients with noise and masks, and the similarity of two images."""

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from sordino.attacks.reconstruction import Likeness, observe
from sordino.attacks.reconstruction.similarity import structural_similarity
from sordino.encodings import RandomSparsify
from sordino.encodings.sparsify import ConstantRate
from sordino.errors import UsageError
from sordino.kernel.randomness import Key
from sordino.kernel.states import Dense, Layout

LAYOUT = Layout(("w", "b"), ((300, 100), (1000,)))
GRADIENT = torch.linspace(-1, 1, LAYOUT.size)


def test_a_plain_gradient_is_sent_as_it_is():
    sent = observe(GRADIENT, LAYOUT)
    assert torch.equal(sent.value, GRADIENT) and sent.keep.all()
    assert [tuple(part.shape) for part in sent.tensors().values()] == list(LAYOUT.shapes)


def test_noise_has_its_standard_deviation_on_each_coordinate():
    noise = observe(GRADIENT, LAYOUT, noise_std=0.03).value - GRADIENT
    assert float(noise.std()) == pytest.approx(0.03, rel=0.02) and abs(float(noise.mean())) < 1e-3


def test_the_mask_is_that_of_the_encoding_that_trains():
    sparsify = RandomSparsify(0.9, epochs=1, steps_per_epoch=1, schedule=ConstantRate())
    codec = sparsify.codec(sparsify.init(LAYOUT), 2, Key.from_seed(5).stream("coding"))
    encoded = next(codec.encode(Dense(GRADIENT[None], LAYOUT)).rows(1))[0]
    sent = observe(GRADIENT, LAYOUT, rate=0.9, seed=5, row=2)
    assert torch.equal(sent.value, encoded.to(sent.value.dtype))
    assert int(sent.keep.sum()) == LAYOUT.size - int(0.9 * LAYOUT.size)


def test_a_higher_rate_shows_a_part_of_what_a_lower_one_shows():
    low, high = (observe(GRADIENT, LAYOUT, noise_std=0.1, rate=rate) for rate in (0.3, 0.8))
    assert not (high.keep & ~low.keep).any()
    assert torch.equal(high.value[high.keep], low.value[high.keep])


def test_rows_have_noise_and_masks_of_their_own():
    first, second = (observe(GRADIENT, LAYOUT, noise_std=0.1, rate=0.5, row=row) for row in (0, 1))
    assert not torch.equal(first.keep, second.keep)
    both = first.keep & second.keep
    assert not torch.equal(first.value[both], second.value[both])


@pytest.mark.parametrize("wrong", [{"rate": 1.0}, {"rate": -0.1}, {"noise_std": -1.0}, {"noise_std": math.nan}])
def test_what_cannot_be_sent_is_refused(wrong):
    with pytest.raises(UsageError, match="must be"):
        observe(GRADIENT, LAYOUT, **wrong)


def test_likeness_of_a_picture_with_itself_is_perfect():
    picture = torch.rand(1, 3, 32, 32)
    found = Likeness.of(picture, picture)
    assert found.mse == 0 and found.psnr == math.inf and found.psnr_or_none is None
    assert found.ssim == pytest.approx(1)


def test_psnr_is_that_of_the_mean_squared_error():
    found = Likeness.of(torch.zeros(1, 1, 16, 16), torch.full((1, 1, 16, 16), 0.1))
    assert found.mse == pytest.approx(0.01) and found.psnr == pytest.approx(20)


def test_ssim_is_the_published_formula():
    """SSIM by scipy's Gaussian filter: standard deviation 1.5, truncated at 3.5, population moments, no borders."""
    x, y = np.random.default_rng(0).random((2, 32, 32))

    def local(values):
        return gaussian_filter(values, 1.5, truncate=3.5)[5:-5, 5:-5]

    mx, my = local(x), local(y)
    vx, vy, vxy = local(x * x) - mx**2, local(y * y) - my**2, local(x * y) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    wanted = ((2 * mx * my + c1) * (2 * vxy + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))).mean()
    found = structural_similarity(torch.from_numpy(x)[None, None], torch.from_numpy(y)[None, None])
    assert found == pytest.approx(wanted, rel=1e-9)


def test_pictures_of_two_shapes_are_refused():
    with pytest.raises(UsageError, match="must have the same shape"):
        Likeness.of(torch.zeros(1, 3, 8, 8), torch.zeros(1, 1, 8, 8))
