"""One family of errors. Each says what was wrong, what was got and what is allowed, in one line.

The exit code is what the command line ends with, so that a script can tell a typo from a spent budget.
"""

from __future__ import annotations


class SordinoError(Exception):
    """Anything Sordino refuses on purpose."""

    exit_code = 1


class UsageError(SordinoError, ValueError):
    """An argument is wrong. Raised before any data is touched."""

    exit_code = 2


class DataError(SordinoError):
    """A file or a data set does not have the declared structure."""

    exit_code = 3


class BudgetError(SordinoError):
    """The privacy budget does not allow this release."""

    exit_code = 4


class StateError(SordinoError):
    """A saved state is corrupt, hostile or belongs to something else."""

    exit_code = 5


class Interrupted(SordinoError):
    """Training was asked to stop and did, after a whole step. Nothing is lost: it can be resumed."""

    exit_code = 75


class UnsupportedEvent(SordinoError):
    """No accountant covers this event under this adjacency. An honest "no answer", never a guess."""

    exit_code = 2
