"""The public structure of a row: the names of its parts, and the shape and dtype of each.

A row is a tuple (inputs..., target), or a dictionary with named inputs and a target. Messages name types and shapes,
never values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.errors import DataError

_TARGET_KEYS = ("labels", "label", "targets", "target", "y")  # of dictionaries, unless the caller names the target

Value = TypeVar("Value", bound=Hashable)


@dataclass(frozen=True)
class Keys:
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
    def of(cls, found: Sequence[object], inputs: Sequence[str] | None, target: str | None) -> Keys:
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


def most_of(found: Sequence[Value]) -> Value | None:
    """The value that more than half of the elements have, or None.

    >>> most_of(["a", "b", "a"]), most_of(["a", "b"])
    ('a', None)
    """
    return next((value for value, times in Counter(found).most_common(1) if 2 * times > len(found)), None)


def structure_of_most(
    found: Sequence[object], reasons: Sequence[str], keys: Keys | None, *, among: int
) -> tuple[Tensor, ...]:
    """A row of zeros with the structure that more than half of the inspected rows have."""
    rows, reasons = list[tuple[Tensor, ...]](), list(reasons)
    for row in found:
        try:
            rows.append(row_tensors(parts_of_row(row, keys), keys))
        except DataError as error:
            reasons.append(str(error))
    public = most_of([*map(structure_of, rows), *[None] * len(reasons)])
    if public is not None:
        return next(tuple(map(torch.zeros_like, row)) for row in rows if structure_of(row) == public)
    if 2 * len(reasons) >= among:
        raise DataError(Counter(reasons).most_common(1)[0][0])
    raise DataError("the rows of the dataset differ in shape or dtype: pad or crop them to one shape.")


def structure_of(row: Sequence[Tensor]) -> tuple[tuple[torch.Size, torch.dtype, torch.device], ...]:
    return tuple((x.shape, x.dtype, x.device) for x in row)


def is_integer_scalar(target: Tensor) -> bool:
    return target.dtype == torch.int64 and target.ndim == 0


def parts_of_row(row: object, keys: Keys | None) -> object:
    """The values of a dictionary as a tuple; any other row unchanged."""
    if keys is None or not isinstance(row, Mapping):
        return row
    if not all(name in row for name in (*keys.inputs, keys.target)):
        raise DataError("the rows of the dataset differ in their keys: give each row the same keys.")
    return keys.parts_of(row)


def row_tensors(row: object, keys: Keys | None = None) -> tuple[Tensor, ...]:
    if not isinstance(row, (tuple, list)):
        raise DataError(
            f"each row of the dataset must be a tuple (inputs..., target) or a dictionary, got {type(row).__name__}."
        )
    parts = (_array(part) if isinstance(part, (int, float, np.generic, list)) else part for part in row)
    return tuple(as_tensor(part, name) for part, name in zip(parts, part_names(len(row), keys), strict=True))


def _array(part: object) -> NDArray[Any]:
    """An array of a number or a list of numbers, as rows of tokenized text have."""
    try:
        return np.asarray(part)
    except ValueError:  # lists of different lengths
        raise DataError("a list in a row must have numbers, or lists of one length.") from None


def part_names(number: int, keys: Keys | None = None) -> list[str]:
    if keys is not None:
        return keys.shown()
    if number < 2:
        raise DataError(f"data must have inputs and a target, got {number} part(s).")
    inputs = ["inputs"] if number == 2 else [f"inputs[{i}]" for i in range(number - 1)]
    return [*inputs, "targets"]


def as_tensor(part: object, name: str) -> Tensor:
    """A plain real tensor, which shares memory with `part` if possible."""
    if isinstance(part, np.ndarray):
        check_numbers(part, name)
        native = np.require(part, part.dtype.newbyteorder("="), ["C", "W"])
        part = torch.from_numpy(native if native.itemsize <= 8 else native.astype(np.float64))
    if not isinstance(part, Tensor):
        raise DataError(f"{name} must be a tensor or an array, got {type(part).__name__}{_way_out(part)}.")
    if part.is_complex() or part.layout != torch.strided:
        raise DataError(f"{name} must be a dense real tensor, got {part.dtype} with layout {part.layout}.")
    unsigned = part.dtype in (torch.uint16, torch.uint32, torch.uint64)
    return part.detach().to(torch.int64) if unsigned else part.detach()


def check_numbers(array: NDArray[Any], name: str) -> None:
    """Refuses an array of anything but numbers."""
    if array.dtype.kind not in "fiub":
        raise DataError(f"{name} must hold numbers, got an array of dtype {array.dtype}.")


def _way_out(part: object) -> str:
    """What to do with a part that is no tensor, by its type."""
    if isinstance(part, str):
        return ": turn text into numbers, or leave it out by inputs=(...)"
    if isinstance(part, Mapping):
        return ": give each of its values a key of its own"
    if isinstance(part, (list, tuple)):
        return ": stack it by torch.stack or numpy.stack"
    if part is None:
        return ": each row needs a target, and rows of equal parts"
    if hasattr(part, "to_numpy"):  # a frame or a series of pandas or polars
        return ": pass its .to_numpy()"
    return ": convert images by numpy.asarray(image)" if hasattr(part, "getpixel") else ""


def refuse_boolean_target(target: Tensor) -> None:
    if target.dtype == torch.bool:
        raise DataError("targets are boolean: cast to int64 for class labels or to float32 for a binary loss.")
