"""`sordino audit`: what canaries show of epsilon, beside what is promised."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.options import number, print_columns, whole_number


def audit(
    recipe: Annotated[Path, typer.Argument(help="A recipe, as TOML. It is trained anew, with canaries.")],
    canaries: Annotated[int, whole_number("How many canaries each training has.")] = 1000,
    box: Annotated[str, typer.Option(help="white (every release is seen) or black (the final model).")] = "white",
    method: Annotated[
        str, typer.Option(help="Whose bound decides: one-run, f-dp, gaussian or clopper-pearson.")
    ] = "one-run",
    confidence: Annotated[float, number("Of each bound.")] = 0.95,
    delta: Annotated[float | None, number("At which epsilons are compared; the recipe's unless said.")] = None,
    worst_start: Annotated[
        bool, typer.Option("--worst-start", help="black box: begin with weights trained on public rows.")
    ] = False,
    repeats: Annotated[int, whole_number("How many trainings, whose canaries count together.")] = 1,
    seed: Annotated[int, whole_number("Of canaries, coins and trainings.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="A folder for what is found; RECIPE.internal, or RUN.internal, unless said."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Train a recipe anew with canaries, and bound epsilon from below. Exit code 1 is refuted. Not private."""
    from rich.console import Console
    from rich.progress import Progress

    from sordino.attacks.audit.audit import audit as carry_out
    from sordino.attacks.audit.pages import HEADINGS, bound_rows, check_place, facts, write_audit
    from sordino.recipes import Recipe
    from sordino.report.card import facts_as_json

    wanted, folder = Recipe.read(recipe), out or _beside(recipe)
    check_place(folder)
    with Progress(console=Console(stderr=True), disable=quiet or as_json) as bar:
        task = bar.add_task("training with canaries", total=None)
        found = carry_out(
            wanted,
            canaries=canaries,
            box=box,
            method=method,
            worst_start=worst_start,
            repeats=repeats,
            confidence=confidence,
            delta=delta,
            seed=seed,
            on_step=lambda taken, planned: bar.update(task, completed=taken, total=planned),
        )
    page = write_audit(found, folder)
    if as_json:
        print(facts_as_json({"verdict": found.says, "notes": list(found.notes)} | asdict(found)))
    else:
        print_columns(facts(found))
        print()
        print_columns([HEADINGS, *bound_rows(found)])
        print()
        for note in found.notes:
            print(note)
        print(f"{found.title}: {found.says}. What was written is {found.warning}.")
        print(page)
    if found.refuted:
        raise typer.Exit(1)


def _beside(recipe: Path) -> Path:
    """Beside the recipe, or beside the run that it is the recipe of."""
    from sordino.training.run_folder import RunFolder

    folder = recipe.resolve().parent
    if RunFolder(folder).may_leave:
        return folder.with_name(f"{folder.name}.internal")
    return recipe.with_name(f"{recipe.stem}.internal")
