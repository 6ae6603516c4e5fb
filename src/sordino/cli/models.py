"""`sordino models` and `sordino pretrain`: the networks by name, and weights for private training to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.options import print_columns, whole_number
from sordino.errors import DataError, UsageError
from sordino.training.transfer import pretrain as carry_out
from sordino.training.transfer.pretraining import PICTURES


def models() -> None:
    """List the networks that can be trained by name."""
    from sordino.recipes import names

    print_columns([("name", "what it is"), *names()])


def pretrain(
    out: Annotated[Path, typer.Option(help="File to write, .safetensors; an existing file is refused.")],
    model: Annotated[str, typer.Option(help="A name from `sordino models`, an image network.")] = "resnet-20",
    shape: Annotated[str, typer.Option(help="Channels, height and width of the images, as 3x32x32.")] = "3x32x32",
    pictures: Annotated[int, whole_number("Number of synthetic images, each seen once.")] = PICTURES,
    seed: Annotated[int, whole_number("Seed for images and initial weights. It may be public.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Pretrain a network on synthetic images. No dataset is read, so this costs no privacy."""
    if out.suffix != ".safetensors":
        raise UsageError(f"out must end in .safetensors, got {str(out)!r:.80}.")
    if out.exists():
        raise UsageError(f"{str(out)!r} exists and is not overwritten: give another name.")
    if not out.parent.is_dir():
        raise UsageError(f"the folder of {str(out)!r} must exist.")
    learnt = carry_out(model, _sizes(shape), pictures=pictures, seed=seed, progress=not quiet)
    try:
        learnt.save(out)
    except OSError as error:
        raise DataError(f"{str(out)!r} cannot be written: {error.strerror}.") from None
    cost = "none: no private row was read"
    print_columns([("file", str(out)), ("model", model), ("pictures", str(pictures)), ("privacy cost", cost)])


def _sizes(shape: str) -> tuple[int, ...]:
    sizes = shape.split("x")
    if len(sizes) != 3 or not all(size.isdecimal() and size.isascii() and len(size) <= 4 for size in sizes):
        raise UsageError(f"shape must be channels, rows and columns as 3x32x32, got {shape!r:.80}.")
    return tuple(int(size) for size in sizes)
