"""SVHN's MATLAB files: structure is checked before arrays are read, and 10 stands for the digit 0."""

import io

import numpy as np
import pytest
import torch
from scipy.io import savemat

from sordino.data.standard import parse_digits, read_digits
from sordino.errors import DataError

PICTURES = np.random.RandomState(0).randint(0, 256, (32, 32, 3, 4)).astype(np.uint8)
LABELS = np.array([[1], [10], [9], [2]], dtype=np.uint8)


def mat(**arrays):
    buffer = io.BytesIO()
    savemat(buffer, arrays, do_compression=True)
    return buffer.getvalue()


def test_pictures_come_channels_first_and_ten_is_the_digit_zero(tmp_path):
    (tmp_path / "a.mat").write_bytes(mat(X=PICTURES, y=LABELS))
    split = read_digits(tmp_path / "a.mat")
    assert split.target.tolist() == [1, 0, 9, 2]
    assert split.inputs.dtype == torch.uint8
    assert split.inputs.shape == (4, 3, 32, 32)
    assert split.inputs[3, 2, 5, 7] == PICTURES[5, 7, 2, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (mat(X=PICTURES), "must contain the arrays X and y"),
        (mat(X=PICTURES.astype(float), y=LABELS), "in uint8, found .* in double"),
        (mat(X=PICTURES[:31], y=LABELS), r"shape \(32, 32, 3, n\)"),
        (mat(X=PICTURES[..., 0], y=LABELS), r"shape \(32, 32, 3, n\)"),
        (mat(X=PICTURES, y=LABELS[:3]), r"y of shape \(4, 1\)"),
        (mat(X=PICTURES, y=np.array([["a"], ["b"], ["c"], ["d"]])), "y"),
        (mat(X=PICTURES, y=LABELS + 1), "outside 1..10 in record 1"),
        (mat(X=PICTURES, y=LABELS * 0.5), "outside 1..10 in record 0"),
        (mat(y=LABELS, X=PICTURES)[:-100], "not a valid MATLAB 5 file"),
        (b"", "not a valid MATLAB 5 file"),
        (b"<html>not here</html>" * 50, "not a valid MATLAB 5 file"),
    ],
)
def test_another_structure_is_refused(content, message):
    with pytest.raises(DataError, match=message):
        parse_digits(content, shown="'a.mat'")
