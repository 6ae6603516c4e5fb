"""Products of cases that keep a few in the fast tier: enough for every value, or every pair of values, to be there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Case = tuple[int, ...]  # for each factor, the index of its value


def product_of(*factors: Iterable[Any]) -> list[Any]:
    """The cases of a parametrization by all factors. Those that a smaller choice can leave out are slow tests.

    The choice has every value of two factors, and every pair of values of three or more.
    """
    values = [tuple(factor) for factor in factors]
    cases = list(product(*(range(len(each)) for each in values)))
    chosen = set(_every_value(values) if len(values) == 2 else _every_pair(cases))
    marks = {case: () if case in chosen else pytest.mark.slow for case in cases}
    return [pytest.param(*(each[i] for each, i in zip(values, case, strict=True)), marks=marks[case]) for case in cases]


def _every_value(values: Sequence[Sequence[Any]]) -> Iterator[Case]:
    return (tuple(number % len(each) for each in values) for number in range(max(map(len, values))))


def _every_pair(cases: Sequence[Case]) -> Iterator[Case]:
    """Each time the case that has most of the pairs that are left."""
    missing = {pair for case in cases for pair in _pairs(case)}
    while missing:
        best = max(cases, key=lambda case: len(missing & _pairs(case)))
        missing -= _pairs(best)
        yield best


def _pairs(case: Case) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    return set(combinations(enumerate(case), 2))
