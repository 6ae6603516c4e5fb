"""`sordino train`: from a data set to a folder with a private model."""

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
from sordino.recipes.settings import declared
from sordino.training.run_folder import RunFolder


@with_settings("train")
def train(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe, as TOML. Options override it.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run [runs/DATA-MODEL-N].")] = None,
    resume: Annotated[Path | None, typer.Option(help="Folder of a run that was stopped.")] = None,
    draw_again: Annotated[
        bool, typer.Option("--draw-again", help="Resume on other hardware, for a larger epsilon.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log public quantities for TensorBoard.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
    **settings: Any,
) -> None:
    """Train a private model, by a recipe or by options, into a folder that can be resumed and given away."""
    from sordino.recipes.run import carry_out
    from sordino.training.callbacks import EventLog

    names = settings if recipe is not None or resume is not None else declared(Recipe)
    with naming_options(*names):
        if resume is None:
            if draw_again:
                raise UsageError("--draw-again goes with --resume RUN.")
            wanted = recipe_of(recipe, settings)
            folder = out or unused_folder(wanted)
        else:
            if settings or recipe is not None or out is not None:
                raise UsageError("a run is resumed by its own recipe: give nothing but --resume RUN.")
            folder, wanted = resume, Recipe.of_run(RunFolder(resume))
        again = {"resume": resume is not None, "draw_again": draw_again}
        callbacks = [EventLog(folder / "tensorboard")] if tensorboard else []
        with _saying_how_to_resume(folder):
            run = carry_out(wanted, folder, **again, progress=not quiet, callbacks=callbacks)
    print_end(run, wanted)


@contextmanager
def _saying_how_to_resume(folder: Path) -> Iterator[None]:
    try:
        yield
    except Interrupted as stopped:
        raise Interrupted(f"{stopped} sordino train --resume {str(folder)!r}") from None


def recipe_of(path: Path | None, settings: dict[str, Any]) -> Recipe:
    """The recipe in a file with these settings changed, or one of these settings."""
    if path is not None:
        return Recipe.read(path).changed(**settings)
    for name, each in declared(Recipe).items():
        if each.is_required and name not in settings:
            raise UsageError(f"say {each.options[0]}, or give a recipe.")
    return Recipe(**settings)


def unused_folder(recipe: Recipe) -> Path:
    """A new folder, made at once: another process that asks at the same time gets another."""
    name = f"{Path(recipe.data).stem or 'data'}-{recipe.model}"
    for place in itertools.count(1):
        folder = RunFolder(Path("runs") / f"{name}-{place}")
        if not folder.private.exists() and folder.make():
            break
    return folder.path


def print_end(folder: RunFolder, asked: Recipe | None = None) -> None:
    """Prints what a finished run promises, how good it is, and what was decided that nobody `asked` for."""
    promised: dict[str, Any] = folder.privacy()
    last: dict[str, Any] = (folder.metrics() or [{}])[-1]
    measured = [(name.replace("_", " "), f"{value:.4f}") for name, value in last.items() if name.startswith("test_")]
    epsilon = f"{rounded_up(promised['epsilon'], 6)} under {promised['adjacency']}"
    print_columns([("run", str(folder.path)), *measured, ("epsilon", epsilon), ("delta", str(promised["delta"]))])
    if asked is not None and asked.delta is None:
        print(f"({delta_note(promised['delta'])})")
    print()
    console = Console(highlight=False, markup=False, file=sys.stdout)
    console.print(promised["statement"], soft_wrap=not console.is_terminal)
