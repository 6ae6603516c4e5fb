"""`sordino train`: train a private model and write a run folder."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sordino.accounting.guarantee import rounded_up
from sordino.cli.options import naming_options, print_columns, with_settings
from sordino.errors import Interrupted, UsageError
from sordino.recipes.planning import delta_note
from sordino.recipes.recipe import Recipe
from sordino.recipes.settings import declared, names_code
from sordino.recipes.transformer_settings import is_transformer
from sordino.training.run_folder import RunFolder


@with_settings("train")
def train(
    recipe: Annotated[Path | None, typer.Argument(help="Recipe, a TOML file of settings. Options override it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run [runs/DATA-MODEL-N].")] = None,
    resume: Annotated[Path | None, typer.Option(help="Folder of a stopped run to resume.")] = None,
    draw_again: Annotated[
        bool, typer.Option("--draw-again", help="Resume on other hardware: repeats steps, with a larger epsilon.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Log public quantities for TensorBoard into the run folder.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress bar.")] = False,
    **settings: Any,
) -> None:
    """Train a private model and write a run folder.

    Settings come from a recipe or from options. What is not given is chosen from public facts. The run folder may be
    published, and a stopped run can be resumed.
    """
    from sordino.recipes.run import carry_out
    from sordino.training.callbacks import EventLog

    names = settings if recipe is not None or resume is not None else declared(Recipe)
    with naming_options(*names):
        if resume is None:
            if draw_again:
                raise UsageError("--draw-again needs --resume RUN.")
            wanted = recipe_of(recipe, settings)
            folder = out or unused_folder(wanted)
        else:
            if set(settings) - {"model", "loss"} or recipe is not None or out is not None:
                raise UsageError("a run is resumed with its own recipe: give no settings besides --resume RUN.")
            folder, wanted = resume, Recipe.of_run(RunFolder(resume)).with_code(**settings)
        again = {"resume": resume is not None, "draw_again": draw_again}
        callbacks = [EventLog(folder / "tensorboard")] if tensorboard else []
        with _saying_how_to_resume(folder, wanted):
            run = carry_out(wanted, folder, **again, progress=not quiet, callbacks=callbacks)
    print_end(run, wanted)


@contextmanager
def _saying_how_to_resume(folder: Path, recipe: Recipe) -> Iterator[None]:
    code = (("--model", recipe.model), ("--loss", recipe.loss))
    try:
        yield
    except Interrupted as stopped:
        named = "".join(f" {option} {name}" for option, name in code if names_code(name))
        raise Interrupted(f"{stopped} sordino train --resume {str(folder)!r}{named}") from None


def recipe_of(path: Path | None, settings: dict[str, Any]) -> Recipe:
    """The recipe in a file, changed by the settings, or a recipe of the settings alone."""
    if path is not None:
        return Recipe.read(path).changed(**settings)
    for name, each in declared(Recipe).items():
        if each.is_required and name not in settings:
            raise UsageError(f"give {each.options[0]}, or a recipe.")
    return Recipe(**settings)


def unused_folder(recipe: Recipe) -> Path:
    """Makes a new folder. It is made at once, so that processes that run at the same time get different ones."""
    model = Path(recipe.model.partition(":")[2]).name if is_transformer(recipe.model) else recipe.model
    name = f"{Path(recipe.data).stem or 'data'}-{model.rpartition(':')[2] or 'transformer'}"
    for place in itertools.count(1):
        folder = RunFolder(Path("runs") / f"{name}-{place}")
        if not folder.private.exists() and folder.make():
            break
    return folder.path


def print_end(folder: RunFolder, asked: Recipe | None = None) -> None:
    """Prints the guarantee and the accuracy of a finished run, and a delta that the recipe `asked` left open."""
    from sordino.training.metrics import constant_is_better  # imports torch

    promised: dict[str, Any] = folder.privacy()
    last: dict[str, Any] = (folder.metrics() or [{}])[-1]
    measured = [(name.replace("_", " "), f"{value:.4f}") for name, value in last.items() if name.startswith("test_")]
    epsilon = f"{rounded_up(promised['epsilon'], 6)} under {promised['adjacency']}"
    print_columns([("run", str(folder.path)), *measured, ("epsilon", epsilon), ("delta", str(promised["delta"]))])
    if warning := constant_is_better(last, prefix="test_"):
        print(f"warning: {warning}")
    if asked is not None and asked.delta is None:
        print(f"({delta_note(promised['delta'])})")
    print()
    console = Console(highlight=False, markup=False, file=sys.stdout)
    console.print(promised["statement"], soft_wrap=not console.is_terminal)
