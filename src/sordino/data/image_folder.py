"""Folders of images: CLASS/*.png, or train/CLASS/*.png and test/CLASS/*.png. Class names are public.

All images must have one size and one mode, 8-bit gray or RGB. The shape is public: it is that of more than half of the
training images. A training image that is damaged or has another shape is private, so it raises no error: it counts as
absent, as a row with label -1. Test images and images to predict are public: an error names the file.
"""

from __future__ import annotations

import io
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from sordino._input.files import read_bytes
from sordino.data.dataset import DataSet, Facts, Split
from sordino.errors import DataError, UsageError
from sordino.kernel.row_structure import most_of

if TYPE_CHECKING:
    from PIL.Image import Image


_SUFFIXES = (".png", ".jpg", ".jpeg")
_CHANNELS = {"L": 1, "RGB": 3}
_LARGEST_FILE = 64 << 20
_MOST_PIXELS = 1 << 24
_ABSENT = -1  # a label outside the classes


def load_folder(folder: Path) -> DataSet:
    """Loads images as uint8, channels first. The classes are the subfolders in sorted order."""
    inside = _resolved(folder)
    _entries(folder, inside)  # refuses train and test if they are links to somewhere else
    train, classes = _training_classes(folder, inside)
    rows = _read_private(train, classes, inside)
    test = None
    if train != folder and os.path.isdir(folder / "test"):
        unknown = sorted({path.name for path in _sub_folders(folder / "test", inside)} - set(classes))
        if unknown:
            raise DataError(f"{str(folder / 'test')!r} has a class {unknown[0]!r:.200} that is not in train.")
        test = _read_public(folder / "test", classes, inside, rows.inputs.shape[1:])
    facts = Facts(folder.name, tuple(rows.inputs.shape[1:]), len(classes), (0.0, 255.0), class_names=tuple(classes))
    return DataSet(facts, rows, test)


@dataclass(frozen=True)
class ImageRows(Dataset[tuple[Tensor, int]]):
    """Rows (image, label) of a folder of images, each read when it is asked for. Labels are places in `classes`.

    An image that is damaged raises an error; in a training, its row counts as absent.
    """

    classes: tuple[str, ...]
    files: tuple[tuple[Path, int], ...] = field(repr=False)

    @classmethod
    def of(cls, folder: Path) -> ImageRows:
        """The images in CLASS/, or in train/CLASS/ if there is a folder train."""
        inside = _resolved(folder)
        _entries(folder, inside)
        train, classes = _training_classes(folder, inside)
        return cls(tuple(classes), tuple(_files(train, classes, inside)))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        path, label = self.files[index]
        return _read_image(path), label


def is_image_folder(folder: Path) -> bool:
    """Whether a folder has subfolders, as one with images by class."""
    return any(path.is_dir() for path in folder.iterdir() if not path.name.startswith("."))


def load_pictures(folder: Path, shape: tuple[int, ...]) -> Tensor:
    """Loads the images of a folder without classes, sorted by name, for prediction."""
    images = []
    for path in _entries(folder, _resolved(folder)):
        image = _read_image(path)
        if image.shape != shape:
            raise DataError(f"{str(path)!r} has shape {tuple(image.shape)}, the model takes {shape}.")
        images.append(image)
    if not images:
        raise DataError(f"{str(folder)!r} is empty: there is no image in it.")
    return torch.stack(images)


def picture_names(folder: Path) -> list[str]:
    """Names of the files that `load_pictures` loads, in its order."""
    return [path.name for path in _entries(folder, _resolved(folder))]


def _training_classes(folder: Path, inside: Path) -> tuple[Path, list[str]]:
    """The folder of training images, and the names of its classes."""
    train = folder / "train" if os.path.isdir(folder / "train") else folder
    classes = [path.name for path in _sub_folders(train, inside)]
    if len(classes) < 2:
        raise DataError(f"{str(train)!r} must have a subfolder per class, at least two, found {len(classes)}.")
    return train, classes


def _read_private(folder: Path, classes: list[str], inside: Path) -> Split:
    """Training images. One that cannot be used is all zeros with label -1."""
    files = _files(folder, classes, inside)
    images = [_read_image_or_none(path) for path, _ in files]
    shape = most_of([None if image is None else image.shape for image in images])
    if shape is None:
        raise DataError(
            f"{str(folder)!r}: more than half of the images must be valid PNG or JPEG files of one size, "
            f"8-bit gray (L) or RGB, with at most {_MOST_PIXELS} pixels."
        )
    inputs, target = torch.zeros(len(files), *shape, dtype=torch.uint8), torch.full((len(files),), _ABSENT)
    for place, (image, (_, label)) in enumerate(zip(images, files, strict=True)):
        if image is not None and image.shape == shape:
            inputs[place], target[place] = image, label
    return Split(inputs, target)


def _read_public(folder: Path, classes: list[str], inside: Path, shape: torch.Size) -> Split:
    images, labels = [], []
    for path, label in _files(folder, classes, inside):
        image = _read_image(path)
        if image.shape != shape:
            found, expected = (f"{rows[2]} x {rows[1]} with {rows[0]} channels" for rows in (image.shape, shape))
            raise DataError(f"{str(path)!r} is {found}, the training images are {expected}: all must have one size.")
        images.append(image)
        labels.append(label)
    return Split(torch.stack(images), torch.tensor(labels))


def _files(folder: Path, classes: list[str], inside: Path) -> list[tuple[Path, int]]:
    """Paths of all images, with their class indices."""
    files = []
    for label, name in enumerate(classes):
        for path in _entries(folder / name, inside) if os.path.isdir(folder / name) else ():
            _refuse_other_files(path)
            files.append((path, label))
    if not files:
        raise DataError(f"{str(folder)!r} is empty: no class has an image.")
    return files


def _refuse_other_files(path: Path) -> None:
    if path.suffix.lower() not in _SUFFIXES:
        raise DataError(f"{str(path)!r} is not an image file: allowed are {', '.join(_SUFFIXES)}.")


def _read_image_or_none(path: Path) -> Tensor | None:
    try:
        return _read_image(path)
    except (UsageError, MemoryError):  # not a property of the image: Pillow is missing, or memory
        raise
    except Exception:  # the message would reveal something about a private image
        return None


def _read_image(path: Path) -> Tensor:
    _refuse_other_files(path)
    content = read_bytes(path, at_most=_LARGEST_FILE)
    image = _open(content, path)
    width, height = image.size
    if width * height > _MOST_PIXELS:  # read from the header, before anything is unpacked
        raise DataError(f"{str(path)!r} has {width} x {height} pixels, at most {_MOST_PIXELS} in all are allowed.")
    if image.mode not in _CHANNELS:
        raise DataError(f"{str(path)!r} has mode {image.mode}: allowed are 8-bit gray (L) and RGB.")
    try:
        pixels = np.array(image)
    except (OSError, ValueError, SyntaxError):
        raise DataError(f"{str(path)!r} is a damaged or truncated image.") from None
    return torch.from_numpy(pixels.reshape(height, width, -1)).permute(2, 0, 1).contiguous()


def _open(content: bytes, path: Path) -> Image:
    image_module = _pillow()
    bombs = (image_module.DecompressionBombError, image_module.DecompressionBombWarning)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            image: Image = image_module.open(io.BytesIO(content), formats=("PNG", "JPEG"))
            return image
    except bombs:
        raise DataError(f"{str(path)!r} has too many pixels: at most {_MOST_PIXELS} in all are allowed.") from None
    except (OSError, ValueError, SyntaxError, Warning):
        raise DataError(f"{str(path)!r} is not a valid PNG or JPEG image.") from None


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UsageError("images need Pillow: install sordino[images].") from None
    return Image


def _resolved(folder: Path) -> Path:
    try:
        return folder.resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError for links that form a cycle
        raise DataError(f"{str(folder)!r} cannot be read.") from None


def _sub_folders(folder: Path, inside: Path) -> list[Path]:
    return [path for path in _entries(folder, inside) if os.path.isdir(path)]


def _entries(folder: Path, inside: Path) -> list[Path]:
    """Entries of a folder, sorted, without hidden files. A link to somewhere outside the dataset is refused."""
    try:
        entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{str(folder)!r} cannot be read: {error.strerror}.") from None
    for path in entries:
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            raise DataError(f"{str(path)!r} is a link to a place outside {str(inside)!r}.")
    return entries
