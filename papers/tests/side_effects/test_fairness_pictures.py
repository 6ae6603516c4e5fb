"""Pictures that are changed, chosen and turned: what a table of this family is given."""

from __future__ import annotations

import pytest
import torch
from made_up import pictures_of

from sordino.errors import DataError
from sordino_papers.side_effects import class_size, image_sets, rotation
from sordino_papers.side_effects.class_size import OneSmallClass
from sordino_papers.side_effects.image_sets import ImageSet, Padding, Rotation, as_images, normaliser
from sordino_papers.side_effects.rotation import RotatedTestImages
from sordino_papers.side_effects.trials import LENET

GENERATOR = torch.Generator().manual_seed(0)
SOME = torch.rand(6, 1, 28, 28, generator=GENERATOR)


@pytest.fixture(autouse=True)
def made_up(monkeypatch):
    for module in (image_sets, class_size, rotation):
        monkeypatch.setattr(module, "load", lambda name: pictures_of(rows=200, public=60))
    yield
    image_sets._rows.cache_clear()


@pytest.mark.parametrize(("pixels", "percent"), [(0, 0), (5, 26), (14, 50), (23, 62), (42, 75)])
def test_padding_is_the_share_of_the_side_that_the_paper_names(pixels: int, percent: int) -> None:
    white = Padding(pixels)(torch.ones(1, 1, 28, 28))
    assert white.shape == (1, 1, 28, 28) and float(white.min()) >= 0.0 and float(white.max()) <= 1.0
    assert float(white.mean()) == pytest.approx((1 - percent / 100) ** 2, abs=0.02)
    assert Padding(pixels).percent(28) == percent


@pytest.mark.parametrize(("pixels", "percent"), [(0, 0), (6, 27), (16, 50), (26, 62), (48, 75)])
def test_padding_of_colour_pictures_is_about_the_same_share(pixels: int, percent: int) -> None:
    assert Padding(pixels).percent(32) == percent


@pytest.mark.parametrize("change", [Padding(14), Rotation(37.0)], ids=repr)
def test_every_picture_is_changed_alone(change) -> None:
    alone = torch.cat([change(picture[None]) for picture in SOME])
    torch.testing.assert_close(change(SOME), alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("quarters", [0, 1, 2, 3])
def test_quarters_of_a_turn_are_exact_and_anticlockwise(quarters: int) -> None:
    turned = Rotation(90.0 * quarters)(SOME)
    torch.testing.assert_close(turned, torch.rot90(SOME, quarters, dims=(-2, -1)), rtol=0, atol=1e-5)


def test_rows_are_normalised_after_the_change_and_can_be_taken_back() -> None:
    pictures = ImageSet("mnist", Padding(14), examples=50)
    rows = pictures.rows(LENET)
    raw = pictures_of(rows=200, public=60)
    shown = as_images(rows.inputs, rows.facts)
    torch.testing.assert_close(shown, Padding(14)(raw.train.inputs[:50].float() / 255), rtol=0, atol=1e-5)
    torch.testing.assert_close(normaliser(rows.facts)(shown), rows.inputs, rtol=0, atol=1e-5)
    assert float(rows.inputs.min()) < 0  # black is below the mean


def test_one_class_is_small_and_only_it_is_measured_on() -> None:
    rows = OneSmallClass("mnist", label=5, size=3, others=12).rows(LENET)
    assert torch.bincount(rows.target).tolist() == [12, 12, 12, 12, 12, 3, 12, 12, 12, 12]
    assert rows.test.data[1].unique().tolist() == [5] and len(rows.test.data[1]) == 6


def test_turned_test_rows_are_private_or_public_and_never_both() -> None:
    rows = RotatedTestImages("mnist", Rotation(0.0)).rows(LENET)
    raw = pictures_of(rows=200, public=60)
    assert len(rows) == len(rows.test.data[1]) == 30
    assert torch.equal(torch.cat([rows.target, rows.test.data[1]]), raw.test.target)
    assert not any(bool((rows.inputs == picture).flatten(1).all(1).any()) for picture in rows.test.data[0])


def test_a_set_without_test_rows_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(rotation, "load", lambda name: pictures_of(rows=20, public=0))
    with pytest.raises(DataError, match="no test rows"):
        RotatedTestImages("mnist").rows(LENET)
