"""`sordino runs`, `sordino predict` and `sordino models`: what was trained, what it says, and what can be trained."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sordino.cli.options import print_columns
from sordino.errors import DataError, SordinoError, UsageError
from sordino.files import write_atomically
from sordino.models import names
from sordino.recipes import Recipe, Saved
from sordino.store import RunFolder


def runs(
    folders: Annotated[list[Path] | None, typer.Argument(help="Runs, or folders of them; runs/ unless said.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List and compare runs: what was promised, and what was measured."""
    rows = [_summary(path) for path in _found(folders or [Path("runs")])]
    if as_json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    headings = list(dict.fromkeys(name for row in rows for name in row))
    print_columns([headings, *([_shown(row.get(name, "")) for name in headings] for row in rows)])


def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[str, typer.Option(help="New rows: a file, a folder of pictures, or a standard set's test rows.")],
    out: Annotated[Path | None, typer.Option(help="Write CSV here instead of to standard output.")] = None,
) -> None:
    """Apply a saved model to new rows. The model is private; what it says about a row may be shown."""
    answers = Saved.read(run).predict(data)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(answers[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(answers)
    if out is None:
        sys.stdout.write(buffer.getvalue())
        return
    try:
        write_atomically(out, buffer.getvalue().encode())
    except OSError as error:
        raise DataError(f"{str(out)!r} cannot be written: {error.strerror}.") from None


def models() -> None:
    """List the networks that can be trained by name."""
    print_columns([("name", "what it is"), *names()])


def _found(paths: list[Path]) -> list[Path]:
    """Each path that is a run, and the runs inside each that is not."""
    found = []
    for path in paths:
        inside = [path] if (path / "recipe.toml").exists() else sorted(p.parent for p in path.glob("*/recipe.toml"))
        if not inside:
            raise UsageError(f"there is no run in {str(path)!r}.")
        found += inside
    return found


def _summary(path: Path) -> dict[str, Any]:
    """One line about a run. A damaged one says so instead of hiding the others."""
    folder = RunFolder(path)
    try:
        recipe = Recipe.parse(folder.recipe(), what=repr(str(path / "recipe.toml")))
        rows: list[dict[str, Any]] = folder.metrics()
        promised = folder.privacy() if folder.is_begun else {}
    except SordinoError as error:
        return {"run": str(path), "state": f"damaged: {error}"}
    last = rows[-1] if rows else {}
    steps: Any = promised.get("steps", 0)
    state = "finished" if folder.is_finished else f"stopped at step {last.get('step', 0)} of {steps}"
    measured = {name: value for name, value in last.items() if name.startswith(("test_", "validation_"))}
    return {
        "run": str(path),
        "data": recipe.data,
        "model": recipe.model,
        "epsilon": promised.get("epsilon", ""),
        "delta": promised.get("delta", ""),
        "adjacency": promised.get("adjacency", ""),
        "state": state,
        **measured,
    }


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
