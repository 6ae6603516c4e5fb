"""The data sets that have a name. What is stated about them is published and holds for everybody."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sordino.data.cifar import read_batches
from sordino.data.dataset import DataSet, Facts
from sordino.data.digits import load_digits
from sordino.data.idx import read_pictures
from sordino.data.published import SOURCES
from sordino.data.svhn import read_digits
from sordino.data.two_patch import TwoPatch
from sordino.errors import DataError

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


def root() -> Path:
    """Where standard sets are looked for: $SORDINO_DATA, or ~/.cache/sordino."""
    chosen = os.environ.get("SORDINO_DATA")
    return Path(chosen) if chosen else Path.home() / ".cache" / "sordino"


def load_standard(name: str, folder: Path) -> DataSet:
    """One of `NAMES`, from `folder`/name where it has files."""
    return _LOADERS[name](folder)


def is_complete(name: str, folder: Path) -> bool:
    """Whether every file of a set is in `folder`/name, with its published size."""
    return all(file.is_in(folder / name) for source in SOURCES.get(name, ()) for file in source.kept)


def _verified(name: str, folder: Path) -> list[Path]:
    """The files of a set, once all of them are there and are what was published."""
    files = [file for source in SOURCES[name] for file in source.kept]
    for file in files:
        path = folder / name / file.name
        if not os.path.exists(path):
            raise DataError(f"{name} needs {str(path)!r}, which is not there: get it with `sordino data fetch {name}`.")
    return [file.verify(folder / name) for file in files]


def _idx(name: str, folder: Path) -> DataSet:
    train_pictures, train_labels, test_pictures, test_labels = _verified(name, folder)
    return DataSet(_FACTS[name], read_pictures(train_pictures, train_labels), read_pictures(test_pictures, test_labels))


def _cifar10(folder: Path) -> DataSet:
    *train, test = _verified("cifar10", folder)
    return DataSet(_FACTS["cifar10"], read_batches(train), read_batches([test]))


def _svhn(folder: Path) -> DataSet:
    train, test = _verified("svhn", folder)
    return DataSet(_FACTS["svhn"], read_digits(train), read_digits(test))


def _adult(folder: Path) -> DataSet:
    from sordino.data.adult import load_adult

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
NAMES = tuple(_LOADERS)
