"""`sordino attack`: membership inference on a run, and reconstruction of images from gradients."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino._input import validate
from sordino.cli.commands import Command
from sordino.cli.options import LossFunction, ModelFunction, number, print_columns, whole_number
from sordino.errors import UsageError

if TYPE_CHECKING:
    from sordino.attacks.reconstruction import ReconstructionAttack

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, help="Run membership inference or gradient reconstruction."
)

_MODELS = {"inverting": "resnet-34-batchnorm", "rgap": "cnn6", "linear": "linear"}


class AttackName(StrEnum):
    """Names of the membership inference attacks."""

    LIRA = "lira"
    RMIA = "rmia"
    BOTH = "both"


@app.command(cls=Command)
def members(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    data: Annotated[str | None, typer.Option(help="Path of the training dataset [as in the recipe].")] = None,
    references: Annotated[int, whole_number("Number of reference models, an even number.")] = 4,
    attack: Annotated[AttackName, typer.Option(help="Attack: lira, rmia or both.")] = AttackName.BOTH,
    rows: Annotated[int, whole_number("Number of members to attack, and of public rows.")] = 1000,
    epochs: Annotated[float | None, number("Epochs of the reference models [those of the run].")] = None,
    seed: Annotated[int, whole_number("Seed for the choice of rows and for the reference models.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress bar.")] = False,
    out: Annotated[Path | None, typer.Option(help="Output folder [RUN.internal, beside the run].")] = None,
    model: ModelFunction = None,
    loss: LossFunction = None,
) -> None:
    """Run membership inference on a run.

    The attack reads private rows, so its results are not private. They are written beside the run, not into it.
    """
    from sordino.attacks.membership.attack import attack_run, lines, write_internal

    validate.count(at_least=0, at_most=2**32, seed=seed)
    found = attack_run(
        run,
        data=data,
        model=model,
        loss=loss,
        references=references,
        rows=rows,
        epochs=epochs,
        seed=seed,
        progress=not quiet and not as_json,
    )
    wanted = tuple(each for each in found.attacks if attack in (AttackName.BOTH, each.name[:4].lower()))
    found = replace(found, attacks=wanted)
    real = run.resolve()
    written = write_internal(found, real.with_name(f"{real.name}.internal") if out is None else out)
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    print_columns(lines(found))
    print(f"\nThis is {found.warning}.\n{written}")


@app.command(cls=Command)
def reconstruct(
    attack: Annotated[
        str, typer.Option(help="Attack: inverting (any network), rgap (cnn6) or linear (first layer).")
    ] = "inverting",
    model: Annotated[
        str | None, typer.Option(help="Network: a name from `sordino models`, optionally with -batchnorm, or cnn6.")
    ] = None,
    data: Annotated[str, typer.Option(help="Dataset whose public images are attacked.")] = "cifar10",
    noise: Annotated[float, number("Standard deviation of the noise on each coordinate; 0 for none.")] = 0.0,
    rate: Annotated[float, number("Fraction of coordinates dropped by a random mask, in [0, 1).")] = 0.0,
    pictures: Annotated[int, whole_number("Number of public images to attack.")] = 4,
    iterations: Annotated[int, whole_number("inverting: number of optimization steps per image.")] = 400,
    restarts: Annotated[int, whole_number("inverting: number of restarts, of which the lowest loss is kept.")] = 1,
    total_variation: Annotated[float, number("inverting: weight of the total-variation penalty.")] = 0.01,
    seed: Annotated[int, whole_number("Seed for weights, noise, masks and initial images.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Output folder for a page with the images and their scores.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress bar.")] = False,
) -> None:
    """Reconstruct public images from their gradients.

    Attacks gradients as they are, with noise (--noise), or with a random mask too (--rate). Ctrl-C ends the attack
    and shows the images that are done.
    """
    from sordino.attacks.reconstruction import GradientInversion, Recursive, public_pictures
    from sordino.attacks.reconstruction.attack import known_network
    from sordino.attacks.reconstruction.gallery import HEADINGS, NO_EPSILON, AttackOutcome, Sent, write_outcome
    from sordino.attacks.reconstruction.gallery import reconstruct as carry_out
    from sordino.attacks.reconstruction.linear_layer import FirstLayer
    from sordino.training.progress import progress_bar

    methods: dict[str, ReconstructionAttack] = {
        "inverting": GradientInversion(iterations, restarts, total_variation),
        "rgap": Recursive(),
        "linear": FirstLayer(),
    }
    if attack not in methods:
        raise UsageError(f"attack must be one of {', '.join(methods)}, got {attack!r:.80}.")
    validate.count(at_least=0, at_most=2**32, seed=seed)
    method, name, sent = methods[attack], model or _MODELS[attack], Sent(noise, rate)
    pixels, target, facts = public_pictures(data, pictures)
    known = known_network(name, facts, seed=seed)
    found = []
    with progress_bar(not quiet and not as_json) as bar:
        task = bar.add_task("image 1", total=pictures * method.ticks)
        attacked = carry_out(
            method, known, pixels, target, sent, rows=range(pictures), seed=seed, tick=lambda: bar.advance(task)
        )
        try:
            for one in attacked:
                found.append(one)
                bar.update(task, description=f"image {min(len(found) + 1, pictures)}")
        except KeyboardInterrupt:
            if not found:
                raise typer.Exit(130) from None
    outcome = AttackOutcome(name, data, attack, sent, seed, tuple(found))
    written = None if out is None else write_outcome(outcome, out)
    if as_json:
        print(json.dumps(outcome.as_dict(), indent=2, allow_nan=False))
        return
    print(outcome.headline, end="\n\n")
    print_columns([HEADINGS, *outcome.rows])
    print(f"\n{NO_EPSILON}")
    if written is not None:
        print(written)
