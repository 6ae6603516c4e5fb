"""Datasets in .npz files, with a TOML file of public facts beside them.

A .npz file has arrays `inputs` and `target`, and optionally `owners` (the user of each row), `test_inputs` and
`test_target`. Pickled objects are refused, and each array must be as long as its header says.

Large inputs that `numpy.savez` has stored uncompressed can stay in the file, mapped read-only. Their CRC is then not
checked, because that would read all of them; all other checks are the same.

The number of classes and all ranges come from the TOML file and are never computed from the arrays: the maximum over
private labels is private.

confirmed_public = true            # a person has checked that nothing here was computed from private rows
declared_by = "A. Person"          # optional: who declares these facts public; the privacy card says so
units = 1000                       # optional: number of users, or of rows if every row is one unit
rows_per_user = 10                 # needed if there is an array of owners

[inputs]
shape = [3, 32, 32]                # of one row
range = [0, 255]                   # optional: inputs are clamped to it
mean = [0.49, 0.48, 0.45]          # optional, per channel, for inputs scaled from range to [0, 1]
std = [0.25, 0.24, 0.26]

[target]
classes = 10                       # or a list of names; or bounds = [0, 100] for a regression target
"""

from __future__ import annotations

import io
import logging
import math
import mmap
import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from sordino._input import validate
from sordino._input.files import open_regular, read_bytes
from sordino._input.strict_toml import LARGEST_TEXT, Table
from sordino.data.archives import Limits, Stored, unzip, unzip_around
from sordino.data.dataset import DataSet, Facts, Split
from sordino.data.declaration import UNNAMED, Declaration
from sordino.errors import DataError, StateError, UsageError
from sordino.kernel.row_structure import as_tensor

_LARGEST_NUMBER = 1e30
_MOST_CLASSES = 1_000_000
_MOST_AXES = 8


@dataclass(frozen=True)
class ArrayFacts:
    """Public facts about arrays, with the number of units and the largest number of rows per user."""

    facts: Facts
    units: int | None = None
    rows_per_user: int | None = None
    declaration: Declaration = UNNAMED

    @classmethod
    def read(cls, path: Path) -> ArrayFacts:
        """Reads a TOML file. The dataset is named like the file."""
        return cls.parse(read_bytes(path, at_most=LARGEST_TEXT), shown=repr(str(path)), name=path.stem)

    @classmethod
    def parse(cls, text: str | bytes, *, shown: str, name: str) -> ArrayFacts:
        """Parses TOML. `shown` names it in messages.

        >>> text = "confirmed_public = true\\n[inputs]\\nshape = [4]\\n[target]\\nclasses = 3"
        >>> ArrayFacts.parse(text, shown="'a.toml'", name="a").facts.num_classes
        3
        """
        top = Table.parse(text, what=shown)
        top.allow(*Declaration.KEYS, "units", "rows_per_user", "inputs", "target")
        declaration = Declaration.parse(top)
        inputs, target = top.table("inputs"), top.table("target")
        shape, (num_classes, class_names, bounds) = _shape(inputs), _target(target)
        input_range, mean, std = _normalization(inputs, channels=shape[0])
        facts = Facts(name, shape, num_classes, input_range, mean, std, class_names, bounds)
        units, rows_per_user = (top.whole(key) if key in top else None for key in ("units", "rows_per_user"))
        return cls(facts, units, rows_per_user, declaration)


def _shape(inputs: Table) -> tuple[int, ...]:
    inputs.allow("shape", "range", "mean", "std")
    lengths = inputs.numbers("shape")
    with inputs.named():
        validate.count(at_most=_MOST_AXES, **{"the number of axes in shape": len(lengths)})
        for length in lengths:
            validate.count(shape=length)
    return tuple(int(length) for length in lengths)


def _target(target: Table) -> tuple[int | None, tuple[str, ...], tuple[float, float] | None]:
    """The number of classes and their names, or the bounds of a regression target."""
    target.allow("classes", "bounds")
    if ("classes" in target) == ("bounds" in target):
        raise UsageError(f"{target.what} must have either classes or bounds: they are not computed from the data.")
    if "bounds" in target:
        return None, (), _low_high(target, "bounds")
    if not isinstance(target.entries["classes"], list):
        return target.whole("classes", at_least=2, at_most=_MOST_CLASSES), (), None
    names = target.texts("classes")
    if not 2 <= len(set(names)) == len(names):
        raise UsageError(f"{target.what}: classes must be at least two distinct names, got {len(names)}.")
    return len(names), names, None


def _normalization(
    inputs: Table, *, channels: int
) -> tuple[tuple[float, float] | None, tuple[float, ...] | None, tuple[float, ...] | None]:
    """The public range of inputs, and public mean and std per channel of inputs scaled from it to [0, 1]."""
    input_range = _low_high(inputs, "range") if "range" in inputs else None
    if "mean" not in inputs and "std" not in inputs:
        return input_range, None, None
    if input_range is None:
        raise UsageError(f"{inputs.what}: mean and std need range, from which inputs are scaled to [0, 1].")
    mean, std = inputs.numbers("mean"), inputs.numbers("std")
    if not len(mean) == len(std) == channels:
        found = f"{len(mean)} and {len(std)}"
        raise UsageError(f"{inputs.what}: mean and std must have {channels} numbers, one per channel, got {found}.")
    with inputs.named():
        for one_mean, one_std in zip(mean, std, strict=True):
            validate.between(0.0, 1.0, mean=one_mean)
            validate.positive(std=one_std)
    return input_range, mean, std


def _low_high(table: Table, key: str) -> tuple[float, float]:
    numbers = table.numbers(key)
    if len(numbers) != 2 or not -_LARGEST_NUMBER <= numbers[0] < numbers[1] <= _LARGEST_NUMBER:
        raise UsageError(f"{table.what}: {key} must be [low, high] with low < high, got {list(numbers)!r:.80}.")
    return float(numbers[0]), float(numbers[1])


_LOGGER = logging.getLogger("sordino")
_LARGEST_FILE = 4 << 30
_LEFT_FROM = 1 << 28  # bytes; smaller arrays are read, which makes steps faster
_LONGEST_HEADER = 1 << 16  # bytes, of an array that is mapped
_LIMITS = Limits(entries=100, way_out="numpy.savez saves arrays that are not compressed, which need no memory")
_NAMES = ("inputs", "target", "owners", "test_inputs", "test_target")
_MAPPED = ("inputs.npy", "test_inputs.npy")
_MAPPED_KINDS = (np.uint8, np.int8, np.int16, np.int32, np.int64, np.bool_, np.float16, np.float32, np.float64)


def load_npz(path: Path, schema: Path, *, map_large: bool = False) -> DataSet:
    """Loads a .npz file, with its public facts from a TOML file (see the docstring of this module).

    With `map_large`, large uncompressed inputs are mapped: tensors of the file's dtype, which nothing may write to.
    """
    if not os.path.exists(schema):
        raise UsageError(f"{str(path)!r} needs a file of public facts, {str(schema)!r}, which does not exist.")
    return read_npz(path, ArrayFacts.read(schema), map_large=map_large)


def read_npz(path: Path, public: ArrayFacts, *, map_large: bool = False) -> DataSet:
    """Loads a .npz file and checks it against the given facts."""
    shown = repr(str(path))
    arrays = map_arrays(path) if map_large else read_arrays(path)
    if not {"inputs", "target"} <= arrays.keys() <= set(_NAMES):
        raise DataError(f"{shown} must contain arrays named inputs and target, and may contain {_NAMES[2:]}.")
    if ("test_inputs" in arrays) != ("test_target" in arrays):
        raise DataError(f"{shown} must contain both test_inputs and test_target, or neither.")
    owners = _owners(arrays, public, shown)
    train = _split(arrays["inputs"], arrays["target"], owners, public.facts, f"{shown}: ")
    units = len(train.target) if owners is None else len(np.unique(arrays["owners"]))
    if public.units is not None and public.units != units:
        raise DataError(f"{shown} has {units} units, {public.units} were declared.")
    if "test_inputs" not in arrays:
        return DataSet(public.facts, train, rows_per_user=public.rows_per_user)
    test = _split(arrays["test_inputs"], arrays["test_target"], None, public.facts, f"{shown}: test_")
    return DataSet(public.facts, train, test, public.rows_per_user)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays of a .npz file by name."""
    shown = repr(str(path))
    members = unzip(read_bytes(path, at_most=_LARGEST_FILE), limits=Limits(entries=100), shown=shown)
    return {name.removesuffix(".npy"): parse_npy(content, _member(shown, name)) for name, content in members.items()}


def map_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Arrays of a .npz file by name. Large uncompressed inputs are mapped read-only, and take no memory."""
    shown = repr(str(path))
    with open_regular(path) as file:
        members, places = unzip_around(
            file, lambda name, size: name in _MAPPED and size >= _LEFT_FROM, limits=_LIMITS, shown=shown
        )
        mapped = {name: _map_npy(file, place, _member(shown, name)) for name, place in places.items()}
        size = os.fstat(file.fileno()).st_size
    unfit = [name for name, array in mapped.items() if array.dtype not in _MAPPED_KINDS]
    if unfit and size <= _LARGEST_FILE:
        return read_arrays(path)
    if unfit:
        found = f"{_member(shown, unfit[0])} of dtype {mapped[unfit[0]].dtype.str!r}"
        raise DataError(f"{found} is too large to read and cannot be mapped: save it as float32 or uint8.")
    arrays = mapped | {name: parse_npy(content, _member(shown, name)) for name, content in members.items()}
    for name in _MAPPED:
        if name in members and len(members[name]) >= _LEFT_FROM:
            _LOGGER.warning(
                "%s: %r is compressed and is read into memory as a whole: numpy.savez saves arrays that are not.",
                shown,
                name,
            )
    return {name.removesuffix(".npy"): array for name, array in arrays.items()}


def _member(shown: str, name: str) -> str:
    return f"{shown}: {name!r:.80}"


def parse_npy(content: bytes, shown: str) -> NDArray[Any]:
    """Parses a .npy file. Pickled objects are refused unread.

    >>> buffer = io.BytesIO()
    >>> np.save(buffer, np.array([{}], dtype=object), allow_pickle=True)
    >>> parse_npy(buffer.getvalue(), "'a.npy'")
    Traceback (most recent call last):
        ...
    sordino.errors.StateError: 'a.npy' holds pickled objects, which could run code: only arrays of numbers are read.
    """
    header = _header(content, len(content), shown)
    return np.frombuffer(content, header.dtype, offset=header.length).reshape(header.shape, order=header.order)


def _map_npy(file: BinaryIO, place: Stored, shown: str) -> NDArray[Any]:
    """The array of a .npy file inside another file, mapped read-only."""
    file.seek(place.offset)
    header = _header(file.read(min(place.size, _LONGEST_HEADER)), place.size, shown)
    mapped = mmap.mmap(file.fileno(), place.offset + place.size, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)  # rows are drawn at random, so nothing is gained by reading on after one
    return np.ndarray(header.shape, header.dtype, mapped, place.offset + header.length, order=header.order)


@dataclass(frozen=True)
class _Header:
    """The header of a .npy file. `length` is in bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    length: int


def _header(start: bytes, size: int, shown: str) -> _Header:
    """Reads the header of a .npy file of `size` bytes from its first bytes."""
    file = io.BytesIO(start)
    try:
        read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
        shape, by_column, dtype = read_header(file)
    except (ValueError, KeyError, EOFError, SyntaxError, TypeError, RecursionError, MemoryError, OverflowError):
        raise DataError(f"{shown} is not a valid .npy file.") from None
    if dtype.hasobject:
        raise StateError(f"{shown} holds pickled objects, which could run code: only arrays of numbers are read.")
    if dtype.kind not in "fiub":
        raise DataError(f"{shown} must hold numbers, found dtype {dtype}.")
    expected, found = math.prod(shape) * dtype.itemsize, size - file.tell()
    if expected != found or min(shape, default=0) < 0:
        raise DataError(f"{shown} must have {expected} bytes for a shape of {shape} in {dtype}, found {found}.")
    return _Header(dtype, shape, "F" if by_column else "C", file.tell())


def _split(inputs: NDArray[Any], target: NDArray[Any], owners: Tensor | None, facts: Facts, where: str) -> Split:
    if inputs.ndim == 0 or inputs.shape[1:] != facts.input_shape:
        raise DataError(
            f"{where}inputs must have rows of shape {facts.input_shape}, as declared, found {inputs.shape}."
        )
    if target.shape != inputs.shape[:1]:
        raise DataError(f"{where}target must have {len(inputs)} entries, one per row, found shape {target.shape}.")
    if len(inputs) == 0:
        raise DataError(f"{where}inputs is empty.")
    if facts.num_classes is not None and target.dtype.kind not in "iu":
        raise DataError(f"{where}target must hold integer class labels, found dtype {target.dtype}.")
    labels = _labels(target, facts, where)
    if isinstance(inputs.base, mmap.mmap):
        return Split(_mapped_tensor(inputs), labels, owners, is_mapped=True)
    is_image = inputs.dtype == np.uint8
    return Split(as_tensor(inputs if is_image else inputs.astype(np.float32), f"{where}inputs"), labels, owners)


def _mapped_tensor(inputs: NDArray[Any]) -> Tensor:
    """A tensor that shares the memory of a read-only map."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to it
        return torch.from_numpy(inputs)


def _labels(target: NDArray[Any], facts: Facts, where: str) -> Tensor:
    """Class labels as int64 (a label outside the declared classes contributes nothing), or targets in [-1, 1]."""
    if facts.target_range is None:
        return as_tensor(target, f"{where}target").to(torch.int64)
    low, high = facts.target_range
    scaled = 2 * (target.astype(np.float64).clip(low, high) - low) / (high - low) - 1
    return torch.from_numpy(scaled.astype(np.float32))


def _owners(arrays: dict[str, NDArray[Any]], public: ArrayFacts, shown: str) -> Tensor | None:
    if ("owners" in arrays) != (public.rows_per_user is not None):
        raise DataError(f"{shown}: an array owners and a declared rows_per_user need each other: give both or neither.")
    if "owners" not in arrays:
        return None
    owners = arrays["owners"]
    if owners.dtype.kind not in "iu" or owners.shape != arrays["target"].shape[:1]:
        raise DataError(f"{shown}: owners must hold one whole number per row, found {owners.dtype} of {owners.shape}.")
    return as_tensor(owners, "owners").to(torch.int64)
