"""The rows under attack: members, others of the same distribution, and a population to compare with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sordino._input import validate
from sordino.errors import UsageError

FEWEST = 20  # rows of a kind
_MOST_REFERENCES = 256


@dataclass(frozen=True)
class Suspects:
    """Rows as a network is given them. Nobody of the population is a member, or a suspect.

    Assumption: members and others are drawn from one distribution. Otherwise an attack tells the distributions apart,
    and may exceed what a guarantee bounds.
    """

    inputs: Tensor = field(repr=False)
    target: Tensor = field(repr=False)
    is_member: NDArray[np.bool_] = field(repr=False)
    population_inputs: Tensor = field(repr=False)
    population_target: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        members = int(self.is_member.sum())
        if not 0 < members < len(self.is_member):
            found = f"{members} members and {len(self.is_member) - members} others"
            raise UsageError(f"an attack needs rows of both kinds, members and others, got {found}.")
        if not len(self.population_target):
            raise UsageError("an attack compares with rows of the population, got none.")

    def __len__(self) -> int:
        return len(self.target)


def check_references(references: int) -> None:
    validate.count(at_least=2, at_most=_MOST_REFERENCES, references=references)
    if references % 2:
        raise UsageError(f"references must be an even number, because each has its opposite: got {references}.")


def halves(rows: int, references: int, *, seed: int) -> NDArray[np.bool_]:
    """Which rows each reference learns from: a random half, and for every second reference the other half.

    So each row is learnt from by exactly half of the references, however few they are.

    >>> halves(4, 2, seed=0).sum(axis=0)
    array([1, 1, 1, 1])
    """
    check_references(references)
    validate.count(at_least=2, rows=rows)
    generator = np.random.default_rng(seed)
    chosen = np.zeros((references, rows), dtype=bool)
    for place in range(0, references, 2):
        chosen[place, generator.permutation(rows)[: rows // 2]] = True
        chosen[place + 1] = ~chosen[place]
    return chosen
