"""Records with more units behind them: the places that canaries take, whether they were included or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sordino.errors import DataError
from sordino.kernel.records import Owners, Records
from sordino.kernel.rows import ReadAt, Rows


@dataclass(frozen=True)
class _Followed:
    """Rows of a data set, and `more` behind the last of them."""

    rows: Rows
    more: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.rows) + len(self.more[-1])

    def take(self, indices: Tensor, at: ReadAt | None = None) -> tuple[tuple[Tensor, ...], Tensor]:
        own, others = indices < len(self.rows), indices >= len(self.rows)
        taken, their_use = self.rows.take(indices[own], at)
        usable = torch.ones(len(indices), dtype=torch.bool)
        usable[own] = their_use
        found = []
        for first, second in zip(taken, self.more, strict=True):
            column = first.new_empty((len(indices), *first.shape[1:]))
            column[own], column[others] = first, second[indices[others] - len(self.rows)]
            found.append(column)
        return tuple(found), usable

    def empty(self) -> tuple[Tensor, ...]:
        return self.rows.empty()

    def sample_of(self, at: ReadAt) -> Iterator[tuple[Tensor, ...]]:
        yield from self.rows.sample_of(at)
        yield self.more

    def are_repeatable(self, at: ReadAt) -> bool:
        return self.rows.are_repeatable(at)


def followed_by(records: Records, more: tuple[Tensor, ...]) -> Records:
    """The same units, and one more for each row of `more` (inputs..., target), whose numbers come after theirs.

    >>> from sordino.kernel.records import as_records
    >>> records = as_records((torch.zeros(5, 2), torch.zeros(5, dtype=torch.int64)))
    >>> longer = followed_by(records, (torch.ones(2, 2), torch.ones(2, dtype=torch.int64)))
    >>> longer.num_units, longer.gather(torch.tensor([0, 6])).target
    (7, tensor([0, 1]))
    """
    like = records.rows.empty()
    shapes, declared = [tuple(x.shape[1:]) for x in more], [tuple(x.shape[1:]) for x in like]
    if shapes != declared:
        raise DataError(f"canaries must have the shapes of the rows, {declared}, got {shapes}.")
    typed = tuple(x.to(of.dtype) for x, of in zip(more, like, strict=True))
    number, owners = len(typed[-1]), records.owners
    if owners is not None:
        places = torch.arange(len(records.rows), len(records.rows) + number)
        starts = torch.cat([owners.starts, len(owners.order) + torch.arange(number)])
        counts = torch.cat([owners.counts, torch.ones(number, dtype=owners.counts.dtype)])
        owners = Owners(torch.cat([owners.order, places]), starts, counts, owners.rows_per_user)
    return replace(records, rows=_Followed(records.rows, typed), owners=owners)


def with_empty_places(records: Records, number: int) -> Records:
    """The same units, and `number` more of which no record is ever looked at."""
    return followed_by(records, tuple(x.new_zeros((number, *x.shape[1:])) for x in records.rows.empty()))
