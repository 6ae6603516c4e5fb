"""Checks of single arguments. The name travels as a keyword, so that every message names its argument.

>>> positive(clip_norm=1.0)
>>> positive(clip_norm=-1.0)
Traceback (most recent call last):
    ...
sordino.errors.UsageError: clip_norm must be a finite number above 0, got -1.0.
"""

from __future__ import annotations

import sys
from numbers import Integral, Real

from sordino.errors import UsageError


def positive(**arguments: object) -> None:
    """Each argument is a finite number above zero."""
    for name, value in arguments.items():
        if not _is_finite(value) or not float(value) > 0:  # type: ignore[arg-type]
            raise UsageError(f"{name} must be a finite number above 0, got {value!r}.")


def between(low: float, high: float, *, low_open: bool = False, high_open: bool = False, **arguments: object) -> None:
    """Each argument is a finite number in the interval from `low` to `high`."""
    interval = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
    for name, value in arguments.items():
        inside = _is_finite(value) and low <= float(value) <= high  # type: ignore[arg-type]
        if not inside or (low_open and value == low) or (high_open and value == high):
            raise UsageError(f"{name} must be in {interval}, got {value!r}.")


def count(*, at_least: int = 1, at_most: int = 10**9, **arguments: object) -> None:
    """Each argument is a whole number. A float is refused even if it is whole: a unit was probably mixed up."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or not at_least <= int(value) <= at_most:
            raise UsageError(f"{name} must be a whole number from {at_least} to {at_most}, got {value!r}.")


def instance(expected: type | tuple[type, ...], **arguments: object) -> None:
    """Each argument is an instance of `expected`. A class is none, even of a protocol whose methods it has."""
    types = expected if isinstance(expected, tuple) else (expected,)
    names = " or ".join(kind.__name__ for kind in types)
    for name, value in arguments.items():
        if not isinstance(value, types) or (isinstance(value, type) and type not in types):
            raise UsageError(f"{name} must be a {names}, got {type(value).__name__}: {value!r:.80}.")


def _is_finite(value: object) -> bool:
    # A whole number of hundreds of digits is finite, and still has no place among floats.
    return isinstance(value, Real) and not isinstance(value, bool) and abs(value) <= sys.float_info.max  # type: ignore
