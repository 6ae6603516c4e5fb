"""Buckets: public lengths to which sequences are padded, so that a step costs what its own sequences cost.

Rows are padded to the largest length when they are read. A step then sorts its units into buckets, by the length of
their longest row, and cuts each bucket to its length. A unit's gradient is the same in every bucket that holds it, up
to rounding, if the model masks padding. So buckets change neither what a unit contributes nor the event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino._input import validate
from sordino.errors import DataError, UsageError

ROUNDED_ALIKE = "the rounding of an example's gradient does not depend on which others share its length bucket"


@dataclass(frozen=True)
class Buckets:
    """Public lengths of sequences, increasing. Longer sequences are cut to the last length.

    `padding` has the value that fills up each key whose first axis is the sequence, such as
    `{"input_ids": tokenizer.pad_token_id, "labels": -100}`. `mask` is the key that says which places are real: 1 there
    and 0 in padding, which must follow the real places. If rows have no such key, it is added.

    >>> buckets = Buckets((4, 8), padding={"input_ids": 0})
    >>> buckets.padded_row({"input_ids": [5, 6, 7], "labels": 1})["attention_mask"]
    array([1, 1, 1, 0, 0, 0, 0, 0])
    >>> buckets.of_lengths(torch.tensor([0, 4, 5, 8]))
    tensor([0, 0, 1, 1])
    """

    lengths: tuple[int, ...]
    padding: Mapping[str, float] = field(default_factory=lambda: {"input_ids": 0})
    mask: str = "attention_mask"

    def __post_init__(self) -> None:
        validate.instance(tuple, lengths=self.lengths)
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)):
            raise UsageError(f"lengths of buckets must increase, got {validate.shown(self.lengths)}.")
        validate.count(**{f"length {place}": length for place, length in enumerate(self.lengths)})
        validate.instance(Mapping, padding=self.padding)
        validate.instance(str, mask=self.mask)

    @property
    def longest(self) -> int:
        """The length to which rows are padded when they are read."""
        return self.lengths[-1]

    def of_lengths(self, real: Tensor) -> Tensor:
        """The index of the smallest bucket that holds each of these lengths."""
        return torch.bucketize(real, torch.tensor(self.lengths, device=real.device))

    def cut(self, values: Tensor, name: str, length: int) -> Tensor:
        """A batch of values of the key `name`, cut to `length` places if the key is a sequence."""
        return values[:, :length] if name in self.padding or name == self.mask else values

    def padded_row(self, row: object) -> dict[str, Any]:
        """The row with its sequences padded or cut to the largest length, and its mask."""
        if not isinstance(row, Mapping):
            raise DataError(f"each row of data with buckets must be a dictionary, got {type(row).__name__}.")
        padded = {name: row[name] for name in row if name not in self.padding}
        sequences = {name: _as_sequence(row[name], name) for name in self.padding if name in row}
        if not sequences:
            raise DataError(f"rows have none of the keys of padding: {', '.join(map(repr, self.padding))}.")
        longest = max(map(len, sequences.values()))
        mask = _as_sequence(row.get(self.mask, np.ones(longest, np.int64)), self.mask)
        padded |= {name: self._filled(values, self.padding[name]) for name, values in sequences.items()}
        return {name: padded[name] for name in row if name != self.mask} | {self.mask: self._filled(mask, 0)}

    def check_padded(self, data: object) -> None:
        """Refuses arrays of rows that are not padded to the largest length, or have no mask."""
        if not isinstance(data, Mapping):
            expected = "a dictionary of padded arrays, or a map-style Dataset of dictionaries"
            raise UsageError(f"data with buckets must be {expected}, got {type(data).__name__}.")
        if self.mask not in data:
            raise DataError(f"arrays with buckets need the key {self.mask!r}: 1 for real places, 0 for padding.")
        for name in (self.mask, *(name for name in self.padding if name in data)):
            shape = tuple(np.shape(data[name]))
            if len(shape) < 2 or shape[1] != self.longest:
                raise DataError(f"{name!r} must have {self.longest} places per row, as the last bucket, got {shape}.")

    def _filled(self, values: Any, padding: float) -> Any:
        values = values[: self.longest]
        missing = self.longest - len(values)
        if isinstance(values, Tensor):
            return torch.cat([values, values.new_full((missing, *values.shape[1:]), padding)])
        return np.concatenate([values, np.full((missing, *values.shape[1:]), padding, values.dtype)])


def real_lengths(mask: Tensor) -> Tensor:
    """The number of places up to the last real one, for each row of a mask.

    >>> real_lengths(torch.tensor([[1, 1, 0], [0, 0, 0], [0, 1, 0]]))
    tensor([2, 0, 2])
    """
    places = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (places * (mask != 0)).amax(dim=1)


def _as_sequence(values: Any, name: str) -> Any:
    if isinstance(values, list):
        values = np.asarray(values, dtype=np.int64 if not values else None)
    if not isinstance(values, (np.ndarray, Tensor)) or values.ndim == 0:
        raise DataError(f"{name!r} must be a sequence of numbers, got {type(values).__name__}.")
    return values
