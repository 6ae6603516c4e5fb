"""`sordino reproduce` without the package `sordino_papers`, which registers the real command as an entry point."""

from __future__ import annotations

from typing import Annotated

import typer

from sordino.errors import UsageError


def reproduce(
    arguments: Annotated[list[str] | None, typer.Argument(help="Name of the table, and its options.")] = None,
) -> None:
    """Reproduce a table of a paper, and compare our numbers with the paper's."""
    raise UsageError(
        "`sordino reproduce` is in the package sordino-papers, which is not installed: run `pip install -e papers` in "
        "a checkout of the repository."
    )
