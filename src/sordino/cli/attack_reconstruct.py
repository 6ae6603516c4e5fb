"""`sordino attack reconstruct`: what a gradient shows of the picture that it was computed from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino._input import validate
from sordino.cli.options import number, print_columns, whole_number
from sordino.errors import UsageError

if TYPE_CHECKING:
    from sordino.attacks.reconstruction import Attack

_MODELS = {"inverting": "resnet-34-batchnorm", "rgap": "cnn6", "linear": "linear"}


def attack_reconstruct(
    attack: Annotated[str, typer.Option(help="inverting (any network), rgap (cnn6) or linear (first layer).")] = (
        "inverting"
    ),
    model: Annotated[
        str | None, typer.Option(help="A model of `sordino models`, with -batchnorm if wanted, or cnn6.")
    ] = None,
    data: Annotated[str, typer.Option(help="Whose public pictures are attacked.")] = "cifar10",
    noise: Annotated[float, number("Standard deviation of the noise on each coordinate; 0 for none.")] = 0.0,
    rate: Annotated[float, number("The share of coordinates that a random mask drops.")] = 0.0,
    pictures: Annotated[int, whole_number("How many public pictures, from the first on.")] = 4,
    iterations: Annotated[int, whole_number("Of inverting: how often a picture is moved.")] = 400,
    restarts: Annotated[int, whole_number("Of inverting: how many starts; the cheapest end counts.")] = 1,
    total_variation: Annotated[float, number("Of inverting: the price of differences between neighbours.")] = 0.01,
    seed: Annotated[int, whole_number("Of weights, noise, masks and starts.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="A folder for a page with a gallery and its numbers.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Rebuild public pictures from their gradients: plain, with noise, or with noise and a mask.

    Ctrl-C ends it, and what is there by then is shown.
    """
    from rich.console import Console
    from rich.progress import Progress, TimeRemainingColumn

    from sordino.attacks.reconstruction import Inverting, Recursive, public_pictures
    from sordino.attacks.reconstruction.known import known_network
    from sordino.attacks.reconstruction.linear import FirstLayer
    from sordino.attacks.reconstruction.pages import HEADINGS, NO_EPSILON, Outcome, write_outcome
    from sordino.attacks.reconstruction.reconstructed import Sent, reconstruct

    ways: dict[str, Attack] = {
        "inverting": Inverting(iterations, restarts, total_variation),
        "rgap": Recursive(),
        "linear": FirstLayer(),
    }
    if attack not in ways:
        raise UsageError(f"attack must be one of {', '.join(ways)}, got {attack!r:.80}.")
    validate.count(at_least=0, at_most=2**32, seed=seed)
    way, name, sent = ways[attack], model or _MODELS[attack], Sent(noise, rate)
    pixels, target, facts = public_pictures(data, pictures)
    known = known_network(name, facts, seed=seed)
    found = []
    columns = (*Progress.get_default_columns()[:-1], TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=quiet or as_json) as bar:
        task = bar.add_task("picture 1", total=pictures * way.ticks)
        attacked = reconstruct(
            way, known, pixels, target, sent, rows=range(pictures), seed=seed, tick=lambda: bar.advance(task)
        )
        try:
            for one in attacked:
                found.append(one)
                bar.update(task, description=f"picture {min(len(found) + 1, pictures)}")
        except KeyboardInterrupt:
            if not found:
                raise typer.Exit(130) from None
    outcome = Outcome(name, data, attack, sent, seed, tuple(found))
    written = None if out is None else write_outcome(outcome, out)
    if as_json:
        print(json.dumps(outcome.as_dict(), indent=2, allow_nan=False))
        return
    print(outcome.headline, end="\n\n")
    print_columns([HEADINGS, *outcome.rows])
    print(f"\n{NO_EPSILON}")
    if written is not None:
        print(written)
