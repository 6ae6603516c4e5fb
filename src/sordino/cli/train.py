"""`sordino train`: from a data set to a folder with a private model."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sordino.accounting.guarantee import rounded_up
from sordino.cli.event_log import event_log
from sordino.cli.options import number, print_columns, whole_number
from sordino.errors import Interrupted, UsageError
from sordino.recipes import Recipe, carry_out
from sordino.training.run_folder import RunFolder


def train(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe, as TOML. Options override it.")] = None,
    data: Annotated[str | None, typer.Option(help="A name from `sordino data list`, or a path.")] = None,
    schema: Annotated[str | None, typer.Option(help="The public facts of a table or of arrays, as TOML.")] = None,
    model: Annotated[str | None, typer.Option(help="A name from `sordino models`.")] = None,
    method: Annotated[str | None, typer.Option(help="dp-sgd, or noisy-cgd for convex networks.")] = None,
    gates: Annotated[int | None, whole_number("How many gates a convex network has.")] = None,
    epsilon: Annotated[float | None, number("Target epsilon.")] = None,
    delta: Annotated[float | None, number("Target delta, below 1 / examples.")] = None,
    batch_size: Annotated[int | None, whole_number("Expected batch size.")] = None,
    epochs: Annotated[float | None, number("Passes over the data.")] = None,
    steps: Annotated[int | None, whole_number("Optimizer steps, instead of epochs.")] = None,
    lr: Annotated[float | None, number("Learning rate.")] = None,
    clip: Annotated[float | None, number("What one example may weigh: the norm of its gradient at most.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adam.")] = None,
    momentum: Annotated[float | None, number("Momentum of sgd.")] = None,
    weight_decay: Annotated[float | None, number("Weight decay: the ridge term, outside the clip.")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, warmup, cosine or step, as `cosine:0.1`.")] = None,
    averaging: Annotated[str | None, typer.Option(help="none, ema:DECAY or tail:FRACTION.")] = None,
    trailing_steps: Annotated[int | None, whole_number("noisy-cgd: steps of noise alone after the last epoch.")] = None,
    radius: Annotated[float | None, number("noisy-cgd: weights are kept in a ball of this radius.")] = None,
    sparsify: Annotated[float | None, number("Final rate of random sparsification, below 1; 0 for none.")] = None,
    freeze: Annotated[
        float | None, number("Share of the weights, the smallest, that rest in the end, below 1; 0 for none.")
    ] = None,
    views: Annotated[int | None, whole_number("How often each example is seen in a step.")] = None,
    augment: Annotated[str | None, typer.Option(help="What changes each view: flip,crop:4.")] = None,
    precision: Annotated[str | None, typer.Option(help="Of the passes: float32, or bfloat16 to save time.")] = None,
    sampler: Annotated[str | None, typer.Option(help="How batches are drawn, as in `sordino plan`.")] = None,
    adjacency: Annotated[str | None, typer.Option(help="Which data sets are neighbours.")] = None,
    expected_examples: Annotated[int | None, whole_number("With add-or-remove: a public number.")] = None,
    seed: Annotated[int | None, whole_number("Makes a run reproducible, its noise as public as the seed.")] = None,
    physical_batch_size: Annotated[int | None, whole_number("How many examples are in memory at a time.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder of the run; runs/DATA-MODEL-N unless said.")] = None,
    resume: Annotated[Path | None, typer.Option(help="The folder of a run that was stopped.")] = None,
    draw_again: Annotated[
        bool, typer.Option("--draw-again", help="Resume on other hardware, at the price of a larger epsilon.")
    ] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Log public quantities for TensorBoard.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
    allow_weak: Annotated[bool, typer.Option("--allow-weak", help="Accept epsilon above 20.")] = False,
    allow_large_delta: Annotated[
        bool, typer.Option("--allow-large-delta", help="Accept delta of 1 / examples or more.")
    ] = False,
) -> None:
    """Train a private model, by a recipe or by options, into a folder that can be resumed and given away."""
    options = dict(locals())
    given = {name for name, value in options.items() if value is not None and value is not False}  # 0 is a seed
    settings = {field.name: options[field.name] for field in fields(Recipe) if field.name in given}
    if resume is None:
        if draw_again:
            raise UsageError("--draw-again goes with --resume RUN.")
        wanted = recipe_of(recipe, settings)
        folder = out or unused_folder(wanted)
    else:
        if settings or given & {"recipe", "out"}:
            raise UsageError("a run is resumed by its own recipe: give nothing but --resume RUN.")
        folder, wanted = resume, Recipe.of_run(RunFolder(resume))
    again = {"resume": resume is not None, "draw_again": draw_again}
    with event_log(folder / "tensorboard") if tensorboard else nullcontext() as log, _saying_how_to_resume(folder):
        print_end(carry_out(wanted, folder, **again, progress=not quiet, on_row=log))


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
    for name in ("data", "model", "epsilon", "delta"):
        if name not in settings:
            raise UsageError(f"say --{name}, or give a recipe.")
    return Recipe(**settings)


def unused_folder(recipe: Recipe) -> Path:
    """A new folder, made at once: another process that asks at the same time gets another."""
    name = f"{Path(recipe.data).stem or 'data'}-{recipe.model}"
    for place in itertools.count(1):
        folder = RunFolder(Path("runs") / f"{name}-{place}")
        if not folder.private.exists() and folder.make():
            break
    return folder.path


def print_end(folder: RunFolder) -> None:
    """What a finished run promises, and how good it is."""
    promised: dict[str, Any] = folder.privacy()
    last: dict[str, Any] = (folder.metrics() or [{}])[-1]
    measured = [(name.replace("_", " "), f"{value:.4f}") for name, value in last.items() if name.startswith("test_")]
    epsilon = f"{rounded_up(promised['epsilon'], 6)} under {promised['adjacency']}"
    print_columns([("run", str(folder.path)), *measured, ("epsilon", epsilon), ("delta", str(promised["delta"]))])
    print()
    console = Console(highlight=False, markup=False, file=sys.stdout)
    console.print(promised["statement"], soft_wrap=not console.is_terminal)
