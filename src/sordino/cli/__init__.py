"""The command line: parses arguments, calls the library and prints results.

Exit codes: 0 done, 1 refuted, 2 wrong argument, 3 data, 4 budget, 5 corrupt state, 75 stopped and resumable. An error
is one line: what is wrong, what was given, what is allowed.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from sordino.cli.commands import Commands
from sordino.errors import SordinoError

app = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sordino {version('sordino')}, torch {version('torch')}, Python {sys.version.split()[0]}")
        raise typer.Exit


@app.callback()
def sordino(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train neural networks on sensitive data with a proof of differential privacy."""


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits. Every error is one line on standard error."""
    command = typer.main.get_command(app)
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = command.main(arguments or ["--help"], prog_name="sordino", standalone_mode=False)
    except SordinoError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:
        raise
    except OSError as error:
        place = "" if error.filename is None else f" {str(error.filename)!r}"
        _fail(f"I/O error:{place} {error.strerror or error}. Files written so far stay, and the run can be resumed.", 3)
    except Exception as error:
        if not hasattr(error, "format_message"):  # click's usage errors, whose module differs between typer versions
            raise
        _fail(error.format_message(), 2)
    sys.exit(code or 0)


def _fail(message: str, code: int) -> None:
    print("sordino: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(code)
