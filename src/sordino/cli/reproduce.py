"""`sordino reproduce`: a table of a paper. The command itself is in the package `sordino_papers`."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Annotated

import typer

from sordino.errors import UsageError

GROUP = "sordino.commands"


def reproduce(
    arguments: Annotated[list[str] | None, typer.Argument(help="Name of the table, and its options.")] = None,
) -> None:
    """Make a table of a paper: our numbers beside the paper's."""
    found = [entry for entry in entry_points(group=GROUP) if entry.name == "reproduce"]
    if not found:
        raise UsageError(
            "`sordino reproduce` is in the package sordino-papers, which is not installed: run `pip install -e papers` "
            "in a checkout of the repository."
        )
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(found[0].load())
    code = typer.main.get_command(app).main(arguments or [], prog_name="sordino reproduce", standalone_mode=False)
    if code:
        raise typer.Exit(code)
