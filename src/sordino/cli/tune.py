"""`sordino tune`: search for settings and write the run folder of the best model, with a guarantee for all trials."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sordino.cli.options import naming_options, number, print_columns, with_settings
from sordino.cli.train import print_end, recipe_of, unused_folder
from sordino.errors import Interrupted, UsageError
from sordino.recipes.recipe import Recipe
from sordino.recipes.settings import declared
from sordino.training.run_folder import RunFolder

_SEARCHED = (
    *("rule", "payment", "trials", "shape", "momenta", "factors"),
    *("one_stage", "score_std", "public_data", "public_schema"),
)


def numbers(meaning: str) -> Any:
    def parse(text: str) -> tuple[float, ...]:
        try:
            return tuple(float(each) for each in text.split(","))
        except ValueError:
            raise typer.BadParameter(f"must be numbers separated by commas, got {text!r:.80}.") from None

    return typer.Option(parser=parse, metavar="NUMBERS", help=meaning)


@with_settings("tune")
def tune(
    recipe: Annotated[Path | None, typer.Argument(help="Recipe, a TOML file of settings. Options override it.")] = None,
    rule: Annotated[str | None, typer.Option(help="Search rule: clip-momentum [clip-momentum].")] = None,
    payment: Annotated[
        str | None, typer.Option(help="Privacy accounting of trials: compose, repeat or public [compose].")
    ] = None,
    trials: Annotated[float | None, number("repeat: mean number of trials in a stage [6].")] = None,
    shape: Annotated[float | None, number("repeat: shape of the negative binomial number of trials [Poisson].")] = None,
    momenta: Annotated[Any, numbers("Momenta to try, in [0, 1) [0,0.5,0.9].")] = None,
    factors: Annotated[Any, numbers("Factors of the clipping norm to try, above 0 [0.5,2].")] = None,
    one_stage: Annotated[bool, typer.Option("--one-stage", help="Search the whole grid in one stage.")] = False,
    score_std: Annotated[
        float | None, number("Noise standard deviation of each trial's accuracy, in (0, 1] [0.01].")
    ] = None,
    public_data: Annotated[str | None, typer.Option(help="public: dataset on which candidates are tried.")] = None,
    public_schema: Annotated[str | None, typer.Option(help="public: schema of that dataset.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run [runs/DATA-MODEL-N].")] = None,
    resume: Annotated[Path | None, typer.Option(help="Folder of a stopped search to resume.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress bar.")] = False,
    **settings: Any,
) -> None:
    """Tune clipping norm and momentum, and keep the best model.

    The epsilon of the run counts every trial. Settings come from a recipe or from options.
    """
    options = {name: value for name, value in locals().items() if name in _SEARCHED}
    own = {name: value for name, value in options.items() if value is not None and value is not False}
    from sordino.tuning.recipe_search import resume_tuning, tune_by_recipe
    from sordino.tuning.search import Search

    if resume is not None:
        if settings or own or recipe is not None or out is not None:
            raise UsageError("a search is resumed with its own settings: give no settings besides --resume RUN.")
        folder = resume
    else:
        with naming_options(*_SEARCHED, *(settings if recipe is not None else declared(Recipe))):
            wanted = recipe_of(recipe, settings)
            if ":" in wanted.model:
                raise UsageError(f"model must be a name from `sordino models` to be tuned, got {wanted.model!r:.80}.")
            search = Search(**own)
            search.check(wanted)
        folder = out or unused_folder(wanted)
    try:
        if resume is None:
            with naming_options(*_SEARCHED, *(settings if recipe is not None else declared(Recipe))):
                tune_by_recipe(wanted, search, folder, progress=not quiet, then=partial(_print_best, wanted))
        else:
            resume_tuning(folder, progress=not quiet, then=partial(_print_best, None))
    except Interrupted as stopped:
        command = "train" if RunFolder(folder).is_run else "tune"
        raise Interrupted(f"{stopped} sordino {command} --resume {str(folder)!r}") from None


def _print_best(asked: Recipe | None, run: RunFolder) -> None:
    best = Recipe.of_run(run)
    print_columns([("clip", f"{best.clip:.6g}"), ("momentum", f"{best.momentum:.6g}")])
    print_end(run, asked)
