"""A folder of pictures: classes from its sub-folders, one shape for all, and nothing from outside it."""

import os
import struct
import sys
import zlib

import numpy as np
import pytest
import torch

from sordino.data import load
from sordino.data.image_folder import load_pictures
from sordino.errors import DataError, UsageError
from sordino.kernel.contribution import LossGradient
from sordino.kernel.records import as_records

Image = pytest.importorskip("PIL.Image", reason="Pillow is missing: install sordino[images]")


def save(path, *, size=(4, 3), mode="L", colour=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)
    return path


def header_of_a_png(width, height):
    """A PNG file that claims a size and holds nothing."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">II", zlib.crc32(body), 10) + b"IDAT"


@pytest.fixture
def cats_and_dogs(tmp_path):
    save(tmp_path / "dog" / "1.png", colour=10)
    save(tmp_path / "cat" / "2.png", colour=20)
    save(tmp_path / "cat" / "1.PNG", colour=30)
    return tmp_path


def test_classes_are_the_sub_folders_in_sorted_order(cats_and_dogs):
    data = load(cats_and_dogs)
    assert data.facts.class_names == ("cat", "dog")
    assert (data.facts.num_classes, data.facts.input_shape, data.facts.input_range) == (2, (1, 3, 4), (0.0, 255.0))
    assert data.train.target.tolist() == [0, 0, 1]
    assert data.train.inputs[:, 0, 0, 0].tolist() == [30, 20, 10]
    assert data.train.inputs.dtype == torch.uint8
    assert data.test is None


def test_colours_come_first_and_pixels_keep_their_places(tmp_path):
    pixels = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    save(tmp_path / "b" / "1.png", mode="RGB", colour=(9, 8, 7))
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a" / "1.png")
    data = load(str(tmp_path))
    assert data.train.inputs[0].tolist() == pixels.transpose(2, 0, 1).tolist()
    assert data.train.inputs[1, :, 0, 0].tolist() == [9, 8, 7]


def test_train_and_test_folders_become_two_splits_with_the_same_classes(tmp_path):
    for part, name in (("train", "cat"), ("train", "dog"), ("test", "dog")):
        save(tmp_path / part / name / "1.jpg")
    data = load(tmp_path)
    assert (data.train.target.tolist(), data.test.target.tolist()) == ([0, 1], [1])
    save(tmp_path / "test" / "fox" / "1.jpg")
    with pytest.raises(DataError, match="a class 'fox' that is not in train"):
        load(tmp_path)


def absent_at_the_end(folder):
    """Whether the picture that comes last is there, and the others are as they were."""
    data = load(folder)
    assert data.facts.input_shape == (1, 3, 4) and data.train.inputs[:3, 0, 0, 0].tolist() == [30, 20, 10]
    assert data.train.target[:3].tolist() == [0, 0, 1]
    return data.train.target[3:].tolist() == [-1] and not data.train.inputs[3:].any()


@pytest.mark.parametrize("odd", [{"size": (5, 3)}, {"mode": "RGB"}])
@pytest.mark.parametrize("name", ["0.png", "3.png"])
def test_a_picture_of_another_shape_counts_as_absent(cats_and_dogs, odd, name):
    """The first as well as the last: no single picture says what the others should be."""
    save(cats_and_dogs / "cat" / name, colour=40, **odd)
    data = load(cats_and_dogs)
    assert data.facts.input_shape == (1, 3, 4)
    assert sorted(data.train.target.tolist()) == [-1, 0, 0, 1]
    assert not data.train.inputs[data.train.target == -1].any()


def test_a_training_on_a_folder_with_a_damaged_picture_is_one_without_it(cats_and_dogs):
    def summed():
        train = load(cats_and_dogs).train
        batch = as_records((train.inputs, train.target)).gather(torch.arange(len(train.target)))
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2))
        each = LossGradient(torch.nn.functional.cross_entropy).of(model, batch, torch.arange(len(batch.units)))
        return each.weighted_sum(torch.ones_like(each.squared_norms()))

    sound = summed()
    (cats_and_dogs / "dog" / "3.png").write_bytes(b"<html>")
    assert torch.equal(summed(), sound)


def test_pictures_that_are_not_mostly_alike_are_refused_and_none_is_named(cats_and_dogs):
    for place in range(3):
        save(cats_and_dogs / "dog" / f"alice{place}.png", size=(9, place + 1))
    with pytest.raises(DataError, match="more than half of the images must be valid") as refused:
        load(cats_and_dogs)
    assert "alice" not in str(refused.value)


def test_a_test_picture_must_have_the_shape_of_the_training_pictures(tmp_path):
    for name in ("cat", "dog"):
        save(tmp_path / "train" / name / "1.png")
        save(tmp_path / "test" / name / "1.png", size=(8, 8))
    with pytest.raises(DataError, match="is 8 x 8"):
        load(tmp_path)


@pytest.mark.parametrize("mode", ["RGBA", "P", "1", "I;16", "LA"])
def test_modes_that_would_have_to_be_converted_are_not_used(cats_and_dogs, mode):
    save(cats_and_dogs / "dog" / "3.png", mode=mode)
    assert absent_at_the_end(cats_and_dogs)


def test_a_public_picture_that_cannot_be_used_is_named(tmp_path):
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            save(tmp_path / part / name / "1.png")
    save(tmp_path / "test" / "cat" / "2.png", mode="P")
    with pytest.raises(DataError, match=r"2\.png' has mode P: allowed are 8-bit gray"):
        load(tmp_path)
    (tmp_path / "test" / "cat" / "2.png").write_bytes(b"<html>")
    with pytest.raises(DataError, match=r"2\.png' is not a valid"):
        load(tmp_path)


@pytest.mark.parametrize(("width", "height"), [(5000, 5000), (60_000, 60_000), (10_000, 10_000)])
def test_a_picture_that_claims_too_many_pixels_is_never_unpacked(cats_and_dogs, width, height, monkeypatch):
    (cats_and_dogs / "dog" / "3.png").write_bytes(header_of_a_png(width, height))
    unpacked = []
    monkeypatch.setattr(Image.Image, "load", lambda image: unpacked.append(image.size))
    with pytest.raises(DataError, match="at most 16777216"):
        load_pictures(cats_and_dogs / "dog", (1, 3, 4))
    assert (width, height) not in unpacked
    monkeypatch.undo()
    assert absent_at_the_end(cats_and_dogs)


def test_a_damaged_picture_counts_as_absent(cats_and_dogs):
    path = cats_and_dogs / "dog" / "3.png"
    whole = (cats_and_dogs / "dog" / "1.png").read_bytes()
    for content in (b"", b"<html>", whole[:50], whole[:20], header_of_a_png(4, 3), b"GIF89a" + bytes(100)):
        path.write_bytes(content)
        assert absent_at_the_end(cats_and_dogs)


def test_a_file_that_is_no_picture_is_named_and_a_hidden_one_is_passed_over(cats_and_dogs):
    (cats_and_dogs / "cat" / ".DS_Store").write_bytes(b"x")
    assert len(load(cats_and_dogs).train.target) == 3
    (cats_and_dogs / "cat" / "notes.txt").write_bytes(b"x")
    with pytest.raises(DataError, match=r"notes\.txt' is not an image file"):
        load(cats_and_dogs)


def test_links_may_stay_within_the_folder_and_not_lead_out_of_it(cats_and_dogs, tmp_path_factory):
    (cats_and_dogs / "dog" / "2.png").symlink_to(cats_and_dogs / "cat" / "2.png")
    assert load(cats_and_dogs).train.inputs[:, 0, 0, 0].tolist() == [30, 20, 10, 20]
    outside = save(tmp_path_factory.mktemp("outside") / "secret.png")
    (cats_and_dogs / "dog" / "3.png").symlink_to(outside)
    with pytest.raises(DataError, match=r"3\.png' is a link to a place outside"):
        load(cats_and_dogs)
    (cats_and_dogs / "dog" / "3.png").unlink()
    (cats_and_dogs / "fox").symlink_to(outside.parent)
    with pytest.raises(DataError, match="fox' is a link to a place outside"):
        load(cats_and_dogs)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_split_that_is_a_link_out_of_the_folder_is_refused(tmp_path, tmp_path_factory, part):
    outside = tmp_path_factory.mktemp("outside")
    for folder in (tmp_path / "train", tmp_path / "test", outside):
        for name in ("cat", "dog"):
            save(folder / name / "1.png")
    (tmp_path / part).rename(tmp_path_factory.mktemp("moved") / part)
    (tmp_path / part).symlink_to(outside)
    with pytest.raises(DataError, match=f"{part}' is a link to a place outside"):
        load(tmp_path)


def test_a_pipe_or_a_folder_in_place_of_a_picture_is_not_read(cats_and_dogs):
    os.mkfifo(cats_and_dogs / "dog" / "3.png")
    assert absent_at_the_end(cats_and_dogs)
    (cats_and_dogs / "dog" / "3.png").unlink()
    (cats_and_dogs / "dog" / "3.png").mkdir()
    assert absent_at_the_end(cats_and_dogs)


def test_a_folder_without_classes_or_without_pictures_is_refused(tmp_path):
    with pytest.raises(DataError, match="at least two, found 0"):
        load(tmp_path)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
    with pytest.raises(DataError, match="is empty"):
        load(tmp_path)


def test_a_single_picture_has_nobody_to_hide_among(tmp_path):
    save(tmp_path / "cat" / "1.png")
    (tmp_path / "dog").mkdir()
    train = load(tmp_path).train
    with pytest.raises(DataError, match="has a single example"):
        as_records((train.inputs, train.target))


def test_without_pillow_the_message_says_what_to_install(cats_and_dogs, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r"install sordino\[images\]"):
        load(cats_and_dogs)
