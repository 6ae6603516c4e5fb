"""Features on disk are what was computed, belong to their owner, and are never taken from a damaged file."""

import os
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load, save

from sordino.errors import UsageError
from sordino.models.features import cache
from sordino.models.features.cache import cached

calls = []


@dataclass(frozen=True)
class Doubled:
    """Twice the input. It notes how many rows it was asked for."""

    version: ClassVar[int] = 1
    factor: float = 2.0
    output_shape: ClassVar[tuple[int, ...]] = (2, 3)

    def __call__(self, inputs):
        calls.append(len(inputs))
        return (self.factor * inputs).to(torch.float16)


@pytest.fixture(autouse=True)
def no_calls():
    calls.clear()


@pytest.fixture
def inputs():
    return torch.arange(60, dtype=torch.float32).reshape(10, 2, 3)


def files(folder):
    return sorted(folder.glob("*.safetensors"))


def test_features_are_computed_once(tmp_path, inputs):
    first = cached(Doubled(), inputs, tmp_path, progress=False)
    second = cached(Doubled(), inputs, tmp_path, progress=False)
    assert calls == [10]
    assert torch.equal(first, second) and torch.equal(first.float(), 2 * inputs)


def test_rows_are_kept_in_blocks_so_that_a_stopped_computation_goes_on(tmp_path, inputs, monkeypatch):
    monkeypatch.setattr(cache, "_BLOCK_BYTES", 4 * 12)
    cached(Doubled(), inputs[:8], tmp_path, progress=False)
    features = cached(Doubled(), inputs, tmp_path, progress=False)
    assert calls == [4, 4, 2] and len(files(tmp_path)) == 3
    assert torch.equal(features.float(), 2 * inputs)


@pytest.mark.parametrize("change", ["value", "dtype", "shape", "configuration", "version"])
def test_anything_else_is_computed_anew(tmp_path, inputs, monkeypatch, change):
    cached(Doubled(), inputs, tmp_path, progress=False)
    transform = Doubled()
    if change == "value":
        inputs = inputs.clone()
        inputs[9, 1, 2] += 1
    elif change == "dtype":
        inputs = inputs.double()
    elif change == "shape":
        inputs = inputs[:9]
    elif change == "configuration":
        transform = Doubled(factor=3.0)
    else:
        monkeypatch.setattr(Doubled, "version", 2)
    features = cached(transform, inputs, tmp_path, progress=False)
    assert len(calls) == 2
    assert torch.equal(features.float(), (transform.factor * inputs).float())


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "text", "longer", "pipe", "folder"])
def test_a_damaged_file_is_computed_anew_and_replaced(tmp_path, inputs, damage):
    cached(Doubled(), inputs, tmp_path, progress=False)
    (path,) = files(tmp_path)
    content = path.read_bytes()
    if damage in ("pipe", "folder"):
        path.unlink()
        os.mkfifo(path) if damage == "pipe" else path.mkdir()
    else:
        flipped = content[:-1] + bytes([content[-1] ^ 1])
        damaged = {"truncated": content[:-5], "empty": b"", "flipped": flipped, "text": b"x" * 500}
        path.write_bytes(damaged.get(damage, content + bytes(1 << 17)))
    features = cached(Doubled(), inputs, tmp_path, progress=False)
    assert torch.equal(features.float(), 2 * inputs) and len(calls) == 2
    if damage != "folder":  # which is left alone
        assert path.read_bytes() == content


@pytest.mark.parametrize("part", ["features", "sha256"])
def test_a_file_of_another_structure_is_not_believed(tmp_path, inputs, part):
    cached(Doubled(), inputs, tmp_path, progress=False)
    (path,) = files(tmp_path)
    parts = load(path.read_bytes())
    parts[part] = parts[part].float()
    path.write_bytes(save(parts))
    assert torch.equal(cached(Doubled(), inputs, tmp_path, progress=False).float(), 2 * inputs)
    assert len(calls) == 2


def test_a_record_that_is_not_finite_has_such_features_on_disk_too(tmp_path, inputs):
    inputs[3, 0, 0] = torch.nan
    first, second = (cached(Doubled(), inputs, tmp_path, progress=False) for _ in range(2))
    assert calls == [10] and first[3].isnan().any() and torch.equal(first.isnan(), second.isnan())


def test_features_are_readable_by_their_owner_only(tmp_path, inputs):
    folder = tmp_path / "features"
    cached(Doubled(), inputs, folder, progress=False)
    (path,) = files(folder)
    assert path.stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path, inputs):
    (tmp_path / "taken").write_text("a file")
    features = cached(Doubled(), inputs, tmp_path / "taken", progress=False)
    assert torch.equal(features.float(), 2 * inputs)


def test_the_default_folder_is_where_the_data_is(tmp_path, inputs, monkeypatch):
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path))
    cached(Doubled(), inputs, progress=False)
    assert len(files(tmp_path / "features")) == 1


def test_no_rows_have_no_features(tmp_path):
    assert cached(Doubled(), torch.zeros(0, 2, 3), tmp_path, progress=False).shape == (0, 2, 3)


def test_a_transform_that_does_not_name_its_configuration_is_refused(tmp_path, inputs):
    with pytest.raises(UsageError, match="transform must be a dataclass"):
        cached(lambda x: x, inputs, tmp_path)
