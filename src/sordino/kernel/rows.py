"""Storage of rows, in memory or read when drawn, with one public structure for all rows.

A row is a tuple (inputs..., target), or a dictionary with named inputs and a target.

A row that cannot be used (it cannot be read, or has another shape or type) may affect its owner only: it counts as
absent, without a message. So the structure that all rows must have may not depend on a single row. In memory it is the
structure of the arrays. Of a map-style dataset, a few evenly spaced rows are read at the start, and the structure is
the one that more than half of them have; if there is none, the dataset is refused, without quoting a row. One row
changes this only if it turns an exact half into a majority.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sordino.errors import DataError, UsageError
from sordino.kernel.randomness import Stream

_ROWS_TO_COMPARE = 256
_ROWS_TO_INSPECT = 9  # the structure is that of most of these
_TARGET_KEYS = ("labels", "label", "targets", "target", "y")  # of dictionaries, unless the caller names the target

Structure = TypeVar("Structure", bound=Hashable)


@dataclass(frozen=True)
class ReadAt:
    """Address of the randomness of rows: what a row draws while it is read is a function of (stream, step, row).

    So a step that is repeated reads equal rows, even if the dataset changes them at random. The seeds are independent
    of who joined the step: they come from a stream of their own.
    """

    stream: Stream
    step: int

    def seed(self, row: int) -> int:
        """The seed of a row: 64 bits of a keyed hash, so that rows and steps draw independently of each other."""
        address = self.step.to_bytes(8, "big") + row.to_bytes(8, "big")
        return int.from_bytes(hashlib.blake2b(address, key=self.stream.secret, digest_size=8).digest())


class Rows(Protocol):
    """Rows of (inputs..., target) that can be taken by index."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs if rows are dictionaries, otherwise empty."""
        ...

    @property
    def target_name(self) -> str:
        """The key of the target if rows are dictionaries, otherwise empty."""
        ...

    def __len__(self) -> int: ...

    def take(self, indices: Tensor, at: ReadAt | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
        """The rows `indices`, stacked in new memory, and a mask of those that can be used.

        A row that cannot be used has zeros. Without `at`, rows that draw do so from the global generators.
        """
        ...

    def empty(self) -> tuple[Tensor, ...]:
        """Tensors with no rows, in the public shapes and dtypes."""
        ...

    def sample_of(self, at: ReadAt) -> Iterator[tuple[Tensor, ...]]:
        """Rows for a fingerprint of the data: all rows if they are in memory, otherwise some."""
        ...

    def are_repeatable(self, at: ReadAt) -> bool:
        """Whether rows that are read twice with equal `at` are equal, bit for bit."""
        ...


@dataclass(frozen=True)
class _Keys:
    """Keys of a dictionary: those of the inputs, in the order in which they are held, and that of the target.

    Messages show keys only if the caller named them: data may be keyed by names of people.
    """

    inputs: tuple[str, ...]
    target: str
    named_by_caller: bool = False

    def shown(self) -> list[str]:
        """A description of each part for messages."""
        inputs = map(repr, self.inputs) if self.named_by_caller else (f"inputs[{i}]" for i in range(len(self.inputs)))
        return [*inputs, repr(self.target)]

    def parts_of(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of the row, inputs first."""
        return *(row[name] for name in self.inputs), row[self.target]

    @classmethod
    def of(cls, found: Sequence[object], inputs: Sequence[str] | None, target: str | None) -> _Keys:
        """Chooses the keys: those that the caller names, or else all but the target as inputs."""
        if not all(isinstance(name, str) for name in found):
            raise DataError("keys of the data must be strings: they are names of arguments of the model's forward.")
        if target is None:
            known = [name for name in _TARGET_KEYS if name in found]
            if not known:
                known_keys = ", ".join(map(repr, _TARGET_KEYS))
                raise DataError(f"none of the {len(found)} keys of the data is {known_keys}: name one by target=KEY.")
            target = known[0]
        chosen = tuple(str(name) for name in found if name != target) if inputs is None else tuple(inputs)
        missing = [name for name in (*chosen, target) if name not in found]
        if missing:
            raise DataError(f"the data has no key {missing[0]!r} among its {len(found)} keys.")
        if not chosen:
            raise DataError(f"data must have inputs and a target, got only the key {target!r}.")
        return cls(chosen, target, named_by_caller=inputs is not None)


@dataclass(frozen=True)
class _InMemory:
    tensors: tuple[Tensor, ...]
    keys: _Keys | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return () if self.keys is None else self.keys.inputs

    @property
    def target_name(self) -> str:
        return "" if self.keys is None else self.keys.target

    def __len__(self) -> int:
        return len(self.tensors[0])

    def take(self, indices: Tensor, at: ReadAt | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
        taken = tuple(x.index_select(0, indices.to(x.device)) for x in self.tensors)
        return taken, torch.ones(len(indices), dtype=torch.bool)

    def empty(self) -> tuple[Tensor, ...]:
        return tuple(x[:0] for x in self.tensors)

    def sample_of(self, at: ReadAt) -> Iterator[tuple[Tensor, ...]]:
        yield self.tensors

    def are_repeatable(self, at: ReadAt) -> bool:
        return True


@dataclass(frozen=True)
class _Lazy:
    """A map-style dataset, whose rows are read when they are drawn. `structure` is a row of zeros.

    `keys` are those of rows that are dictionaries.
    """

    dataset: Dataset[Any]
    structure: tuple[Tensor, ...]
    length: int
    keys: _Keys | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return () if self.keys is None else self.keys.inputs

    @property
    def target_name(self) -> str:
        return "" if self.keys is None else self.keys.target

    def __len__(self) -> int:
        return self.length

    def take(self, indices: Tensor, at: ReadAt | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
        if len(indices) == 0:  # there is nothing to stack
            return self.empty(), torch.ones(0, dtype=torch.bool)
        read = self._read(indices.tolist(), at)
        usable = torch.tensor([row is not None for row in read])
        rows = [self._row_of_zeros if row is None else row for row in read]
        if all(map(self._is_ready, rows)):  # the usual case: stacking columns is faster than converting each cell
            *inputs, labels = zip(*rows, strict=True)
            return (*(torch.stack(x).detach() for x in inputs), torch.tensor(labels)), usable
        columns = zip(*(_row_tensors(row, self.keys) for row in rows), strict=True)
        return tuple(torch.stack(column) for column in columns), usable

    def empty(self) -> tuple[Tensor, ...]:
        return tuple(x.new_empty((0, *x.shape)) for x in self.structure)

    def sample_of(self, at: ReadAt) -> Iterator[tuple[Tensor, ...]]:
        for index in self._sampled:
            row, usable = self.take(torch.tensor([index]), at)
            yield *row, usable

    def are_repeatable(self, at: ReadAt) -> bool:
        """Reads forwards and then backwards, which also finds rows that depend on the row that was read before."""
        sampled = list(self._sampled)
        forwards = {index: self._digest(index, at) for index in sampled}
        return all(self._digest(index, at) == forwards[index] for index in reversed(sampled))

    @property
    def _sampled(self) -> range:
        return range(0, self.length, max(1, self.length // _ROWS_TO_COMPARE))

    @property
    def _row_of_zeros(self) -> tuple[Any, ...]:
        """Placeholder for a row that cannot be used: zeros, and a label of the type that most rows have."""
        *inputs, target = self.structure
        return *inputs, 0 if _is_integer_scalar(target) else target

    def _digest(self, index: int, at: ReadAt) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        row, usable = self.take(torch.tensor([index]), at)
        for tensor in (*row, usable):
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.digest()

    def _read(self, indices: list[int], at: ReadAt | None) -> list[Any]:
        if at is None:
            return [self._row(index) for index in indices]
        rows = []
        with restored_generators() as seed:
            for index in indices:
                seed(at.seed(index))
                rows.append(self._row(index))
        return rows

    def _row(self, index: int) -> Any:
        """The row, or None if it cannot be used. The error would reveal something about the row, and is dropped."""
        try:
            row = _parts(self.dataset[index], self.keys)
            return row if self._is_ready(row) else self._checked(row)
        except MemoryError:  # a matter of the machine, not of the row
            raise
        except Exception:
            return None

    def _is_ready(self, row: object) -> bool:
        """Whether the row has plain tensors of the public structure, and an integer label."""
        if not isinstance(row, (tuple, list)) or len(row) != len(self.structure):
            return False
        *inputs, label = row
        return (
            _is_integer_scalar(self.structure[-1])
            and type(label) is int
            and -(2**63) <= label < 2**63
            and all(
                type(x) is Tensor
                and (x.shape, x.dtype, x.device, x.layout) == (like.shape, like.dtype, like.device, like.layout)
                for x, like in zip(inputs, self.structure, strict=False)
            )
        )

    def _checked(self, row: object) -> tuple[Tensor, ...] | None:
        tensors = _row_tensors(row, self.keys)
        return tensors if _structure(tensors) == _structure(self.structure) else None


def most_of(found: Sequence[Structure]) -> Structure | None:
    """The value that more than half of the elements have, or None.

    >>> most_of(["a", "b", "a"]), most_of(["a", "b"])
    ('a', None)
    """
    return next((value for value, times in Counter(found).most_common(1) if 2 * times > len(found)), None)


@contextmanager
def restored_generators() -> Iterator[Callable[[int], None]]:
    """Yields a function that seeds torch, numpy and random. On exit, their states are restored.

    States are copied once. `torch.manual_seed` is not used, because it looks for devices at each call.
    """
    generators = [torch.default_generator, *torch.cuda.default_generators]
    torch_states, numpy_state = [generator.get_state() for generator in generators], np.random.get_state(legacy=False)
    python_state = random.getstate()

    def seed(number: int) -> None:
        for generator in generators:
            generator.manual_seed(number)
        np.random.seed(number & 0xFFFFFFFF)
        random.seed(number)

    try:
        yield seed
    finally:
        for generator, state in zip(generators, torch_states, strict=True):
            generator.set_state(state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def as_rows(data: object, *, inputs: Sequence[str] | None = None, target: str | None = None) -> Rows:
    """Rows from tensors or arrays, in a tuple or a dictionary, or from a map-style dataset of such rows.

    `inputs` and `target` are the keys of dictionaries to use.
    """
    if isinstance(data, DataLoader):
        raise UsageError("data must be a dataset, got a DataLoader: pass its .dataset, the run draws its own batches.")
    if isinstance(data, IterableDataset):
        raise UsageError("data must be indexable to be sampled, got an IterableDataset: pass a map-style Dataset.")
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, Mapping):
        keys = _Keys.of(list(data), inputs, target)
        return _in_memory(keys.parts_of(data), keys)
    if isinstance(data, (tuple, list)):
        _refuse_names_of_tuples(inputs, target)
        return _in_memory(data)
    if isinstance(data, Dataset):
        return _lazy(data, inputs, target)
    expected = "(inputs..., target), a dictionary of arrays, or a map-style Dataset"
    raise UsageError(f"data must be {expected}, got {type(data).__name__}.")


def _in_memory(parts: Sequence[object], keys: _Keys | None = None) -> Rows:
    names = _part_names(len(parts), keys)
    tensors = tuple(as_tensor(part, name) for part, name in zip(parts, names, strict=True))
    for tensor, name in zip(tensors, names, strict=True):
        if tensor.ndim == 0:
            raise DataError(f"{name} must have one entry per row along the first axis, got a scalar.")
    if len({len(x) for x in tensors}) > 1:
        lengths = ", ".join(f"{name} {len(x)}" for x, name in zip(tensors, names, strict=True))
        raise DataError(f"parts of the data differ in length: {lengths}.")
    _refuse_boolean_target(tensors[-1])
    return _InMemory(tensors, keys)


def _lazy(dataset: Dataset[Any], inputs: Sequence[str] | None, target: str | None) -> Rows:
    if not hasattr(dataset, "__len__"):
        raise DataError(f"the dataset must know its length, {type(dataset).__name__} has no __len__.")
    length = len(dataset)
    if length == 0:
        raise DataError("the dataset is empty.")
    inspected = range(0, length, -(-length // _ROWS_TO_INSPECT))
    rows, reasons = _inspected_rows(dataset, inspected)
    keys = _keys_of_most(rows, inputs, target, among=len(inspected))
    if keys is None:
        _refuse_names_of_tuples(inputs, target)
    structure = _structure_of_most(rows, reasons, keys, among=len(inspected))
    _refuse_boolean_target(structure[-1])
    return _Lazy(dataset, structure, length, keys)


def _refuse_names_of_tuples(inputs: Sequence[str] | None, target: str | None) -> None:
    if inputs is not None or target is not None:
        raise UsageError("inputs= and target= name keys of dictionaries, got rows that are tuples: leave them out.")


def _inspected_rows(dataset: Dataset[Any], indices: Sequence[int]) -> tuple[list[object], list[str]]:
    """The rows `indices`, and the reasons why others cannot be read."""
    rows, reasons = list[object](), list[str]()
    with restored_generators():
        for index in indices:
            try:
                rows.append(dataset[index])
            except MemoryError:
                raise
            except DataError as error:  # of our own datasets, whose messages name structure only
                reasons.append(str(error))
            except Exception as error:  # its message may quote the row
                reasons.append(f"reading a row of the dataset raises {type(error).__name__}: try data[0].")
    return rows, reasons


def _keys_of_most(
    rows: Sequence[object], inputs: Sequence[str] | None, target: str | None, *, among: int
) -> _Keys | None:
    """The keys of more than half of the rows, if these are dictionaries with equal keys; None if they are not."""
    keys = most_of([tuple(row) if isinstance(row, Mapping) else None for row in rows] + [None] * (among - len(rows)))
    if keys is None and 2 * sum(isinstance(row, Mapping) for row in rows) > among:
        raise DataError("the rows of the dataset differ in their keys: give each row the same keys in one order.")
    return None if keys is None else _Keys.of(keys, inputs, target)


def _structure_of_most(
    found: Sequence[object], reasons: Sequence[str], keys: _Keys | None, *, among: int
) -> tuple[Tensor, ...]:
    """A row of zeros with the structure that more than half of the inspected rows have."""
    rows, reasons = list[tuple[Tensor, ...]](), list(reasons)
    for row in found:
        try:
            rows.append(_row_tensors(_parts(row, keys), keys))
        except DataError as error:
            reasons.append(str(error))
    public = most_of([*map(_structure, rows), *[None] * len(reasons)])
    if public is not None:
        return next(tuple(map(torch.zeros_like, row)) for row in rows if _structure(row) == public)
    if 2 * len(reasons) >= among:
        raise DataError(Counter(reasons).most_common(1)[0][0])
    raise DataError("the rows of the dataset differ in shape or dtype: pad or crop them to one shape.")


def _structure(row: Sequence[Tensor]) -> tuple[tuple[torch.Size, torch.dtype, torch.device], ...]:
    return tuple((x.shape, x.dtype, x.device) for x in row)


def _is_integer_scalar(target: Tensor) -> bool:
    return target.dtype == torch.int64 and target.ndim == 0


def _parts(row: object, keys: _Keys | None) -> object:
    """The values of a dictionary as a tuple; any other row unchanged."""
    if keys is None or not isinstance(row, Mapping):
        return row
    if not all(name in row for name in (*keys.inputs, keys.target)):
        raise DataError("the rows of the dataset differ in their keys: give each row the same keys.")
    return keys.parts_of(row)


def _row_tensors(row: object, keys: _Keys | None = None) -> tuple[Tensor, ...]:
    if not isinstance(row, (tuple, list)):
        raise DataError(
            f"each row of the dataset must be a tuple (inputs..., target) or a dictionary, got {type(row).__name__}."
        )
    parts = (_array(part) if isinstance(part, (int, float, np.generic, list)) else part for part in row)
    return tuple(as_tensor(part, name) for part, name in zip(parts, _part_names(len(row), keys), strict=True))


def _array(part: object) -> NDArray[Any]:
    """An array of a number or a list of numbers, as rows of tokenized text have."""
    try:
        return np.asarray(part)
    except ValueError:  # lists of different lengths
        raise DataError("a list in a row must have numbers, or lists of one length.") from None


def _part_names(number: int, keys: _Keys | None = None) -> list[str]:
    if keys is not None:
        return keys.shown()
    if number < 2:
        raise DataError(f"data must have inputs and a target, got {number} part(s).")
    inputs = ["inputs"] if number == 2 else [f"inputs[{i}]" for i in range(number - 1)]
    return [*inputs, "targets"]


def as_tensor(part: object, name: str) -> Tensor:
    """A plain real tensor, which shares memory with `part` if possible."""
    if isinstance(part, np.ndarray):
        if part.dtype.kind not in "fiub":
            raise DataError(f"{name} must hold numbers, got an array of dtype {part.dtype}.")
        native = np.require(part, part.dtype.newbyteorder("="), ["C", "W"])
        part = torch.from_numpy(native if native.itemsize <= 8 else native.astype(np.float64))
    if not isinstance(part, Tensor):
        raise DataError(f"{name} must be a tensor or an array, got {type(part).__name__}.")
    if part.is_complex() or part.layout != torch.strided:
        raise DataError(f"{name} must be a dense real tensor, got {part.dtype} with layout {part.layout}.")
    unsigned = part.dtype in (torch.uint16, torch.uint32, torch.uint64)
    return part.detach().to(torch.int64) if unsigned else part.detach()


def _refuse_boolean_target(target: Tensor) -> None:
    if target.dtype == torch.bool:
        raise DataError("targets are boolean: cast to int64 for class labels or to float32 for a binary loss.")
