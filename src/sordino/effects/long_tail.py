"""Who is rare: accuracy by how hard a public ensemble finds a row, and the pictures that lose most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.effects.groups import Group, Grouping

DECILES = 10
SCORE = "margin under an ensemble that learnt from other public rows"


def by_decile(margins: NDArray[np.float64]) -> Grouping:
    """Ten groups of rows as equal as can be, from the smallest margins to the largest.

    >>> [group.rows.tolist() for group in by_decile(np.array([0.5, -0.2, 0.9])).groups]
    [[1], [0], [2]]
    """
    order = np.argsort(margins, kind="stable")
    parts = np.array_split(order, min(DECILES, len(order)))
    groups = tuple(Group("tenth", _name(number, len(parts)), rows) for number, rows in enumerate(parts, start=1))
    return Grouping("tenth", groups)


@dataclass(frozen=True)
class Harmed:
    """A public row, and how likely its label is to a reference and to the model."""

    row: int
    reference: float
    model: float


def most_harmed(
    reference: NDArray[np.float64], model: NDArray[np.float64], wrong: NDArray[np.bool_], count: int
) -> tuple[Harmed, ...]:
    """Of the rows that the model has wrong, those whose own label lost most likelihood. Nobody who gained is named.

    >>> most_harmed(np.array([0.9, 0.5, 0.8]), np.array([0.1, 0.4, 0.7]), np.array([True, True, False]), 2)
    (Harmed(row=0, reference=0.9, model=0.1), Harmed(row=1, reference=0.5, model=0.4))
    """
    loss = np.where(wrong, reference - model, 0.0)
    order = np.argsort(-loss, kind="stable")[:count]
    return tuple(Harmed(int(row), float(reference[row]), float(model[row])) for row in order if loss[row] > 0)


def _name(number: int, parts: int) -> str:
    ends = {1: " (hardest)", parts: " (easiest)"}
    return f"tenth {number}{ends.get(number, '')}"
