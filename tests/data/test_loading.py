"""Data sets by name and by path: the right reader, the published files only, and one line for whatever is wrong."""

import hashlib
import os

import numpy as np
import pytest
import torch

import sordino.data
from sordino.data import load
from sordino.data.published import SOURCES, PublishedFile
from sordino.data.standard import NAMES, is_complete
from sordino.errors import DataError, StateError, UsageError


def skip_unless_here(name):
    folder = sordino.data.root()
    return pytest.mark.skipif(not is_complete(name, folder), reason=f"{name} is missing: its files are not in {folder}")


def test_digits_always_come_in_the_same_split():
    data = load("digits")
    assert (data.train.inputs.shape, data.test.inputs.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert data.facts.input_range == (0.0, 16.0)
    assert (data.train.inputs.dtype, int(data.train.inputs.max()), int(data.train.inputs.min())) == (torch.uint8, 16, 0)
    digest = hashlib.sha256(bytes(data.test.inputs.flatten().tolist()) + bytes(data.test.target.tolist()))
    assert digest.hexdigest().startswith("a522c62c2f86f296")


@pytest.mark.parametrize(
    ("name", "shape", "first_labels"),
    [
        pytest.param("mnist", (60_000, 1, 28, 28), [5, 0, 4, 1, 9], marks=skip_unless_here("mnist")),
        pytest.param("fashion-mnist", (60_000, 1, 28, 28), [9, 0, 0, 3, 0], marks=skip_unless_here("fashion-mnist")),
        pytest.param("cifar10", (50_000, 3, 32, 32), [6, 9, 9, 4, 1], marks=skip_unless_here("cifar10")),
        pytest.param("svhn", (73_257, 3, 32, 32), [1, 9, 2, 3, 2], marks=skip_unless_here("svhn")),
    ],
)
def test_a_standard_set_has_its_known_rows_and_its_published_mean(name, shape, first_labels):
    data = load(name)
    assert data.train.inputs.shape == shape
    assert data.train.inputs.dtype == torch.uint8
    assert data.train.target[:5].tolist() == first_labels
    assert data.facts.input_shape == shape[1:]
    assert len(data.facts.class_names) == data.facts.num_classes == 10
    assert data.test.inputs.shape[1:] == shape[1:]
    means = data.train.inputs.sum(dim=(0, 2, 3)) / (255 * shape[0] * shape[2] * shape[3])
    assert means.tolist() == pytest.approx(data.facts.mean, abs=6e-5)


@skip_unless_here("adult")
def test_adult_comes_through_its_own_schema():
    data = load("adult")
    assert data.facts.num_classes == 2
    assert (len(data.train.target), len(data.test.target)) == (32_561, 16_281)


def test_the_root_is_chosen_by_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path))
    assert sordino.data.root() == tmp_path
    monkeypatch.setenv("SORDINO_DATA", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert sordino.data.root() == tmp_path / "home" / ".cache" / "sordino"


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "svhn", "adult"])
def test_a_set_that_is_not_here_says_how_to_get_it(name, tmp_path):
    with pytest.raises(DataError, match=f"run `sordino data fetch {name}`"):
        load(name, root=tmp_path)


def test_a_file_that_is_not_the_published_one_is_refused_and_kept(tmp_path):
    (tmp_path / "mnist").mkdir()
    files = [file for source in SOURCES["mnist"] for file in source.kept]
    for file in files:
        with (tmp_path / "mnist" / file.name).open("wb") as empty:
            empty.truncate(file.size)
    first = tmp_path / "mnist" / files[0].name
    with pytest.raises(StateError, match="is not the published file: SHA-256"):
        load("mnist", root=tmp_path)
    assert first.stat().st_size == files[0].size
    first.write_bytes(b"short")
    with pytest.raises(StateError, match="has 5 bytes, the published file has 9912422"):
        load("mnist", root=tmp_path)
    assert first.read_bytes() == b"short"


def test_a_file_that_changes_after_it_was_verified_is_verified_again(tmp_path):
    file = PublishedFile("a", 4, hashlib.sha256(b"good").hexdigest())
    path = tmp_path / "a"
    path.write_bytes(b"good")
    assert file.verify(tmp_path) == path
    path.write_bytes(b"evil")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    with pytest.raises(StateError, match="not the published file"):
        file.verify(tmp_path)


def test_every_published_file_has_an_https_address_and_a_whole_hash():
    sources = [source for each in SOURCES.values() for source in each]
    for source in sources:
        assert source.url.startswith("https://")
        assert source.url.endswith("/" + source.file.name)
        for file in (source.file, *source.unpacked):
            assert len(bytes.fromhex(file.sha256)) == 32
            assert file.size > 0
    hashes = [file.sha256 for source in sources for file in (source.file, *source.unpacked)]
    assert len(set(hashes)) == len(hashes)


@pytest.mark.parametrize(("typo", "meant"), [("minst", "mnist"), ("cifar-10", "cifar10"), ("Digits", "digits")])
def test_an_unknown_name_is_answered_with_the_nearest_one(typo, meant):
    with pytest.raises(UsageError, match=f"did you mean '{meant}'"):
        load(typo)


def test_a_name_like_no_other_is_answered_with_all_names():
    with pytest.raises(UsageError, match=", ".join(NAMES)):
        load("zzzzzz")


@pytest.mark.parametrize("source", [7, None, b"digits", "a\0b", "a\0.npz", "x" * 5000])
def test_what_can_be_neither_a_name_nor_a_path_is_a_usage_error(source):
    with pytest.raises(UsageError) as refused:
        load(source)
    assert len(str(refused.value)) < 400


def test_facts_of_a_known_set_or_of_a_folder_cannot_be_replaced_by_a_schema(tmp_path):
    for source in ("digits", tmp_path):
        with pytest.raises(UsageError, match="leave schema out"):
            load(source, schema="facts.toml")


def test_a_table_needs_a_schema(tmp_path):
    for name in ("a.csv", "a.PARQUET"):
        with pytest.raises(UsageError, match="needs schema="):
            load(tmp_path / name)


def test_a_path_that_is_not_there_or_of_no_known_format_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such file or folder"):
        load(tmp_path / "nothing")
    (tmp_path / "a.pkl").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(DataError, match="has an unknown format"):
        load(tmp_path / "a.pkl")
    with pytest.raises(DataError, match="has an unknown format"):
        load("/dev/zero")


@pytest.fixture
def schema(tmp_path):
    path = tmp_path / "facts.toml"
    path.write_text("confirmed_public = true\n[inputs]\nshape = [3]\n[target]\nclasses = 2\n")
    return path


def test_what_is_not_a_readable_regular_file_is_refused(tmp_path, schema):
    (tmp_path / "folder.npz").mkdir()
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "device.npz").symlink_to("/dev/zero")
    (tmp_path / "empty.npz").touch()
    (tmp_path / "loop.npz").symlink_to(tmp_path / "loop.npz")
    for name in ("folder", "pipe", "device", "empty", "loop", "missing"):
        with pytest.raises(DataError, match=f"{name}.npz"):
            load(tmp_path / f"{name}.npz", schema=schema)


@pytest.mark.parametrize("name", ["-rf", "two\nlines", "späß 数据", "a'b\"c", "$(touch x)", "\x1b[31m"])
def test_an_odd_path_is_only_a_path_and_is_escaped_in_messages(tmp_path, schema, name):
    path = tmp_path / f"{name}.npz"
    np.savez(path, inputs=np.zeros((2, 3)), target=np.array([0, 1]))
    assert load(path, schema=schema).train.target.tolist() == [0, 1]
    path.write_bytes(b"")
    with pytest.raises(DataError) as refused:
        load(str(path), schema=schema)
    assert repr(str(path)) in str(refused.value)
    assert str(refused.value).isprintable()
