"""Checks of the column names of a table. A name that is shown is one that the schema has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sordino.errors import DataError


def refuse_repeated(header: Sequence[str], shown: str) -> None:
    """Refuses two columns of one name."""
    if len(set(header)) < len(header):
        raise DataError(f"{shown}: two columns have the same name, or the names are missing.")


def refuse_absent(wanted: Iterable[str], header: Sequence[str], shown: str) -> None:
    """Refuses a header that lacks a wanted column.

    >>> refuse_absent(["age", "sex"], ["age", "height"], "'people.csv'")
    Traceback (most recent call last):
        ...
    sordino.errors.DataError: 'people.csv' has no column 'sex'.
    """
    for name in wanted:
        if name not in header:
            raise DataError(f"{shown} has no column {name!r}.")
