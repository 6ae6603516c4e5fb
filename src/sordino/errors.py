"""Exceptions of Sordino. A message is one line: what is wrong, what was given, what is allowed.

`exit_code` is the exit code of the command line, so that a script can tell a typo from a spent budget.
"""

from __future__ import annotations


class SordinoError(Exception):
    """Base class of all errors that Sordino raises on purpose."""

    exit_code = 1


class UsageError(SordinoError, ValueError):
    """An argument is wrong. Raised before any data is touched."""

    exit_code = 2


class DataError(SordinoError):
    """A file or a dataset does not have the declared structure."""

    exit_code = 3


class BudgetError(SordinoError):
    """The privacy budget does not allow this release."""

    exit_code = 4


class StateError(SordinoError):
    """A saved state is corrupt, hostile or belongs to another run or model."""

    exit_code = 5


class Interrupted(SordinoError):
    """Training stopped on request, after a whole step. Nothing is lost: it can be resumed."""

    exit_code = 75


class UnsupportedEvent(SordinoError):
    """No accountant has a proven bound for this event under this adjacency. Nothing is guessed."""

    exit_code = 2
