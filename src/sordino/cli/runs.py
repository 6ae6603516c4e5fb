"""`sordino runs`, `sordino report` and `sordino predict`: list runs, describe their guarantees, apply their models."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sordino._input.files import write_atomically
from sordino._input.strict_toml import Table
from sordino.accounting.guarantee import rounded_up
from sordino.cli.options import ModelFunction, print_columns
from sordino.errors import DataError, SordinoError, UsageError
from sordino.recipes.recipe import undescribed
from sordino.training.run_folder import RunFolder


def runs(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Run folders, or folders that contain them [runs/].")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List and compare runs: the guarantee and the measured accuracy of each."""
    rows = [_summary(RunFolder(path)) for path in _found(folders or [Path("runs")])]
    if as_json:
        print(json.dumps({"rows": rows}, indent=2))
        return
    headings = list(dict.fromkeys([*_HEADINGS, *(name for row in rows for name in row)]))
    print_columns([headings, *([_shown(name, row.get(name, "")) for name in headings] for row in rows)])


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    data: Annotated[
        str, typer.Option(help="New rows: a file, a folder of images, or a standard dataset (its test rows).")
    ],
    out: Annotated[Path | None, typer.Option(help="Output file, as CSV [standard output].")] = None,
    model: ModelFunction = None,
) -> None:
    """Apply the model of a run to new rows.

    The model is differentially private, so predictions cost no further privacy of the training data.
    """
    from sordino.recipes import read_run

    answers = read_run(run, model=model).predict(data)
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(answers[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(answers)
    if out is None:
        sys.stdout.write(buffer.getvalue())
        return
    if out.exists() and not out.is_file():  # a pipe or a device would be replaced
        raise DataError(f"{str(out)!r} cannot be written: it is not a regular file.")
    try:
        write_atomically(out, buffer.getvalue().encode())
    except OSError as error:
        raise DataError(f"{str(out)!r} cannot be written: {error.strerror}.") from None


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folder of a finished run, or folders of several to compare.")],
    out: Annotated[Path | None, typer.Option(help="Output folder [the run folder, or comparison/].")] = None,
    data: Annotated[str | None, typer.Option(help="Public rows to measure a run of your own model on.")] = None,
    model: ModelFunction = None,
) -> None:
    """Write the privacy card of a run, or compare several runs.

    Writes report.html and report.json.
    """
    from sordino.report import write_card, write_comparison  # matplotlib is slow to import

    if not runs:
        raise UsageError("give at least one run folder.")
    if len(runs) == 1:
        print(write_card(runs[0], out, model=model, data=data))
    else:
        print(write_comparison(runs, out or Path("comparison"), model=model, data=data))


def _found(paths: list[Path]) -> list[Path]:
    """Run folders among the paths, and run folders inside each path that is not one."""
    found = []
    for path in paths:
        is_run = RunFolder(path).is_run
        inside = [path] if is_run else sorted({p.parent for name in _NAMES for p in path.glob(f"*/{name}")})
        if not inside:
            raise UsageError(f"there is no run in {str(path)!r}{undescribed(RunFolder(path))}.")
        found += inside
    return found


_NAMES = ("recipe.toml", "training.json")  # one of them is in the folder of every run
_HEADINGS = ("run", "state", "data", "model", "epsilon", "delta", "adjacency", "unit")


def _summary(folder: RunFolder) -> dict[str, Any]:
    """One row of the table. A damaged run gets a row that says so, so that the others are still listed."""
    try:
        data, model = _data_and_model(folder)
        rows = folder.metrics()
        promised = folder.privacy() if folder.is_begun or folder.is_finished else {}
    except SordinoError as error:
        return {"run": str(folder.path), "state": f"damaged: {error}"}
    last = rows[-1] if rows else {}
    if folder.is_finished:
        state = "finished"
    else:
        state = f"step {last.get('step', 0)} of {promised['steps']}" if "steps" in promised else "not begun"
    about = {"run": str(folder.path), "state": state, "data": data, "model": model}
    measured = {name: value for name, value in last.items() if name.startswith(("test_", "validation_"))}
    return about | {name: promised[name] for name in _HEADINGS if name in promised} | measured


def _data_and_model(folder: RunFolder) -> tuple[str, str]:
    """What was trained on what: by the recipe, or the class of a model of one's own. Other settings are not read."""
    if folder.has_recipe:
        recipe = Table.parse(folder.recipe(), what=f"the recipe in {str(folder.path)!r}")
        return recipe.text("data"), recipe.text("model")
    training = Table(folder.training(), f"training.json in {str(folder.path)!r}")
    return "own rows", training.table("model").text("class")


def _shown(name: str, value: object) -> str:
    if name == "epsilon" and isinstance(value, float):
        return rounded_up(value)
    return f"{value:.4f}" if name not in _HEADINGS and isinstance(value, float) else str(value)
