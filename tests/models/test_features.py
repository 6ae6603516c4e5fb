"""What networks are given in place of raw inputs is a function of each row and of public constants."""

import pytest
import torch
import torch.nn.functional as F

from sordino.data import load
from sordino.data.dataset import Facts
from sordino.data.standard import is_complete, root
from sordino.data.synthetic import DeadLeaves
from sordino.errors import UsageError
from sordino.models import build
from sordino.models.features import (
    GroupedScattering,
    Pixels,
    Scattering2D,
    ScatteringFeatures,
    StandardisedScattering,
    scattering_features,
)
from sordino.models.features.prepared import opponent

GREY, COLOUR = Facts("grey", (1, 28, 28), 10), Facts("colour", (3, 32, 32), 10)


def pictures(*shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_grey_features_are_normalised_logarithms_of_the_coefficients():
    given = pictures(3, 1, 28, 28)
    logarithms = torch.log(1 + Scattering2D()(given[:, 0] / 255).clamp(min=0) / 0.02)
    expected = F.group_norm(logarithms, 27)
    torch.testing.assert_close(scattering_features(given, GREY).float(), expected, rtol=2e-3, atol=2e-3)


def test_grouped_features_are_normalised_coefficients_without_a_logarithm():
    given = pictures(3, 1, 28, 28)
    expected = F.group_norm(Scattering2D()(given[:, 0] / 255), 27)
    torch.testing.assert_close(GroupedScattering((1, 28, 28))(given).float(), expected, rtol=2e-3, atol=2e-3)


def test_the_small_network_on_scattering_is_given_grouped_features():
    assert build("h-cnn-s", GREY, seed=0).features == GroupedScattering((1, 28, 28))


def test_a_grouped_row_depends_on_itself_alone_and_is_finite_without_contrast():
    given, features = pictures(5, 1, 28, 28), GroupedScattering((1, 28, 28))
    torch.testing.assert_close(features(given[2:3])[0], features(given)[2], rtol=2e-3, atol=2e-3)
    assert features(torch.zeros(1, 1, 28, 28)).isfinite().all()


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


def moments(features):
    return features.double().mean(dim=(0, 2, 3)), features.double().std(dim=(0, 2, 3))


@pytest.fixture(scope="module")
def standardised():
    return StandardisedScattering((3, 32, 32))


def test_brightness_has_mean_zero_and_variance_one_in_drawn_pictures(standardised):
    others = DeadLeaves((3, 32, 32)).draw(400, torch.Generator().manual_seed(1)).pictures
    mean, std = moments(standardised(others)[:, :81])
    assert float(mean.abs().max()) < 0.2
    assert 0.8 < float(std.min()) < float(std.max()) < 1.2


def test_standardised_features_are_the_coefficients_on_another_scale(standardised):
    one, other = (pictures(40, 3, 32, 32)[part] for part in (slice(20), slice(20, 40)))
    normal, averages = Pixels(), [0, 81, 162]  # of each axis; the average is linear
    raw = Scattering2D(shape=(32, 32))(opponent(normal(one)) - opponent(normal(other))).flatten(1, 2)[:, averages]
    scaled = (standardised(one).float() - standardised(other).float())[:, averages]
    torch.testing.assert_close(scaled / scaled.std(), raw / raw.std(), rtol=0, atol=0.02)


def test_grey_pictures_differ_along_the_axis_of_brightness_alone():
    dark, bright = (opponent(torch.full((1, 3, 4, 4), level)) for level in (0.2, 0.7))
    difference = (bright - dark)[0, :, 0, 0]
    assert float(difference[0]) == pytest.approx(0.5 * 3**0.5, rel=1e-5)
    assert float(difference[1:].abs().max()) < 1e-6


def test_axes_of_colour_are_at_right_angles():
    """So that colours keep their distances, but for how wide each axis is taken to be."""
    each = opponent(torch.eye(3)[:, :, None]) - opponent(torch.zeros(1, 3, 1))
    widths = each[:, :, 0].norm(dim=0)
    gram = (each[:, :, 0] / widths).T @ (each[:, :, 0] / widths)
    torch.testing.assert_close(gram, torch.eye(3), rtol=0, atol=1e-6)
    assert [round(float(width), 4) for width in widths] == [1.0, 3.3333, 6.6667]


@pytest.mark.skipif(not is_complete("cifar10", root()), reason="CIFAR-10 is not there")
def test_colours_of_photographs_are_about_as_wide_along_each_axis_and_hardly_go_together():
    """The constants are those of other photographs, so they fit only roughly. Red, green and blue do go together."""
    pixels = Pixels()(load("cifar10").test.inputs[:500])
    along = opponent(pixels).transpose(0, 1).flatten(1)
    width = along.std(dim=1)
    assert 0.5 < float((width[1:] / width[0]).min()) < float((width[1:] / width[0]).max()) < 2.0
    assert float((torch.corrcoef(along) - torch.eye(3)).abs().max()) < 0.35
    assert float(torch.corrcoef(pixels.transpose(0, 1).flatten(1)).min()) > 0.75


def test_a_standardised_row_depends_on_itself_alone(standardised):
    given = pictures(5, 3, 32, 32)
    torch.testing.assert_close(standardised(given[2:3])[0], standardised(given)[2], rtol=2e-3, atol=2e-3)
    assert standardised(torch.full((1, 3, 32, 32), 128, dtype=torch.uint8)).isfinite().all()


@pytest.mark.skipif(not is_complete("cifar10", root()), reason="CIFAR-10 is not there")
def test_moments_of_drawn_pictures_are_near_those_of_photographs(standardised):
    mean, std = moments(standardised(load("cifar10").test.inputs[:500]))
    assert float(mean.abs().max()) < 0.8
    assert 0.5 < float(std.min()) < float(std.max()) < 1.7


@pytest.mark.parametrize("shape", [(784,), (2, 28, 28), (1, 4, 4)])
def test_scattering_refuses_what_is_no_picture(shape):
    with pytest.raises(UsageError, match=r"scattering needs images with 1 or 3 channels"):
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
    with pytest.raises(UsageError, match=r"must have 1 or 3 constants .channels., got 2"):
        Pixels(mean=(0.1, 0.2))(torch.zeros(1, 3, 2, 2))
    with pytest.raises(UsageError, match=r"std\[0\] must be a finite number above 0"):
        Pixels(std=(0.0,))
    with pytest.raises(UsageError, match="low < high"):
        Pixels((1.0, 1.0))
