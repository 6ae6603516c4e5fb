"""`sordino data`, `sordino models` and `sordino pretrain`: datasets, networks by name, and pretrained weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino._input.files import write_atomically
from sordino.cli.commands import Command
from sordino.cli.options import naming_options, print_columns, whole_number
from sordino.data.published import NAMES, SOURCES, is_complete, root
from sordino.errors import DataError, UsageError

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, help="List and fetch datasets, and draft the schema of a table."
)


@app.command("list", cls=Command)
def list_sets() -> None:
    """List the standard datasets and their files."""
    folder = root()
    print_columns([("name", "where", "size"), *((name, _where(name, folder), _size(name)) for name in NAMES)])


@app.command("fetch", cls=Command)
def fetch_set(name: Annotated[str, typer.Argument(help="A name from `sordino data list`.")]) -> None:
    """Download a standard dataset and verify its SHA-256."""
    from sordino.data import fetch

    print(fetch(name))


@app.command(cls=Command)
def schema(
    file: Annotated[Path, typer.Argument(help="Table (.csv, .tsv, .csv.gz, .tsv.gz, .parquet) or arrays (.npz).")],
    out: Annotated[Path | None, typer.Option(help="Output file, which must not exist [standard output].")] = None,
    delimiter: Annotated[str | None, typer.Option(help="Delimiter of a CSV file [from the column names].")] = None,
    quote: Annotated[str | None, typer.Option(help="Quote of a CSV file [from the column names].")] = None,
    escape: Annotated[str | None, typer.Option(help="Escapes a quote in a quoted cell [quotes are doubled].")] = None,
    decimal: Annotated[str, typer.Option(help="Mark before decimals, . or , [from the rows].")] = ".",
    missing: Annotated[
        list[str] | None, typer.Option(help="Further marker of missing cells, as -999; may be repeated.")
    ] = None,
) -> None:
    """Draft the schema of a table or of arrays.

    The draft is computed from private rows: a person must confirm or replace each fact before it can be used.
    """
    from sordino.data.dialect import Dialect
    from sordino.data.drafts import draft

    if out is not None and out.exists():
        raise UsageError(f"{str(out)!r} exists and is not overwritten: give another name.")
    with naming_options("delimiter", "quote", "escape", "decimal"):
        dialect = Dialect(delimiter and delimiter.replace("\\t", "\t"), quote, escape, decimal)
    text = draft(file, dialect=dialect, missing=missing or ())
    if out is None:
        print(text, end="")
    else:
        write_atomically(out, text.encode(), private=True)
        print(
            f"{str(out)!r} was computed from private rows: confirm or replace each fact, then set confirmed_public = "
            "true."
        )


def _where(name: str, folder: Path) -> str:
    if name not in SOURCES:
        return "comes with Sordino"
    return repr(str(folder / name)) if is_complete(name, folder) else "missing, run `sordino data fetch`"


def _size(name: str) -> str:
    """Total size of the files of a dataset."""
    files = [file for source in SOURCES.get(name, ()) for file in source.kept]
    return f"{sum(file.size for file in files) / 1e6:.0f} MB" if files else "-"


def models() -> None:
    """List the networks that can be trained by name."""
    from sordino.recipes import names

    print_columns([("name", "description"), *names()])


def pretrain(
    out: Annotated[Path, typer.Option(help="Output file, .safetensors, which must not exist.")],
    model: Annotated[str, typer.Option(help="Image network: a name from `sordino models`.")] = "resnet-20",
    shape: Annotated[str, typer.Option(help="Channels, height and width of the images, as 3x32x32.")] = "3x32x32",
    pictures: Annotated[int, whole_number("Number of synthetic images, each used once.")] = 60_000,
    seed: Annotated[int, whole_number("Seed for images and initial weights; it may be public.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress bar.")] = False,
) -> None:
    """Pretrain a network on synthetic images. No dataset is read, so this costs no privacy."""
    from sordino.training.transfer import pretrain as carry_out

    if out.suffix != ".safetensors":
        raise UsageError(f"out must end in .safetensors, got {str(out)!r:.80}.")
    if out.exists():
        raise UsageError(f"{str(out)!r} exists and is not overwritten: give another name.")
    if not out.parent.is_dir():
        raise UsageError(f"the folder of {str(out)!r} must exist.")
    learnt = carry_out(model, _sizes(shape), pictures=pictures, seed=seed, progress=not quiet)
    try:
        learnt.save(out)
    except OSError as error:
        raise DataError(f"{str(out)!r} cannot be written: {error.strerror}.") from None
    cost = "none: no private row was read"
    print_columns([("file", str(out)), ("model", model), ("images", str(pictures)), ("privacy cost", cost)])


def _sizes(shape: str) -> tuple[int, ...]:
    sizes = shape.split("x")
    if len(sizes) != 3 or not all(size.isdecimal() and size.isascii() and len(size) <= 4 for size in sizes):
        raise UsageError(f"shape must be channels, height and width, as 3x32x32, got {shape!r:.80}.")
    return tuple(int(size) for size in sizes)
