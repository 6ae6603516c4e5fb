"""`sordino report`: what a run promises, on a page that can be signed; several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.errors import UsageError


def report(
    runs: Annotated[list[Path], typer.Argument(help="The folder of a finished run, or of several to compare.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; the run itself, or comparison/, unless said.")
    ] = None,
) -> None:
    """Write report.html and report.json: the privacy card of a run, or a comparison of several."""
    from sordino.report import write_card, write_comparison  # matplotlib is slow to import

    if not runs:
        raise UsageError("say at least one run.")
    written = write_card(runs[0], out) if len(runs) == 1 else write_comparison(runs, out or Path("comparison"))
    print(written)
