"""`sordino tune`: the folder of a run with settings that were searched for, and a promise that counts the search."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from sordino.cli.options import number, print_columns, whole_number
from sordino.cli.train import print_end, recipe_of, unused_folder
from sordino.errors import Interrupted, UsageError
from sordino.recipes import Recipe
from sordino.training.run_folder import RunFolder


def numbers(meaning: str) -> Any:
    def parse(text: str) -> tuple[float, ...]:
        try:
            return tuple(float(each) for each in text.split(","))
        except ValueError:
            raise typer.BadParameter(f"must be numbers with commas between them, got {text!r:.80}.") from None

    return typer.Option(parser=parse, metavar="NUMBERS", help=meaning)


def tune(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe, as TOML. Options override it.")] = None,
    rule: Annotated[str | None, typer.Option(help="What is searched for, and how: clip-momentum.")] = None,
    payment: Annotated[str | None, typer.Option(help="compose (unless said), repeat or public.")] = None,
    trials: Annotated[float | None, number("repeat: how many trials a stage has on average.")] = None,
    shape: Annotated[
        float | None, number("repeat: of a negative binomial number of trials, not a Poisson one.")
    ] = None,
    momenta: Annotated[Any, numbers("The momenta to try, as 0,0.5,0.9.")] = None,
    factors: Annotated[Any, numbers("What clip norms are multiplied with, as 0.5,2.")] = None,
    one_stage: Annotated[
        bool, typer.Option("--one-stage", help="The whole grid at once, and not line by line.")
    ] = False,
    score_std: Annotated[float | None, number("Noise on the accuracy that trials are compared by; 0.01.")] = None,
    public_data: Annotated[str | None, typer.Option(help="public: the data to try candidates on.")] = None,
    public_schema: Annotated[str | None, typer.Option(help="public: the schema of that data.")] = None,
    data: Annotated[str | None, typer.Option(help="A name from `sordino data list`, or a path.")] = None,
    schema: Annotated[str | None, typer.Option(help="The public facts of a table or of arrays, as TOML.")] = None,
    model: Annotated[str | None, typer.Option(help="A name from `sordino models`.")] = None,
    epsilon: Annotated[float | None, number("Target epsilon, of all trials together.")] = None,
    delta: Annotated[float | None, number("Target delta, below 1 / examples.")] = None,
    batch_size: Annotated[int | None, whole_number("Expected batch size.")] = None,
    epochs: Annotated[float | None, number("Passes over the data in each trial.")] = None,
    steps: Annotated[int | None, whole_number("Optimizer steps in each trial, instead of epochs.")] = None,
    lr: Annotated[float | None, number("Learning rate.")] = None,
    clip: Annotated[float | None, number("The clip norm to start from.")] = None,
    momentum: Annotated[float | None, number("The momentum to start from.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adam.")] = None,
    sparsify: Annotated[float | None, number("Final rate of random sparsification, below 1; 0 for none.")] = None,
    sampler: Annotated[str | None, typer.Option(help="How batches are drawn, as in `sordino plan`.")] = None,
    seed: Annotated[int | None, whole_number("Makes a tuning reproducible, its noise as public as the seed.")] = None,
    allow_weak: Annotated[bool, typer.Option("--allow-weak", help="Accept epsilon above 20.")] = False,
    allow_large_delta: Annotated[
        bool, typer.Option("--allow-large-delta", help="Accept delta of 1 / examples or more.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="The folder of the run; runs/DATA-MODEL-N unless said.")] = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a tuning that was stopped.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Search for a clip norm and a momentum, and keep the best model. Its epsilon includes every trial."""
    options = dict(locals())
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    from sordino.tuning.by_recipe import resume_tuning, tune_by_recipe
    from sordino.tuning.search import Search

    if resume is not None:
        if set(given) - {"resume", "quiet"}:
            raise UsageError("a tuning is resumed by its own settings: give nothing but --resume RUN.")
        folder = resume
    else:
        wanted = recipe_of(recipe, {each.name: given[each.name] for each in fields(Recipe) if each.name in given})
        search = Search(**{each.name: given[each.name] for each in fields(Search) if each.name in given})
        search.check(wanted)
        folder = out or unused_folder(wanted)
    try:
        if resume is None:
            tune_by_recipe(wanted, search, folder, progress=not quiet, then=_print_best)
        else:
            resume_tuning(folder, progress=not quiet, then=_print_best)
    except Interrupted as stopped:
        command = "train" if RunFolder(folder).is_run else "tune"
        raise Interrupted(f"{stopped} sordino {command} --resume {str(folder)!r}") from None


def _print_best(run: RunFolder) -> None:
    best = Recipe.of_run(run)
    print_columns([("clip", f"{best.clip:.6g}"), ("momentum", f"{best.momentum:.6g}")])
    print_end(run)
