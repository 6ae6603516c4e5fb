"""Pictures made by a program: reproducible, of their law, and with no row of anybody in them."""

from __future__ import annotations

import pytest
import torch
from torch import Generator

from sordino.data.synthetic import DeadLeaves
from sordino.errors import UsageError


def drawn(count=200, shape=(3, 16, 16), seed=0, leaves=40):
    return DeadLeaves(shape, leaves).draw(count, Generator().manual_seed(seed))


def test_a_seed_decides_every_byte() -> None:
    assert torch.equal(drawn(seed=4).pictures, drawn(seed=4).pictures)
    assert not torch.equal(drawn(seed=4).pictures, drawn(seed=5).pictures)


def test_drawing_does_not_touch_the_randomness_of_others() -> None:
    before = torch.random.get_rng_state()
    drawn(5)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_bytes_of_the_shape_asked_for(channels) -> None:
    found = drawn(7, shape=(channels, 9, 13))
    assert (found.pictures.shape, found.pictures.dtype) == ((7, channels, 9, 13), torch.uint8)
    assert found.numbers.shape == (7, DeadLeaves((channels, 9, 13)).causes)


def test_the_numbers_of_a_law_weigh_about_the_same() -> None:
    numbers = drawn(4000, shape=(3, 2, 2), leaves=1).numbers
    assert float(numbers.mean(dim=0).abs().max()) < 0.5
    assert 0.3 < float(numbers.std(dim=0).min()) and float(numbers.std(dim=0).max()) < 1.5


def test_a_picture_has_about_the_colour_of_its_law() -> None:
    found = drawn(500)
    pixels, wanted = found.pictures.float().mean(dim=(2, 3)), found.numbers[:, -3:]
    for channel in range(3):
        correlation = torch.corrcoef(torch.stack([pixels[:, channel], wanted[:, channel]]))[0, 1]
        assert float(correlation) > 0.8


def test_colours_that_spread_more_make_pictures_that_vary_more() -> None:
    found = drawn(500)
    variation, spread = found.pictures.float().std(dim=(2, 3)).mean(dim=1), found.numbers[:, 8]
    assert float(torch.corrcoef(torch.stack([variation, spread]))[0, 1]) > 0.4


def test_a_leaf_hides_what_lies_below() -> None:
    """With so many leaves that they cover everything, nothing of the background is left in most places."""
    few, many = drawn(300, leaves=1), drawn(300, leaves=60)
    spread = lambda pictures: pictures.float().std(dim=(2, 3)).mean()  # noqa: E731
    assert float(spread(many.pictures)) > 1.5 * float(spread(few.pictures))


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((2, 8, 8), "must be channels \\(1 or 3\\)"),
        ((3, 8), "input_shape must be 3 whole numbers"),
        ((3, 0, 8), r"input_shape\[1\] must be a whole number from 1"),
    ],
)
def test_a_shape_that_is_no_picture_is_refused(shape, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        DeadLeaves(shape)
