"""What networks are given in place of raw inputs is a function of each row and of public constants."""

import pytest
import torch
import torch.nn.functional as F

from sordino.data.dataset import Facts
from sordino.errors import UsageError
from sordino.features import Pixels, Scattering2D, ScatteringFeatures, scattering_features

GREY, COLOUR = Facts("grey", (1, 28, 28), 10), Facts("colour", (3, 32, 32), 10)


def pictures(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_grey_features_are_normalised_logarithms_of_the_coefficients():
    given = pictures(3, 1, 28, 28)
    logarithms = torch.log(1 + Scattering2D()(given[:, 0] / 255).clamp(min=0) / 0.02)
    expected = F.group_norm(logarithms, 27)
    torch.testing.assert_close(scattering_features(given, GREY).float(), expected, rtol=2e-3, atol=2e-3)


def test_colour_features_are_243_channels_of_mean_zero_in_each_group():
    features = scattering_features(pictures(2, 3, 32, 32), COLOUR)
    assert features.shape == (2, 243, 8, 8) and features.isfinite().all()
    groups = features.float().reshape(2, 27, -1)
    torch.testing.assert_close(groups.mean(dim=2), torch.zeros(2, 27), rtol=0, atol=1e-3)
    torch.testing.assert_close(groups.std(dim=2), torch.ones(2, 27), rtol=0, atol=2e-3)


def test_a_row_does_not_depend_on_its_neighbours():
    given = pictures(5, 1, 28, 28)
    alone, together = scattering_features(given[2:3], GREY), scattering_features(given, GREY)
    torch.testing.assert_close(alone[0].float(), together[2].float(), rtol=2e-3, atol=2e-3)


def test_bytes_and_numbers_in_a_declared_range_have_the_same_features():
    given = pictures(2, 1, 28, 28)
    in_range = Facts("grey", (1, 28, 28), 10, input_range=(-1.0, 1.0))
    torch.testing.assert_close(
        scattering_features(given / 127.5 - 1, in_range), scattering_features(given, GREY), rtol=2e-3, atol=2e-3
    )


def test_a_row_without_any_contrast_is_finite():
    assert scattering_features(torch.zeros(1, 1, 28, 28), GREY).isfinite().all()
    assert scattering_features(torch.full((1, 3, 32, 32), 0.4), COLOUR).isfinite().all()


@pytest.mark.parametrize("shape", [(784,), (2, 28, 28), (1, 4, 4)])
def test_scattering_refuses_what_is_no_picture(shape):
    with pytest.raises(UsageError, match=r"scattering needs pictures of 1 or 3 channels"):
        ScatteringFeatures(shape)


def test_rows_of_another_shape_are_refused():
    with pytest.raises(UsageError, match=r"rows of shape \(1, 28, 28\), got \(1, 32, 32\)"):
        scattering_features(torch.zeros(2, 1, 32, 32), GREY)


def test_pixels_are_scaled_by_their_range_and_normalised_by_channel():
    given = torch.tensor([[[[0.0]], [[16.0]]]])
    scaled = Pixels((0.0, 16.0), mean=(0.5, 0.25), std=(1.0, 0.5))(given)
    assert scaled.flatten().tolist() == [-0.5, 1.5]
    assert given.flatten().tolist() == [0.0, 16.0]


def test_pixels_outside_the_public_range_are_brought_to_its_ends():
    assert Pixels((0.0, 16.0))(torch.tensor([[-3.0, 40.0]])).tolist() == [[0.0, 1.0]]


def test_a_row_that_is_not_finite_stays_so_and_leaves_the_others_alone():
    given = pictures(3, 1, 28, 28) / 255
    whole = scattering_features(given, GREY)
    given[1, 0, 5, 5] = torch.nan
    features = scattering_features(given, GREY)
    assert features[1].isnan().any()
    torch.testing.assert_close(features[[0, 2]], whole[[0, 2]], rtol=2e-3, atol=2e-3)


def test_constants_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="a constant for each of 3 channels, got 2"):
        Pixels(mean=(0.1, 0.2))(torch.zeros(1, 3, 2, 2))
    with pytest.raises(UsageError, match="std must be above 0"):
        Pixels(std=(0.0,))
    with pytest.raises(UsageError, match="low < high"):
        Pixels((1.0, 1.0))
