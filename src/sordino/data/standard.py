"""Standard datasets by name, and readers of their file formats. All facts stated about them are published.

- digits: 1,797 handwritten digits from scikit-learn, 8 by 8 pixels from 0 to 16. Nothing is downloaded.
- MNIST and Fashion-MNIST, in IDX files: four bytes of magic number, a big-endian length per axis, then one byte per
  entry. The magic number is 0, 0, the type of the entries (8 for bytes) and the number of axes: 2049 for labels, 2051
  for images. A file may be packed with gzip. It must have exactly the length that its header declares.
- CIFAR-10, binary version: records of 3,073 bytes, a label and then the red, green and blue planes.
- SVHN, cropped digits: a MATLAB 5 file with X (32, 32, 3, n) in bytes and y (n, 1), where 10 means the digit 0.
- Adult: does a person earn more than 50,000 dollars a year? A census extract of 1994, published by UCI.
- two-patch: synthetic, see `sordino.data.synthetic`.
"""

from __future__ import annotations

import io
import math
import os
import struct
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino._input.files import read_bytes
from sordino.data.archives import gunzip, gunzip_start
from sordino.data.dataset import DataSet, Facts, Split
from sordino.data.published import NAMES as NAMES
from sordino.data.published import SOURCES
from sordino.data.published import is_complete as is_complete
from sordino.data.published import root as root
from sordino.data.schema import Schema
from sordino.data.synthetic import TwoPatch
from sordino.data.table import split_of
from sordino.data.table_readers import pieces_of
from sordino.errors import DataError


def load_adult(root: Path) -> DataSet:
    """Loads the 32,561 training and 16,281 test rows from `root`/adult, verified. Groups are sex and race."""
    schema = adult_schema()
    train, test = (source.file.verify(root / "adult") for source in SOURCES["adult"])
    return DataSet(schema.facts(), read_rows(train, schema), read_rows(test, schema))


def adult_schema() -> Schema:
    """Schema of Adult.

    >>> adult_schema().num_features, adult_schema().facts().class_names
    (105, ('<=50K', '>50K'))
    """
    text = files("sordino.data").joinpath("adult.toml").read_text(encoding="utf-8")
    return Schema.parse(text, shown="adult.toml", name="adult", folder=Path())


def read_rows(path: Path, schema: Schema) -> Split:
    """Reads one file of Adult. It has no header; the test file begins with a comment and its labels end in a period."""
    lines = read_bytes(path, at_most=1 << 23).decode("ascii").splitlines()
    rows = [line.removesuffix(".") for line in lines if not line.startswith("|")]
    # The schema has its columns in the order of the files, with the target last.
    return split_of(
        pieces_of([",".join(schema.needed), *rows], schema.needed, repr(str(path))), schema, repr(str(path))
    )


_SHAPE = (3, 32, 32)
_RECORD_BYTES = 1 + 3 * 32 * 32
_NUM_CLASSES = 10
_LARGEST_CIFAR_FILE = 1 << 30


def read_batches(paths: Sequence[Path]) -> Split:
    """Reads images (n, 3, 32, 32) and labels from several CIFAR-10 files, in order."""
    batches = [parse_batch(read_bytes(path, at_most=_LARGEST_CIFAR_FILE), shown=repr(str(path))) for path in paths]
    return Split(torch.cat([batch.inputs for batch in batches]), torch.cat([batch.target for batch in batches]))


def parse_batch(content: bytes, *, shown: str) -> Split:
    """Parses one CIFAR-10 file.

    >>> batch = parse_batch(bytes([7]) + bytes(3072), shown="'batch'")
    >>> batch.inputs.shape, batch.target
    (torch.Size([1, 3, 32, 32]), tensor([7]))
    """
    if not content or len(content) % _RECORD_BYTES:
        raise DataError(f"{shown} must hold records of {_RECORD_BYTES} bytes, found {len(content)} bytes in all.")
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD_BYTES)
    labels = records[:, 0]
    if (labels >= _NUM_CLASSES).any():
        first = int((labels >= _NUM_CLASSES).argmax())
        raise DataError(f"{shown} has a label outside 0..{_NUM_CLASSES - 1} in record {first}: not a CIFAR-10 file.")
    images = torch.from_numpy(records[:, 1:].copy()).reshape(-1, *_SHAPE)
    return Split(images, torch.from_numpy(labels.astype(np.int64)))


_NUM_TRAINING = 1437
_SPLIT_SEED = 0


def load_digits() -> DataSet:
    """Loads digits: four fifths for training and one fifth for testing, always the same split.

    >>> digits = load_digits()
    >>> digits.train.inputs.shape, len(digits.test.target)
    (torch.Size([1437, 1, 8, 8]), 360)
    """
    from sklearn import datasets  # slow to import, and other datasets do not need it

    pixels, labels = datasets.load_digits(return_X_y=True)
    inputs = torch.tensor(pixels, dtype=torch.uint8).reshape(-1, 1, 8, 8)
    target = torch.tensor(labels, dtype=torch.int64)
    order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(_SPLIT_SEED))
    train, test = order[:_NUM_TRAINING], order[_NUM_TRAINING:]
    facts = Facts("digits", (1, 8, 8), 10, input_range=(0.0, 16.0), class_names=tuple("0123456789"))
    return DataSet(facts, Split(inputs[train], target[train]), Split(inputs[test], target[test]))


_LARGEST_SVHN_FILE = 2 << 30
_SVHN_SHAPE = (32, 32, 3)


def read_digits(path: Path) -> Split:
    """Reads images (n, 3, 32, 32) and labels from an SVHN file."""
    return parse_digits(read_bytes(path, at_most=_LARGEST_SVHN_FILE), shown=repr(str(path)))


def parse_digits(content: bytes, *, shown: str) -> Split:
    """Parses an SVHN file. Its structure is checked before its arrays are read."""
    from scipy.io import loadmat, whosmat

    file: Any = io.BytesIO(content)  # scipy's type stubs allow paths only
    try:
        declared: dict[str, tuple[tuple[int, ...], str]]
        declared = {name: (tuple(shape), kind) for name, shape, kind in whosmat(file)}
        _check_declared(declared, shown)
        arrays = loadmat(file, variable_names=["X", "y"])
    except DataError:
        raise
    except Exception:  # scipy has no base class of its errors: a bad file may raise anything
        raise DataError(f"{shown} is not a valid MATLAB 5 file.") from None
    images, labels = _array(arrays, "X", shown), _array(arrays, "y", shown)
    if images.dtype != np.uint8:
        raise DataError(f"{shown} must have X in uint8, found {images.dtype}.")
    digits = labels.reshape(-1).astype(np.int64)
    wrong = (digits != labels.reshape(-1)) | (digits < 1) | (digits > 10)
    if wrong.any():
        raise DataError(f"{shown} has a label outside 1..10 in record {int(wrong.argmax())}.")
    inputs = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
    return Split(torch.from_numpy(inputs), torch.from_numpy(digits % 10))


def _check_declared(declared: dict[str, tuple[tuple[int, ...], str]], shown: str) -> None:
    if not {"X", "y"} <= declared.keys():
        raise DataError(f"{shown} must contain the arrays X and y, found {sorted(declared)!r:.200}.")
    (images, pixels), (labels, _) = declared["X"], declared["y"]
    if len(images) != 4 or images[:3] != _SVHN_SHAPE or images[3] < 1 or pixels != "uint8":
        raise DataError(f"{shown} must have X of shape (32, 32, 3, n) in uint8, found {images} in {pixels}.")
    if labels != (images[3], 1):
        raise DataError(f"{shown} must have y of shape ({images[3]}, 1), one label for each image, found {labels}.")


def _array(arrays: dict[str, Any], name: str, shown: str) -> NDArray[Any]:
    array = arrays[name]
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "uif":
        raise DataError(f"{shown} must have {name} as an array of numbers, found {type(array).__name__}.")
    return array


_LARGEST_IDX_FILE = 4 << 30
_LARGEST_GZIP_RATIO = 1032  # the highest compression ratio that deflate can reach
_KINDS = {2049: "labels", 2051: "images"}


def read_pictures(pictures: Path, labels: Path) -> Split:
    """Reads gray images (n, 1, rows, columns) and their labels from two IDX files."""
    inputs, target = read_idx(pictures, magic=2051), read_idx(labels, magic=2049)
    if len(inputs) != len(target):
        raise DataError(
            f"{str(pictures)!r} has {len(inputs)} images but {str(labels)!r} has {len(target)} labels: "
            "they belong to different datasets."
        )
    return Split(inputs.unsqueeze(1), target.to(torch.int64))


def read_idx(path: Path, *, magic: int) -> Tensor:
    """Reads an IDX file, gzipped or not, in the shape that it declares."""
    return parse_idx(read_bytes(path, at_most=_LARGEST_IDX_FILE), magic=magic, shown=repr(str(path)))


def parse_idx(content: bytes, *, magic: int, shown: str) -> Tensor:
    """Parses an IDX file. Returns its entries as uint8.

    >>> parse_idx(struct.pack(">II", 2049, 3) + bytes([5, 0, 4]), magic=2049, shown="'labels'")
    tensor([5, 0, 4], dtype=torch.uint8)
    >>> parse_idx(struct.pack(">II", 2049, 3) + bytes([5, 0]), magic=2049, shown="'labels'")
    Traceback (most recent call last):
        ...
    sordino.errors.DataError: 'labels' must have 11 bytes for a shape of (3,), found 10.
    """
    header_bytes = 4 + 4 * (magic & 0xFF)
    packed = content.startswith(b"\x1f\x8b")
    header = gunzip_start(content, header_bytes, shown=shown) if packed else content[:header_bytes]
    shape = _shape(header, magic, shown)
    size = header_bytes + math.prod(shape)
    if packed:
        if size > _LARGEST_GZIP_RATIO * len(content):  # checked before any memory is allocated
            raise DataError(f"{shown} declares {size} bytes, which its {len(content)} packed bytes cannot hold.")
        content = gunzip(content, at_most=size, shown=shown)
    if len(content) != size:
        raise DataError(f"{shown} must have {size} bytes for a shape of {shape}, found {len(content)}.")
    entries = np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)
    return torch.from_numpy(entries.copy())  # a copy, because an array over bytes is read-only


def _shape(header: bytes, magic: int, shown: str) -> tuple[int, ...]:
    if len(header) < 4:
        raise DataError(f"{shown} ends at byte {len(header)}, within its magic number.")
    (found,) = struct.unpack(">I", header[:4])
    if found != magic:
        expected, given = (f"{m} ({_KINDS[m]})" if m in _KINDS else str(m) for m in (magic, found))
        raise DataError(f"{shown} must start with the magic number {expected}, found {given}.")
    axes = magic & 0xFF
    if len(header) < 4 + 4 * axes:
        raise DataError(f"{shown} ends at byte {len(header)}, within its header of {4 + 4 * axes} bytes.")
    shape: tuple[int, ...] = struct.unpack(f">{axes}I", header[4:])
    if 0 in shape:
        raise DataError(f"{shown} is empty: its header declares a shape of {shape}.")
    return shape


_BYTES = (0.0, 255.0)
_DIGITS = tuple("0123456789")
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FACTS = {
    "mnist": Facts("mnist", (1, 28, 28), 10, _BYTES, (0.1307,), (0.3081,), _DIGITS),
    "fashion-mnist": Facts("fashion-mnist", (1, 28, 28), 10, _BYTES, (0.2860,), (0.3530,), _CLOTHES),
    "cifar10": Facts("cifar10", (3, 32, 32), 10, _BYTES, (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), _THINGS),
    "svhn": Facts("svhn", (3, 32, 32), 10, _BYTES, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), _DIGITS),
}


def load_standard(name: str, folder: Path) -> DataSet:
    """Loads one of `NAMES`, from `folder`/name if it has files."""
    return _LOADERS[name](folder)


def _verified(name: str, folder: Path) -> list[Path]:
    """Paths of the files of a dataset, after all of them were found and verified."""
    files = [file for source in SOURCES[name] for file in source.kept]
    for file in files:
        path = folder / name / file.name
        if not os.path.exists(path):
            raise DataError(f"{name} needs {str(path)!r}, which does not exist: run `sordino data fetch {name}`.")
    return [file.verify(folder / name) for file in files]


def _idx(name: str, folder: Path) -> DataSet:
    train_images, train_labels, test_images, test_labels = _verified(name, folder)
    return DataSet(_FACTS[name], read_pictures(train_images, train_labels), read_pictures(test_images, test_labels))


def _cifar10(folder: Path) -> DataSet:
    *train, test = _verified("cifar10", folder)
    return DataSet(_FACTS["cifar10"], read_batches(train), read_batches([test]))


def _svhn(folder: Path) -> DataSet:
    train, test = _verified("svhn", folder)
    return DataSet(_FACTS["svhn"], read_digits(train), read_digits(test))


def _adult(folder: Path) -> DataSet:
    _verified("adult", folder)
    return load_adult(folder)


_LOADERS: dict[str, Callable[[Path], DataSet]] = {
    "digits": lambda folder: load_digits(),
    "mnist": lambda folder: _idx("mnist", folder),
    "fashion-mnist": lambda folder: _idx("fashion-mnist", folder),
    "cifar10": _cifar10,
    "svhn": _svhn,
    "adult": _adult,
    "two-patch": lambda folder: TwoPatch().draw(seed=0),
}
