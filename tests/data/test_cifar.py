"""The binary files of CIFAR-10: whole records with a label from 0 to 9."""

import pytest
import torch

from sordino.data.standard import parse_batch, read_batches
from sordino.errors import DataError


def record(label, red=0, green=0, blue=0):
    return bytes([label]) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


def test_planes_become_channels_and_files_follow_one_another(tmp_path):
    (tmp_path / "a").write_bytes(record(3, red=1) + record(9, green=2))
    (tmp_path / "b").write_bytes(record(0, blue=3))
    split = read_batches([tmp_path / "a", tmp_path / "b"])
    assert split.target.tolist() == [3, 9, 0]
    assert split.inputs.dtype == torch.uint8
    assert split.inputs.float().mean(dim=(2, 3)).tolist() == [[1, 0, 0], [0, 2, 0], [0, 0, 3]]


def test_rows_and_columns_of_a_picture_keep_their_places():
    pixels = bytes(range(256)) * 12
    picture = parse_batch(bytes([0]) + pixels, shown="'a'").inputs[0]
    assert bytes(picture.flatten().tolist()) == pixels
    assert picture[0, 1, 2] == 34


@pytest.mark.parametrize("size", [0, 1, 3072, 3074, 2 * 3073 - 1])
def test_a_file_that_is_not_whole_records_is_refused(size):
    with pytest.raises(DataError, match=f"records of 3073 bytes, found {size} bytes"):
        parse_batch(bytes(size), shown="'a'")


def test_a_label_above_nine_is_refused_by_its_place_and_not_by_its_value():
    with pytest.raises(DataError, match="in record 1") as refused:
        parse_batch(record(0) + record(77), shown="'a'")
    assert "77" not in str(refused.value)
