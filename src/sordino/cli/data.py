"""`sordino data`: lists and fetches datasets, and drafts the schema of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino._input.files import write_atomically
from sordino.cli.commands import Command
from sordino.cli.options import print_columns
from sordino.data import fetch, root
from sordino.data.published import SOURCES
from sordino.data.standard import NAMES, is_complete
from sordino.errors import UsageError

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, help="List and fetch datasets, and draft the schema of a table."
)


@app.command("list", cls=Command)
def list_sets() -> None:
    """List the standard datasets and where they are."""
    folder = root()
    print_columns([("name", "where", "size"), *((name, _where(name, folder), _size(name)) for name in NAMES)])


@app.command("fetch", cls=Command)
def fetch_set(name: Annotated[str, typer.Argument(help="A name from `sordino data list`.")]) -> None:
    """Download a standard dataset and verify its checksum."""
    print(fetch(name))


@app.command(cls=Command)
def schema(
    file: Annotated[Path, typer.Argument(help="A table, .csv or .parquet.")],
    out: Annotated[Path | None, typer.Option(help="Write the draft here; an existing file is kept.")] = None,
) -> None:
    """Draft the schema of a table. It is read from private rows: a person must confirm that each fact is public."""
    from sordino.data.schema import draft

    if out is not None and out.exists():
        raise UsageError(f"{str(out)!r} exists and is not overwritten: give another name.")
    text = draft(file)
    if out is None:
        print(text, end="")
    else:
        write_atomically(out, text.encode(), private=True)
        print(f"{str(out)!r} was read off private rows: confirm or replace each fact, then set confirmed_public.")


def _where(name: str, folder: Path) -> str:
    if name not in SOURCES:
        return "comes with Sordino"
    return repr(str(folder / name)) if is_complete(name, folder) else "missing, get it with fetch"


def _size(name: str) -> str:
    """Of its files on disk."""
    files = [file for source in SOURCES.get(name, ()) for file in source.kept]
    return f"{sum(file.size for file in files) / 1e6:.0f} MB" if files else "-"
