"""Adjacency: which two datasets count as neighbors. It is printed with every epsilon, which has no meaning without."""

from __future__ import annotations

from enum import StrEnum


class Adjacency(StrEnum):
    """The way in which one privacy unit may differ between two neighboring datasets.

    >>> Adjacency("zero-out").in_words
    "one unit's data is replaced by nothing, while the number of units and their positions are public"
    """

    ZERO_OUT = "zero-out"
    """A unit is replaced by one that contributes zero. Size and positions are public. Sensitivity: one clip norm."""

    ADD_OR_REMOVE = "add-or-remove"
    """A unit is added or removed, so that the size of the data is private too. Sensitivity: one clip norm."""

    REPLACE_ONE = "replace-one"
    """A unit is replaced by any other one. Sensitivity: two clip norms."""

    @property
    def in_words(self) -> str:
        """The adjacency as part of a sentence."""
        return _IN_WORDS[self]


_IN_WORDS = {
    Adjacency.ZERO_OUT: (
        "one unit's data is replaced by nothing, while the number of units and their positions are public"
    ),
    Adjacency.ADD_OR_REMOVE: "one unit's data is added or removed, so that the number of units is protected too",
    Adjacency.REPLACE_ONE: "one unit's data is replaced by any other data, while the number of units is public",
}
