"""`sordino train`: from a data set to a folder with a private model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from sordino.cli.options import number, print_columns, whole_number
from sordino.errors import UsageError
from sordino.recipes import Recipe, carry_out
from sordino.store import RunFolder
from sordino.train import Fitted


def train(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe, as TOML. Options go before it.")] = None,
    data: Annotated[str | None, typer.Option(help="A name from `sordino data list`, or a path.")] = None,
    schema: Annotated[str | None, typer.Option(help="The public facts of a table or of arrays, as TOML.")] = None,
    model: Annotated[str | None, typer.Option(help="A name from `sordino models`.")] = None,
    method: Annotated[str | None, typer.Option(help="How it is trained: dp-sgd.")] = None,
    epsilon: Annotated[float | None, number("Target epsilon.")] = None,
    delta: Annotated[float | None, number("Target delta, below 1 / examples.")] = None,
    batch_size: Annotated[int | None, whole_number("Expected batch size.")] = None,
    epochs: Annotated[float | None, number("Passes over the data.")] = None,
    steps: Annotated[int | None, whole_number("Optimizer steps, instead of epochs.")] = None,
    lr: Annotated[float | None, number("Learning rate.")] = None,
    clip: Annotated[float | None, number("What one example may weigh: the norm of its gradient at most.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adam.")] = None,
    momentum: Annotated[float | None, number("Momentum of sgd.")] = None,
    weight_decay: Annotated[float | None, number("Weight decay.")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant, warmup, cosine or step, as `cosine:0.1`.")] = None,
    averaging: Annotated[str | None, typer.Option(help="none, ema:DECAY or tail:FRACTION.")] = None,
    views: Annotated[int | None, whole_number("How often each example is seen in a step.")] = None,
    augment: Annotated[str | None, typer.Option(help="What changes each view: flip,crop:4.")] = None,
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
    about_the_run = ("recipe", "out", "resume", "draw_again", "tensorboard", "quiet")
    given = {name: value for name, value in locals().items() if value is not None and value is not False}
    settings = {name: value for name, value in given.items() if name not in about_the_run}
    if resume is not None:
        if settings or recipe is not None or out is not None:
            raise UsageError("a run is resumed by its own recipe: give nothing but --resume RUN.")
        found, folder = Recipe.parse(RunFolder(resume).recipe(), what=repr(str(resume / "recipe.toml"))), resume
    else:
        found = _recipe(recipe, settings)
        folder = out or _unused(found)
    log = _tensorboard(folder) if tensorboard else None
    fitted = carry_out(found, folder, resume=resume is not None, draw_again=draw_again, progress=not quiet, on_row=log)
    _print_end(folder, fitted)


def _recipe(path: Path | None, settings: dict[str, Any]) -> Recipe:
    if path is not None:
        return Recipe.read(path).changed(**settings)
    missing = [name for name in ("data", "model", "epsilon", "delta") if name not in settings]
    if missing:
        raise UsageError(f"say --{missing[0]}, or give a recipe.")
    return Recipe(**settings)


def _unused(recipe: Recipe) -> Path:
    name = f"{Path(recipe.data).stem}-{recipe.model}"
    number = 1
    while (folder := Path("runs") / f"{name}-{number}").exists() or RunFolder(folder).private.exists():
        number += 1
    return folder


def _tensorboard(folder: Path) -> Callable[[dict[str, Any]], None]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError("--tensorboard needs TensorBoard: install sordino[tensorboard].") from None
    writer = SummaryWriter(str(folder / "tensorboard"))

    def log(row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "step":
                writer.add_scalar(name, value, row["step"])
        writer.flush()

    return log


def _print_end(folder: Path, fitted: Fitted) -> None:
    last = fitted.metrics[-1] if fitted.metrics else {}
    measured = [(name.replace("_", " "), f"{value:.4f}") for name, value in last.items() if name.startswith("test_")]
    print_columns([("run", str(folder)), *measured, ("epsilon", f"{fitted.guarantee.epsilon:.4f}")])
    print()
    console = Console(highlight=False, markup=False, file=sys.stdout)
    console.print(fitted.guarantee.statement, soft_wrap=not console.is_terminal)
