"""Spectra: each picture on its own, without its mean, of norm 1, whatever it holds."""

from __future__ import annotations

import math

import pytest
import torch

from sordino.errors import UsageError
from sordino.models.features import Spectrum

PICTURES = torch.rand(6, 3, 12, 10, generator=torch.Generator().manual_seed(0))


def waves(vertical: int, horizontal: int) -> torch.Tensor:
    """[12, 10], one cosine."""
    rows = torch.cos(math.pi * vertical * (torch.arange(12) + 0.5) / 12)
    columns = torch.cos(math.pi * horizontal * (torch.arange(10) + 0.5) / 10)
    return rows[:, None] * columns[None, :]


def test_every_row_has_norm_one_up_to_half_precision():
    lengths = Spectrum((3, 12, 10))(PICTURES).double().norm(dim=1)
    assert torch.allclose(lengths, torch.ones(6, dtype=torch.float64), atol=2e-3)


def test_brightness_and_contrast_change_nothing():
    spectrum = Spectrum((3, 12, 10))
    assert torch.allclose(spectrum(0.2 + 0.5 * PICTURES), spectrum(PICTURES), atol=1e-3)


def test_a_picture_of_one_colour_becomes_zero():
    assert not Spectrum((3, 12, 10))(torch.full((1, 3, 12, 10), 0.7)).abs().gt(1e-2).any()


def test_the_mean_is_one_coefficient_per_channel_if_it_is_wanted():
    grey = torch.full((1, 1, 12, 10), 0.7)
    found = Spectrum((1, 12, 10), mean_weight=2.0)(grey)[0]
    assert found[0] == pytest.approx(1.0, abs=1e-3) and not found[1:].abs().gt(1e-2).any()


def test_middle_grey_is_nothing_even_with_the_mean():
    assert not Spectrum((1, 12, 10), mean_weight=1.0)(torch.full((1, 1, 12, 10), 0.5)).any()


def test_a_grey_picture_has_brightness_only_and_colours_count_as_weighted():
    grey = PICTURES[:, :1].expand(-1, 3, -1, -1)
    brightness, *differences = Spectrum((3, 12, 10), colour_weight=4.0)(grey).chunk(3, dim=1)
    assert brightness.abs().max() > 0.1 and max(float(one.abs().max()) for one in differences) < 1e-2
    plain, weighted = (
        Spectrum((3, 12, 10), colour_weight=weight)(PICTURES).double().chunk(3, dim=1) for weight in (1, 4)
    )
    ratios = [weighted[channel].norm(dim=1) / plain[channel].norm(dim=1) for channel in range(3)]
    assert torch.allclose(ratios[1] / ratios[0], torch.full((6,), 4.0, dtype=torch.float64), rtol=1e-2)
    assert torch.allclose(ratios[2] / ratios[0], torch.full((6,), 4.0, dtype=torch.float64), rtol=1e-2)


def test_one_wave_has_one_coefficient():
    found = Spectrum((1, 12, 10), below=20.0)(waves(3, 2)[None, None])[0]
    assert found.abs().max() == pytest.approx(1.0, abs=1e-3) and (found.abs() > 1e-3).sum() == 1


def test_a_power_raises_fast_waves_by_their_frequency():
    both = (waves(0, 1) + waves(0, 4))[None, None]
    flat, raised = (Spectrum((1, 12, 10), power=power, below=20.0)(both)[0].double() for power in (0.0, 1.0))
    slow, fast = flat.abs().topk(2).indices.sort().values
    assert raised[fast] / raised[slow] == pytest.approx(4 * float(flat[fast] / flat[slow]), rel=1e-2)


def test_waves_at_or_above_the_limit_are_left_out():
    assert not Spectrum((1, 12, 10), below=5.0)(waves(3, 4)[None, None]).abs().gt(1e-2).any()


def test_rows_do_not_see_one_another():
    spectrum = Spectrum((3, 12, 10))
    assert torch.equal(spectrum(PICTURES)[2:3], spectrum(PICTURES[2:3]))


def test_bytes_and_fractions_are_the_same_pictures():
    levels = (PICTURES * 255).round()
    spectrum = Spectrum((3, 12, 10))
    assert torch.equal(spectrum(levels.to(torch.uint8)), spectrum(levels / 255))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"input_shape": (12, 10)}, "input_shape must be 3 whole numbers, got tuple of length 2"),
        ({"input_shape": (1, 12, 10), "below": 0.5}, "below must be above 1 half wave per image, got 0.5"),
        ({"input_shape": (1, 12, 10), "power": -1.0}, "power must be"),
    ],
)
def test_what_makes_no_spectrum_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Spectrum(**settings)


def test_pictures_of_another_shape_are_refused():
    with pytest.raises(UsageError, match="rows of shape"):
        Spectrum((1, 12, 10))(PICTURES)
