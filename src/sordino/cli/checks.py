"""`sordino verify` and `sordino audit`: try to refute a guarantee, on synthetic neighbors and with canaries."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino._input import validate
from sordino.cli.options import (
    LossFunction,
    ModelFunction,
    naming_options,
    number,
    print_columns,
    whole_number,
    with_settings,
)
from sordino.errors import UsageError
from sordino.recipes.recipe import Recipe
from sordino.recipes.settings import declared, option_of

if TYPE_CHECKING:
    from sordino.recipes.own_model import OwnRun


@with_settings("verify")
def verify(
    recipe: Annotated[
        Path | None, typer.Argument(help="Recipe (a TOML file) or run folder. Options override its settings.")
    ] = None,
    seed: Annotated[int, whole_number("Seed of the synthetic run.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Output folder for verification.html and verification.json.")] = None,
    **settings: Any,
) -> None:
    """Test a recipe's privacy mechanism on synthetic neighbors.

    Checks sensitivity, noise, batches and accounting, and reads no private row. Exit code 1 means refuted. For a run of
    your own model, the plan in its folder is tested.
    """
    from sordino.cli.train import recipe_of
    from sordino.recipes.prepared import verify_own, verify_recipe
    from sordino.report.card import facts_as_json
    from sordino.report.verdict import check_rows, verdict_facts, write_verdict

    validate.count(at_least=0, at_most=2**32, seed=seed)
    with naming_options(*(settings if recipe is not None else declared(Recipe))):
        if recipe is not None and _is_own_run(recipe):
            found = verify_own(_own_run(recipe, **settings), seed=seed)
        else:
            wanted = recipe_of(None, settings) if recipe is None else _recipe_at(recipe).changed(**settings)
            found = verify_recipe(wanted, seed=seed)
    verdict = found.verdict
    page = None if out is None else write_verdict(out, found.title, verdict, found.noise, found.not_checked)
    if as_json:
        print(facts_as_json(verdict_facts(found.title, verdict, found.noise, found.not_checked)))
    else:
        print_columns(check_rows(verdict))
        print()
        for what in found.not_checked:
            print(f"Not checked: {what}")
        print(f"{found.title}: {verdict.says}, {len(verdict.findings)} comparisons.")
        if page is not None:
            print(page)
    if not verdict.passed:
        raise typer.Exit(1)


def audit(
    recipe: Annotated[Path, typer.Argument(help="Recipe (a TOML file) or run folder. It is trained again.")],
    canaries: Annotated[
        int | None, whole_number("Number of canaries in each training [1000, or as many as fit].")
    ] = None,
    box: Annotated[
        str, typer.Option(help="Adversary: white (sees every release) or black (sees the final model).")
    ] = "white",
    method: Annotated[
        str, typer.Option(help="Method whose bound decides: one-run, f-dp, gaussian or clopper-pearson.")
    ] = "one-run",
    confidence: Annotated[float, number("Confidence level of each bound, in (0, 1).")] = 0.95,
    delta: Annotated[float | None, number("Delta at which epsilons are compared [that of the recipe].")] = None,
    worst_start: Annotated[
        bool, typer.Option("--worst-start", help="black: start from weights trained on public rows.")
    ] = False,
    repeats: Annotated[int, whole_number("Number of trainings, whose canaries are pooled.")] = 1,
    seed: Annotated[int, whole_number("Seed for canaries and trainings.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder [RECIPE.internal or RUN.internal]."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress bar.")] = False,
    model: ModelFunction = None,
    loss: LossFunction = None,
    data: Annotated[str | None, typer.Option(help="Rows for a run of your own model [synthetic rows].")] = None,
) -> None:
    """Train with canaries and bound epsilon from below.

    The result is not private, and is written beside the run. Exit code 1 means refuted.
    """
    from sordino.attacks.audit.audit import HEADINGS, bound_rows, check_place, facts, write_audit
    from sordino.attacks.audit.audit import audit as carry_out
    from sordino.report.card import facts_as_json
    from sordino.training.progress import progress_bar

    if _is_own_run(recipe):
        wanted: Recipe | OwnRun = _own_run(recipe, model=model, data=data)
    elif data is not None:
        raise UsageError("--data goes with a run of a model of your own, and this has a recipe.")
    else:
        wanted = _recipe_at(recipe).with_code(model=model, loss=loss)
    folder = out or _beside(recipe)
    check_place(folder)
    with ExitStack() as stack:
        bar = progress_bar(not quiet and not as_json)
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
            on_start=lambda: stack.enter_context(bar),  # not before a refusal
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
        if canaries is None:
            print(f"{found.canaries // repeats} canaries in each training (default: 1000, or as many as fit).")
        for note in found.notes:
            print(note)
        print(f"{found.title}: {found.says}. The files written are {found.warning}.")
        print(page)
    if found.refuted:
        raise typer.Exit(1)


def _beside(recipe: Path) -> Path:
    """The internal folder beside the run, or beside a recipe that belongs to no run."""
    from sordino.training.run_folder import RunFolder

    folder = recipe.resolve() if recipe.is_dir() else recipe.resolve().parent
    if RunFolder(folder).may_leave:
        return folder.with_name(f"{folder.name}.internal")
    return recipe.with_name(f"{recipe.stem}.internal")


def _is_own_run(path: Path) -> bool:
    from sordino.recipes.own_model import is_own_run
    from sordino.training.run_folder import RunFolder

    return path.is_dir() and is_own_run(RunFolder(path))


def _own_run(path: Path, model: str | None = None, data: str | None = None, **settings: Any) -> OwnRun:
    """A run of a model of one's own. Its plan is that of its folder, so that no setting can be changed."""
    from sordino.recipes.own_model import OwnRun

    for name in settings:
        raise UsageError(
            f"{option_of(name)} cannot be changed: {str(path)!r} has no recipe, and the plan is that of the run."
        )
    return OwnRun.read(path, model, data)


def _recipe_at(path: Path) -> Recipe:
    """Reads a recipe from a file or from a run folder, which has its own copy of the schema."""
    from sordino.recipes import Recipe
    from sordino.training.run_folder import RunFolder

    if not path.is_dir():
        return Recipe.read(path)
    folder = RunFolder(path)
    recipe = Recipe.of_run(folder)
    return recipe if folder.schema is None else recipe.changed(schema=str(folder.schema))
